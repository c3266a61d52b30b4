#include "grid/factorisation.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "base/error.hpp"

namespace fourfold {

namespace {

using Factors = std::array<int, 4>;

std::vector<int> divisors(int n) {
  FOURFOLD_ASSERT(n >= 1, "only positive numbers are factorised");
  std::vector<int> low, high;
  for (int d = 1; d <= n / d; ++d) {
    if (n % d != 0) continue;
    low.push_back(d);
    if (d != n / d) high.push_back(n / d);
  }
  low.insert(low.end(), high.rbegin(), high.rend());
  return low;
}

std::vector<Factors> factorisations(int n) {
  std::vector<Factors> all;
  for (const int a : divisors(n)) {
    for (const int b : divisors(n / a)) {
      for (const int c : divisors(n / a / b)) all.push_back({a, b, c, n / a / b / c});
    }
  }
  return all;
}

DenseShape dense(const Factors& f) {
  return {f[0], f[1], f[2], f[3]};
}
MoeShape moe(const Factors& f) {
  return {f[0], f[1], f[2], f[3]};
}

double distance(const Factors& a, const Factors& b) {
  double sum = 0;
  for (std::size_t axis = 0; axis < 4; ++axis)
    sum += std::abs(std::log(static_cast<double>(a[axis]) / std::max(1, b[axis])));
  return sum;
}

template <class ToText>
std::string hint(int ranks, const Factors& asked, std::size_t most, ToText to_text) {
  std::vector<Factors> all = factorisations(ranks);
  std::stable_sort(all.begin(), all.end(),
                   [&](const Factors& a, const Factors& b) { return distance(a, asked) < distance(b, asked); });
  std::string text;
  for (std::size_t i = 0; i < std::min(most, all.size()); ++i) text += (i == 0 ? "" : "; ") + to_text(all[i]);
  if (all.size() > most) text += fmt::format("; ... ({} more)", all.size() - most);
  return text;
}

}  // namespace

std::vector<DenseShape> dense_factorisations(int n) {
  std::vector<DenseShape> shapes;
  for (const Factors& f : factorisations(n)) shapes.push_back(dense(f));
  return shapes;
}

std::vector<MoeShape> moe_factorisations(int n) {
  std::vector<MoeShape> shapes;
  for (const Factors& f : factorisations(n)) shapes.push_back(moe(f));
  return shapes;
}

std::string factorisation_hint(int ranks, const DenseShape& asked, std::size_t most) {
  return hint(ranks, {asked.data, asked.depth, asked.row, asked.col}, most,
              [](const Factors& f) { return shape_text(dense(f)); });
}

std::string factorisation_hint(int ranks, const MoeShape& asked, std::size_t most) {
  return hint(ranks, {asked.replica, asked.expert, asked.row, asked.col}, most,
              [](const Factors& f) { return shape_text(moe(f)); });
}

std::string shape_text(const DenseShape& s) {
  return fmt::format("data {}, depth {}, row {}, col {}", s.data, s.depth, s.row, s.col);
}

std::string shape_text(const MoeShape& s) {
  return fmt::format("replica {}, expert {}, row {}, col {}", s.replica, s.expert, s.row, s.col);
}

}  // namespace fourfold
