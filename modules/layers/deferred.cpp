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
void GatherQueue<T>::add_recompute(Range again, Range unit) {
  if (!again.empty()) recomputes_.push_back({again, unit});
}

template <class T>
const typename GatherQueue<T>::Recompute* GatherQueue<T>::recompute_of(std::size_t use) const {
  const auto at = static_cast<std::int64_t>(use);
  for (const Recompute& recompute : recomputes_) {
    if (at >= recompute.unit.begin && at < recompute.unit.end) return &recompute;
  }
  return nullptr;
}

// The last backward use below `end`.
template <class T>
std::optional<typename GatherQueue<T>::Ahead> GatherQueue<T>::next_backward(std::size_t end) const {
  while (end-- > 0) {
    if (uses_[end].backward) return Ahead{end, Phase::backward};
  }
  return std::nullopt;
}

template <class T>
std::optional<typename GatherQueue<T>::Ahead> GatherQueue<T>::next(std::size_t use, Phase phase) const {
  const Recompute* own = recompute_of(use);
  if (again_) {
    if (use + 1 < static_cast<std::size_t>(own->again.end)) return Ahead{use + 1, Phase::forward};
    const auto last = next_backward(static_cast<std::size_t>(own->unit.end));
    return last && !kept_.contains(last->use) ? last : std::nullopt;
  }
  if (phase != Phase::backward) return use + 1 < uses_.size() ? std::optional(Ahead{use + 1, phase}) : std::nullopt;
  const auto before = next_backward(use);
  if (!before) return std::nullopt;
  const Recompute* theirs = recompute_of(before->use);
  if (theirs != nullptr && theirs != own) return Ahead{static_cast<std::size_t>(theirs->again.begin), Phase::forward};
  return kept_.contains(before->use) ? std::nullopt : before;
}

template <class T>
Tensor<T> GatherQueue<T>::take(std::size_t use, Phase phase, bool ahead) {
  if (holds_) {
    Held& held = held_.at(uses_[use].matrix);
    held.pending.wait();
    return held.whole;
  }
  Tensor<T> weight;
  if (const auto kept = kept_.find(use); kept != kept_.end() && phase == Phase::backward) {
    weight = kept->second;
    kept_.erase(kept);
  } else {
    FOURFOLD_ASSERT(!ready_ || ready_use_ == use, "weights are used in the order of their registration");
    if (!ready_) ready_ = uses_[use].start(phase);
    ready_->second.wait();
    weight = ready_->first;
    ready_.reset();
    if (again_ && uses_[use].backward) kept_.emplace(use, weight);
  }
  if (const auto following = next(use, phase); ahead && following) {
    ready_use_ = following->use;
    ready_ = uses_[ready_use_].start(following->phase);
  }
  return weight;
}

template <class T>
void GatherQueue<T>::hold(Phase phase) {
  FOURFOLD_ASSERT(!holds_ && !ready_, "weights are held once at a time, and not while one is gathered ahead");
  holds_ = true;
  for (const Use& use : uses_) {
    const auto number = static_cast<std::size_t>(&use - uses_.data());
    const bool unused = phase == Phase::backward && !use.backward && recompute_of(number) == nullptr;
    if (unused || held_.contains(use.matrix)) continue;
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
