#include "layers/deferred.hpp"

#include "base/error.hpp"

namespace fourfold {

void Deferred::add(Pending pending, std::function<void()> then) {
  items_.push_back({std::move(pending), std::move(then)});
  while (items_.size() > most_) {
    items_.front().pending.wait();
    items_.front().then();
    items_.pop_front();
  }
}

void Deferred::finish() {
  for (Item& item : items_) {
    item.pending.wait();
    item.then();
  }
  items_.clear();
}

template <class T>
std::size_t GatherQueue<T>::add(Use use) {
  uses_.push_back(std::move(use));
  return uses_.size() - 1;
}

template <class T>
std::optional<std::size_t> GatherQueue<T>::next(std::size_t use, Phase phase) const {
  if (phase != Phase::backward) return use + 1 < uses_.size() ? std::optional(use + 1) : std::nullopt;
  while (use-- > 0) {
    if (uses_[use].backward) return use;
  }
  return std::nullopt;
}

template <class T>
Tensor<T> GatherQueue<T>::take(std::size_t use, Phase phase, bool ahead) {
  if (holds_) {
    Held& held = held_.at(uses_[use].matrix);
    held.pending.wait();
    return held.whole;
  }
  FOURFOLD_ASSERT(!ready_ || ready_use_ == use, "weights are used in the order of their registration");
  if (!ready_) ready_ = uses_[use].start(phase);
  ready_->second.wait();
  Tensor<T> weight = ready_->first;
  ready_.reset();
  if (const auto following = next(use, phase); ahead && following) {
    ready_use_ = *following;
    ready_ = uses_[ready_use_].start(phase);
  }
  return weight;
}

template <class T>
void GatherQueue<T>::hold(Phase phase) {
  FOURFOLD_ASSERT(!holds_ && !ready_, "weights are held once at a time, and not while one is gathered ahead");
  holds_ = true;
  for (const Use& use : uses_) {
    if ((phase == Phase::backward && !use.backward) || held_.contains(use.matrix)) continue;
    auto [whole, pending] = use.start(phase);
    held_.emplace(use.matrix, Held{whole, std::move(pending)});
  }
}

template <class T>
void GatherQueue<T>::release() {
  FOURFOLD_ASSERT(holds_, "what is released was held");
  for (auto& entry : held_) entry.second.pending.wait();
  held_.clear();
  holds_ = false;
}

template <class T>
void GatherQueue<T>::reduce() {
  for (const Use& use : uses_) use.reduce();
}

template class GatherQueue<float>;
template class GatherQueue<double>;
template class GatherQueue<kernels::bf16>;

}  // namespace fourfold
