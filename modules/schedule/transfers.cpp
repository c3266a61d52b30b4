#include "schedule/transfers.hpp"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "base/error.hpp"

namespace fourfold {
namespace {

// What is done of each (chunk, micro-batch).
class Progress {
 public:
  explicit Progress(const Schedule& schedule)
      : micro_batches_(schedule.micro_batches),
        last_chunk_(schedule.chunks() - 1),
        forward_(static_cast<std::size_t>(schedule.chunks()) * schedule.micro_batches, false),
        gradient_(forward_) {}

  // Whether the neighbour has made what the operation takes in.
  bool ready(const StageOperation& operation) const {
    if (operation.kind == OperationKind::forward) {
      return operation.chunk == 0 || forward_[at(operation.chunk - 1, operation.micro_batch)];
    }
    return !makes_gradient(operation.kind) || operation.chunk == last_chunk_ ||
           gradient_[at(operation.chunk + 1, operation.micro_batch)];
  }
  void done(const StageOperation& operation) {
    if (operation.kind == OperationKind::forward) forward_[at(operation.chunk, operation.micro_batch)] = true;
    if (makes_gradient(operation.kind)) gradient_[at(operation.chunk, operation.micro_batch)] = true;
  }

 private:
  std::size_t at(int chunk, int micro_batch) const {
    return static_cast<std::size_t>(chunk) * static_cast<std::size_t>(micro_batches_) +
           static_cast<std::size_t>(micro_batch);
  }
  int micro_batches_, last_chunk_;
  std::vector<bool> forward_, gradient_;
};

std::string circle_text(const Schedule& schedule, const OperationLists& compute, const std::vector<std::size_t>& next) {
  std::string text = "the stages wait for each other";
  for (int stage = 0; stage < schedule.stages; ++stage) {
    const auto s = static_cast<std::size_t>(stage);
    if (next[s] == compute[s].size()) continue;
    const StageOperation& operation = compute[s][next[s]];
    const int step = operation.kind == OperationKind::forward ? -1 : 1;
    StageOperation awaited{operation.kind, operation.chunk + step, operation.micro_batch, -1};
    text += "; stage " + std::to_string(stage) + " stands at entry " + std::to_string(next[s] + 1) + " (" +
            name_of(schedule, operation) + "), which needs " + name_of(schedule, awaited) + " of stage " +
            std::to_string(schedule.stage_of(awaited.chunk));
  }
  return text;
}

// Lists the transfer of what `operation` made on both stages.
void add_transfer(Schedule& schedule, const StageOperation& operation) {
  const bool forward = operation.kind == OperationKind::forward;
  if (!forward && !makes_gradient(operation.kind)) return;
  if (!schedule.crosses(forward ? operation.chunk : operation.chunk - 1)) return;
  const int other = operation.chunk + (forward ? 1 : -1);
  const int from = schedule.stage_of(operation.chunk);
  const int to = schedule.stage_of(other);
  schedule.lists[static_cast<std::size_t>(from)].push_back(
      {forward ? OperationKind::send_activation : OperationKind::send_gradient, operation.chunk, operation.micro_batch,
       to});
  schedule.lists[static_cast<std::size_t>(to)].push_back(
      {forward ? OperationKind::receive_activation : OperationKind::receive_gradient, other, operation.micro_batch,
       from});
}

bool same_run(const StageOperation& a, const StageOperation& b) {
  return a.chunk == b.chunk && is_backward(a.kind) == is_backward(b.kind);
}

// Takes out what would come back before anything else is computed.
void drop_idle_moves(std::vector<StageOperation>& list) {
  std::vector<StageOperation> fewer;
  for (const StageOperation& operation : list) {
    if (operation.kind == OperationKind::load) {
      auto last = fewer.rbegin();
      while (last != fewer.rend() && !is_compute(last->kind) &&
             !(last->kind == OperationKind::offload && last->chunk == operation.chunk &&
               last->micro_batch == operation.micro_batch)) {
        ++last;
      }
      if (last != fewer.rend() && last->kind == OperationKind::offload) {
        fewer.erase(std::next(last).base());
        continue;
      }
    }
    fewer.push_back(operation);
  }
  list = std::move(fewer);
}

}  // namespace

void complete(Schedule& schedule, bool gather_once) {
  const OperationLists compute = std::exchange(schedule.lists, OperationLists(schedule.lists.size()));
  Progress progress(schedule);
  std::vector<std::size_t> next(compute.size(), 0);
  std::vector<int> open(schedule.stage_of_chunk.size(), schedule.micro_batches);  // weight products to come
  for (bool moved = true; moved;) {
    moved = false;
    std::vector<std::size_t> runs;  // stages whose next operation has what it needs when the round begins
    for (std::size_t s = 0; s < compute.size(); ++s) {
      if (next[s] < compute[s].size() && progress.ready(compute[s][next[s]])) runs.push_back(s);
    }
    for (const std::size_t s : runs) {
      const StageOperation& operation = compute[s][next[s]];
      const StageOperation* before = next[s] > 0 ? &compute[s][next[s] - 1] : nullptr;
      const StageOperation* after = next[s] + 1 < compute[s].size() ? &compute[s][next[s] + 1] : nullptr;
      const auto add = [&](OperationKind kind) { schedule.lists[s].push_back({kind, operation.chunk, -1, -1}); };
      if (gather_once && (!before || !same_run(*before, operation))) add(OperationKind::gather_weights);
      schedule.lists[s].push_back(operation);
      add_transfer(schedule, operation);
      if (gather_once && (!after || !same_run(operation, *after))) add(OperationKind::release_weights);
      if (ends_set(operation.kind) && --open[static_cast<std::size_t>(operation.chunk)] == 0) {
        add(OperationKind::reduce_gradients);
      }
      progress.done(operation);
      ++next[s];
      moved = true;
    }
  }
  for (std::size_t s = 0; s < compute.size(); ++s) {
    if (next[s] < compute[s].size()) fail_all(ExitCode::input, circle_text(schedule, compute, next));
  }
  for (std::vector<StageOperation>& list : schedule.lists) list.push_back({OperationKind::step, -1, -1, -1});
}

void add_offload(Schedule& schedule, const std::vector<bool>& chunks, int ahead) {
  FOURFOLD_ASSERT(chunks.size() == schedule.stage_of_chunk.size() && ahead >= 1,
                  "one entry a chunk, at least one ahead");
  for (std::vector<StageOperation>& list : schedule.lists) {
    std::vector<StageOperation> offloading;
    for (const StageOperation& operation : list) {
      offloading.push_back(operation);
      if (operation.kind == OperationKind::forward && chunks[static_cast<std::size_t>(operation.chunk)]) {
        offloading.push_back({OperationKind::offload, operation.chunk, operation.micro_batch, -1});
      }
    }
    // From the end, so that the loads are listed in the order of the backwards.
    list.clear();
    std::vector<std::pair<StageOperation, int>> loads;  // that wait for their place, and operations still to pass
    for (auto it = offloading.rbegin(); it != offloading.rend(); ++it) {
      const auto is_own = [&](const auto& load) {
        return it->kind == OperationKind::offload && load.first.chunk == it->chunk &&
               load.first.micro_batch == it->micro_batch;
      };
      const auto own = std::find_if(loads.begin(), loads.end(), is_own);
      if (own != loads.end()) {
        list.push_back(own->first);
        loads.erase(own);
      }
      list.push_back(*it);
      if (!is_compute(it->kind)) continue;
      for (auto& load : loads) --load.second;
      while (!loads.empty() && loads.front().second == 0) {
        list.push_back(loads.front().first);
        loads.erase(loads.begin());
      }
      if (makes_gradient(it->kind) && chunks[static_cast<std::size_t>(it->chunk)]) {
        loads.push_back({{OperationKind::load, it->chunk, it->micro_batch, -1}, ahead});
      }
    }
    std::reverse(list.begin(), list.end());
    drop_idle_moves(list);
  }
}

}  // namespace fourfold
