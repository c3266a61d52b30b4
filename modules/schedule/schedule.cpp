#include "schedule/schedule.hpp"

#include <algorithm>
#include <set>

#include "base/error.hpp"

namespace fourfold {

bool is_compute(OperationKind kind) {
  return kind == OperationKind::forward || is_backward(kind);
}

bool is_backward(OperationKind kind) {
  return makes_gradient(kind) || kind == OperationKind::backward_weight;
}

bool is_send(OperationKind kind) {
  return kind == OperationKind::send_activation || kind == OperationKind::send_gradient;
}

bool is_receive(OperationKind kind) {
  return kind == OperationKind::receive_activation || kind == OperationKind::receive_gradient;
}

bool Schedule::crosses(int boundary) const {
  return boundary >= 0 && boundary + 1 < chunks() && stage_of(boundary) != stage_of(boundary + 1);
}

std::vector<int> chunks_of_stage(const Schedule& schedule, int stage) {
  std::vector<int> chunks;
  for (int chunk = 0; chunk < schedule.chunks(); ++chunk) {
    if (schedule.stage_of(chunk) == stage) chunks.push_back(chunk);
  }
  return chunks;
}

int local_chunk(const Schedule& schedule, int chunk) {
  const auto begin = schedule.stage_of_chunk.begin();
  return static_cast<int>(std::count(begin, begin + chunk, schedule.stage_of(chunk)));
}

std::int64_t transfer_id(const Schedule& schedule, const StageOperation& operation) {
  FOURFOLD_ASSERT(is_transfer(operation.kind), "only transfers have an id");
  const bool gradient =
      operation.kind == OperationKind::send_gradient || operation.kind == OperationKind::receive_gradient;
  const bool after =
      operation.kind == OperationKind::receive_activation || operation.kind == OperationKind::send_gradient;
  const std::int64_t boundary = operation.chunk - (after ? 1 : 0);
  return (2 * boundary + (gradient ? 1 : 0)) * schedule.micro_batches + operation.micro_batch;
}

std::string name_of(const Schedule& schedule, const StageOperation& operation) {
  const bool known = operation.chunk >= 0 && operation.chunk < schedule.chunks();
  const auto index = [&] {
    const bool several = known && chunks_of_stage(schedule, schedule.stage_of(operation.chunk)).size() > 1;
    const std::string chunk = !known    ? ".?"
                              : several ? "." + std::to_string(local_chunk(schedule, operation.chunk))
                                        : "";
    return std::to_string(operation.micro_batch) + chunk;
  };
  const std::string chunk = "chunk " + std::to_string(operation.chunk);
  const std::string peer = "stage " + std::to_string(operation.peer);
  switch (operation.kind) {
    case OperationKind::forward:
      return "F" + index();
    case OperationKind::backward:
      return "B" + index();
    case OperationKind::backward_input:
      return "I" + index();
    case OperationKind::backward_weight:
      return "W" + index();
    case OperationKind::send_activation:
      return "send activation " + index() + " to " + peer;
    case OperationKind::receive_activation:
      return "receive activation for F" + index() + " from " + peer;
    case OperationKind::send_gradient:
      return "send gradient " + index() + " to " + peer;
    case OperationKind::receive_gradient:
      return "receive gradient for " + index() + " from " + peer;
    case OperationKind::gather_weights:
      return "gather weights of " + chunk;
    case OperationKind::release_weights:
      return "release weights of " + chunk;
    case OperationKind::reduce_gradients:
      return "reduce gradients of " + chunk;
    case OperationKind::offload:
      return "offload " + index();
    case OperationKind::load:
      return "load " + index();
    case OperationKind::step:
      return "step";
  }
  return "";
}

std::string place_of(const Schedule& schedule, int stage, std::size_t index) {
  return "operation " + std::to_string(index + 1) + " of stage " + std::to_string(stage) + " (" +
         name_of(schedule, schedule.list(stage)[index]) + ")";
}

ScheduleCounts count(const Schedule& schedule, const std::vector<std::int64_t>& layers_of_chunk) {
  ScheduleCounts counts;
  for (const std::vector<StageOperation>& list : schedule.lists) {
    std::set<int> gathered;      // weights are held
    std::set<int> accumulating;  // gradients wait whole for reduce_gradients
    for (const StageOperation& operation : list) {
      const std::int64_t layers = operation.chunk < 0 ? 0 : layers_of_chunk[static_cast<std::size_t>(operation.chunk)];
      const bool held = gathered.count(operation.chunk) > 0;
      if (operation.kind == OperationKind::gather_weights) {
        gathered.insert(operation.chunk);
        counts.gathers += layers;
      } else if (operation.kind == OperationKind::release_weights) {
        gathered.erase(operation.chunk);
      } else if (operation.kind == OperationKind::reduce_gradients) {
        if (accumulating.erase(operation.chunk) > 0) counts.reduce_scatters += layers;
      } else if (is_send(operation.kind)) {
        ++counts.messages;
      } else if (is_compute(operation.kind)) {
        if (!held && operation.kind != OperationKind::backward_weight) counts.gathers += layers;
        if (ends_set(operation.kind)) {
          if (held) {
            accumulating.insert(operation.chunk);
          } else {
            counts.reduce_scatters += layers;
          }
        }
      }
    }
  }
  return counts;
}

}  // namespace fourfold
