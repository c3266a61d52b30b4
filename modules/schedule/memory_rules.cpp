// What a list holds, operation by operation, and the operations that serve the computing ones.
#include <algorithm>

#include "schedule/rules.hpp"

namespace fourfold {
namespace {

using Kind = OperationKind;

// Of one chunk, while its stage's list is read.
struct ChunkState {
  int open = 0;  // weight gradients to come
  bool gathered = false, reduced = false;
};

class ServiceRules {
 public:
  explicit ServiceRules(const Schedule& schedule)
      : schedule_(schedule),
        chunks_(schedule.stage_of_chunk.size(), ChunkState{schedule.micro_batches, false, false}),
        where_(chunks_.size() * static_cast<std::size_t>(schedule.micro_batches), Where::not_yet) {}

  std::vector<std::string> faults() {
    for (int stage = 0; stage < schedule_.stages; ++stage) {
      const std::vector<StageOperation>& list = schedule_.list(stage);
      for (std::size_t i = 0; i < list.size(); ++i) read(stage, i, i + 1 == list.size());
      if (list.empty() || list.back().kind != Kind::step)
        add("stage " + std::to_string(stage) + ": no step at the end");
    }
    for (int chunk = 0; chunk < schedule_.chunks(); ++chunk) {
      const ChunkState& state = chunks_[static_cast<std::size_t>(chunk)];
      const std::string name =
          "chunk " + std::to_string(chunk) + " (stage " + std::to_string(schedule_.stage_of(chunk)) + ")";
      if (!state.reduced) add("reduce gradients of " + name + " is missing");
      if (state.gathered) add("gather weights of " + name + " has no release weights after it");
    }
    return std::move(faults_);
  }

 private:
  enum class Where : unsigned char { not_yet, here, away, back };

  void add(const std::string& fault) {
    if (faults_.size() < kMostFaults) faults_.push_back(fault);
  }
  void require(bool holds, int stage, std::size_t index, const std::string& rule) {
    if (!holds) add(place_of(schedule_, stage, index) + ": " + rule);
  }

  void read(int stage, std::size_t index, bool last) {
    const StageOperation& operation = schedule_.list(stage)[index];
    if (operation.kind == Kind::step) return require(last, stage, index, "a step is the last operation of a list");
    if (is_transfer(operation.kind)) return;
    if (operation.chunk < 0 || operation.chunk >= schedule_.chunks() || schedule_.stage_of(operation.chunk) != stage) {
      return require(false, stage, index, "its chunk is not on this stage");
    }
    ChunkState& chunk = chunks_[static_cast<std::size_t>(operation.chunk)];
    const bool of_set = is_compute(operation.kind) || operation.kind == Kind::offload || operation.kind == Kind::load;
    if (of_set && (operation.micro_batch < 0 || operation.micro_batch >= schedule_.micro_batches)) {
      return require(false, stage, index, "there is no such micro-batch");
    }
    Where* set =
        of_set ? &where_[static_cast<std::size_t>(operation.chunk) * static_cast<std::size_t>(schedule_.micro_batches) +
                         static_cast<std::size_t>(operation.micro_batch)]
               : nullptr;
    switch (operation.kind) {
      case Kind::forward:
        *set = Where::here;
        break;
      case Kind::backward:
      case Kind::backward_input:
        require(*set != Where::away, stage, index, "its activation set was offloaded and not loaded again");
        break;
      case Kind::offload:
        require(*set == Where::here, stage, index, "offload follows the forward, once");
        *set = Where::away;
        break;
      case Kind::load:
        require(*set == Where::away, stage, index, "load follows an offload");
        *set = Where::back;
        break;
      case Kind::gather_weights:
        require(!chunk.gathered, stage, index, "its weights are gathered already");
        chunk.gathered = true;
        break;
      case Kind::release_weights:
        require(chunk.gathered, stage, index, "its weights are not gathered");
        chunk.gathered = false;
        break;
      case Kind::reduce_gradients:
        require(chunk.open == 0, stage, index,
                std::to_string(chunk.open) + " weight gradients of its chunk come after it");
        require(!chunk.reduced, stage, index, "its chunk is reduced already");
        chunk.reduced = true;
        break;
      default:
        break;
    }
    if (ends_set(operation.kind)) --chunk.open;
  }

  const Schedule& schedule_;
  std::vector<ChunkState> chunks_;
  std::vector<Where> where_;
  std::vector<std::string> faults_;
};

}  // namespace

std::vector<std::string> service_faults(const Schedule& schedule) {
  return ServiceRules(schedule).faults();
}

PeakSets peak_sets(const std::vector<StageOperation>& list) {
  PeakSets peak;
  int sets = 0;
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (list[i].kind == Kind::forward && ++sets > peak.most) peak = {sets, i};
    if (ends_set(list[i].kind)) --sets;
  }
  return peak;
}

PeakBytes peak_bytes(const std::vector<StageOperation>& list, const std::vector<ActivationBytes>& chunks) {
  PeakBytes peak;
  std::int64_t live = 0, away = 0;
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (list[i].chunk < 0) continue;
    const ActivationBytes& bytes = chunks[static_cast<std::size_t>(list[i].chunk)];
    const auto hold = [&](std::int64_t more) {
      live += more;
      if (live > peak.most) {
        peak.most = live;
        peak.at = i;
      }
    };
    switch (list[i].kind) {
      case Kind::forward:
        hold(bytes.kept);
        break;
      case Kind::backward:
        hold(bytes.backward_extra);
        hold(-bytes.backward_extra - bytes.kept);
        break;
      case Kind::backward_input:
        hold(bytes.input_extra);
        hold(bytes.kept_for_weight - bytes.input_extra - bytes.kept);
        break;
      case Kind::backward_weight:
        hold(-bytes.kept_for_weight);
        break;
      case Kind::offload:
        hold(-bytes.offloaded);
        away += bytes.offloaded;
        peak.away = std::max(peak.away, away);
        break;
      case Kind::load:
        hold(bytes.offloaded);
        away -= bytes.offloaded;
        break;
      default:
        break;
    }
  }
  return peak;
}

}  // namespace fourfold
