// A pipeline schedule as data: for each stage the list of operations that its ranks do in one step, in order.
//
// The model is a chain of chunks (contiguous layers; a stage without interleave is one chunk). Between chunk b and
// chunk b + 1 lies boundary b: activations cross it forwards, gradients backwards, where the two are on different
// stages. Operations of one stage run one after another; what crosses stages is in the lists as transfers.
//
// How a list is run (train does, evaluate() of timeline.hpp models it):
//   send, receive     are posted where they stand, without blocking, in the list's order; ranks of equal coordinates
//                     talk to each other. The check proves that they could even block until the other side has come.
//   forward           waits for its receive_activation. Its activation set is held until the chunk's backward_weight
//                     (or whole backward) of that micro-batch is done.
//   backward          waits for its receive_gradient; backward = backward_input, then backward_weight.
//   gather_weights    from here to release_weights all weights of the chunk are held whole over `depth`, and its
//                     gradients too: reduce_gradients then scatters them, once. Without it each forward and backward
//                     gathers its layers itself at use, and each backward_weight reduce-scatters over depth.
//   reduce_gradients  starts the sum of the chunk's gradients over its other ranks; done before the step.
//   offload, load     move what the chunk's layers keep of this micro-batch (of those that are to be offloaded) away
//                     and back; both are started where they stand, and waited for by the backward.
//   step              the norm, the clipping and the update; the last operation of every list.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace fourfold {

enum class OperationKind {
  forward,
  backward,
  backward_input,
  backward_weight,
  send_activation,
  receive_activation,
  send_gradient,
  receive_gradient,
  gather_weights,
  release_weights,
  reduce_gradients,
  offload,
  load,
  step,
};

struct StageOperation {
  OperationKind kind = OperationKind::step;
  int chunk = -1;        // of the chain, on the stage whose list it is; -1: step
  int micro_batch = -1;  // -1: of weights, and step
  int peer = -1;         // of transfers: the other stage
  bool operator==(const StageOperation&) const = default;
};

bool is_compute(OperationKind kind);   // forward or one of the backwards
bool is_backward(OperationKind kind);  // of whichever half
bool is_send(OperationKind kind);
bool is_receive(OperationKind kind);
inline bool is_transfer(OperationKind kind) {
  return is_send(kind) || is_receive(kind);
}
// Whether the operation makes what goes to the chunk before (gradients): backward or backward_input.
inline bool makes_gradient(OperationKind kind) {
  return kind == OperationKind::backward || kind == OperationKind::backward_input;
}
// Whether it completes the chunk's weight gradient of a micro-batch, and ends its activation set.
inline bool ends_set(OperationKind kind) {
  return kind == OperationKind::backward || kind == OperationKind::backward_weight;
}

using OperationLists = std::vector<std::vector<StageOperation>>;  // one a stage

struct Schedule {
  std::string builder;  // "1f1b"
  int stages = 1;
  int micro_batches = 1;
  std::vector<int> stage_of_chunk;  // in the order of the chain
  OperationLists lists;
  // Declared, by stage: the most activation sets (of a chunk and a micro-batch each) that are held at once.
  std::vector<int> in_flight;

  int chunks() const { return static_cast<int>(stage_of_chunk.size()); }
  int stage_of(int chunk) const { return stage_of_chunk[static_cast<std::size_t>(chunk)]; }
  const std::vector<StageOperation>& list(int stage) const { return lists[static_cast<std::size_t>(stage)]; }
  // Whether something crosses boundary b, between chunks b and b + 1; false beyond both ends of the chain.
  bool crosses(int boundary) const;
};

// The chunks of a stage in the order of the chain, and a chunk's place among those of its stage.
std::vector<int> chunks_of_stage(const Schedule& schedule, int stage);
int local_chunk(const Schedule& schedule, int chunk);

// The same number for the two ends of a transfer, another for every other transfer of a step (a message tag):
// 0 <= id < 2 x chunks x micro_batches. Of operations that are no transfers: an assertion.
std::int64_t transfer_id(const Schedule& schedule, const StageOperation& operation);

// "F3", "B3", "I3", "W3" with ".v" where the stage has several chunks (v counts them); "send activation 3 to stage 1".
std::string name_of(const Schedule& schedule, const StageOperation& operation);
// "operation 5 of stage 0 (F3.1)": stages count from 0, operations of a list from 1.
std::string place_of(const Schedule& schedule, int stage, std::size_t index);

// What the lists do in one step, all stages together (A9's table: layered accumulation, Lamy-Poirier 2021).
struct ScheduleCounts {
  std::int64_t gathers = 0;          // of a layer's weights, at use or by gather_weights
  std::int64_t reduce_scatters = 0;  // of a layer's gradients over depth
  std::int64_t messages = 0;         // that cross stages
};
ScheduleCounts count(const Schedule& schedule, const std::vector<std::int64_t>& layers_of_chunk);

}  // namespace fourfold
