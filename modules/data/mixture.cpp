#include "data/mixture.hpp"

#include <algorithm>
#include <utility>

#include "base/error.hpp"

namespace fourfold {

namespace {

std::int64_t share(std::int64_t k, std::int64_t weight, std::int64_t of) {
  __extension__ using Wide = __int128;
  return static_cast<std::int64_t>(static_cast<Wide>(k) * weight / of);
}

}  // namespace

MixedOrder::MixedOrder(std::uint64_t seed, const std::vector<std::int64_t>& sizes, std::vector<std::int64_t> weights)
    : weights_(std::move(weights)), from_here_(weights_) {
  FOURFOLD_ASSERT(!sizes.empty() && sizes.size() == weights_.size(), "each corpus has a weight");
  for (std::size_t i = from_here_.size() - 1; i > 0; --i) from_here_[i - 1] += from_here_[i];
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    FOURFOLD_ASSERT(weights_[i] >= 1, "weights are positive");
    orders_.emplace_back(seed, sizes[i], i);
    first_.push_back(first_.back() + sizes[i]);
  }
}

std::int64_t MixedOrder::at(std::int64_t k) const {
  FOURFOLD_ASSERT(k >= 0, "samples count from 0");
  std::size_t corpus = 0;
  for (; corpus + 1 < orders_.size(); ++corpus) {
    const std::int64_t before = share(k, weights_[corpus], from_here_[corpus]);
    if (share(k + 1, weights_[corpus], from_here_[corpus]) > before) {
      k = before;
      break;
    }
    k -= before;
  }
  return first_[corpus] + orders_[corpus].at(k);
}

JoinedSamples::JoinedSamples(std::vector<std::unique_ptr<Samples>> parts) : parts_(std::move(parts)) {
  for (const std::unique_ptr<Samples>& part : parts_) first_.push_back(first_.back() + part->count());
}

bool JoinedSamples::is_text() const {
  return std::all_of(parts_.begin(), parts_.end(), [](const auto& part) { return part->is_text(); });
}

std::int64_t JoinedSamples::bytes(std::int64_t begin, std::int64_t end) const {
  std::int64_t sum = 0;
  if (!is_text()) return sum;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const std::int64_t from = std::max(begin, first_[i]), to = std::min(end, first_[i + 1]);
    if (from < to) sum += parts_[i]->bytes(from - first_[i], to - first_[i]);
  }
  return sum;
}

void JoinedSamples::append(std::int64_t index, Batch& batch) const {
  const std::size_t part =
      static_cast<std::size_t>(std::upper_bound(first_.begin(), first_.end(), index) - first_.begin()) - 1;
  parts_[part]->append(index - first_[part], batch);
}

}  // namespace fourfold
