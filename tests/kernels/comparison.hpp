// Comparisons of arrays, and gradients by finite differences.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

namespace fourfold::test {

// |actual - expected| <= tolerance x the largest |expected| (at least `scale`), element by element.
template <class T>
void expect_close(const std::vector<T>& actual, const std::vector<double>& expected, double tolerance,
                  const std::string& what, double scale = 0.0) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  for (const double value : expected) scale = std::max(scale, std::abs(value));
  for (std::size_t i = 0; i < actual.size(); ++i) {
    ASSERT_LE(std::abs(static_cast<double>(actual[i]) - expected[i]), tolerance * scale)
        << what << " at " << i << ": " << actual[i] << " for " << expected[i];
  }
}

// Five-point differences of f at x, for every element of x.
inline std::vector<double> numeric_gradient(std::vector<double> x,
                                            const std::function<double(const std::vector<double>&)>& f,
                                            double h = 1e-3) {
  std::vector<double> gradient(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    const double at = x[i];
    const auto value = [&](double shift) {
      x[i] = at + shift;
      const double result = f(x);
      x[i] = at;
      return result;
    };
    gradient[i] = (8.0 * (value(h) - value(-h)) - (value(2 * h) - value(-2 * h))) / (12.0 * h);
  }
  return gradient;
}

inline double inner_product(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0.0;
  for (std::size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
  return sum;
}

template <class T>
std::vector<double> widened(const std::vector<T>& values) {
  return {values.begin(), values.end()};
}

}  // namespace fourfold::test
