// Runs the lists of a schedule on the chunks of this rank's stage. What 1f1b or any other schedule is stands in the
// list; here is only what each operation does (schedule/schedule.hpp says it too).
//
// Between chunks, on one stage or on two, activations and gradients wait in buffers of their own; what a chunk's
// forward pass keeps for backward are its activations.
#pragma once

#include <deque>
#include <functional>
#include <map>
#include <string>
#include <tuple>

#include "base/trace.hpp"
#include "comm/collectives.hpp"
#include "comm/grid_comms.hpp"
#include "deck/deck.hpp"
#include "model/model.hpp"
#include "schedule/schedule.hpp"
#include "tensor/offload.hpp"
#include "train/hand_off.hpp"

namespace fourfold {

template <class T>
class Interpreter {
 public:
  // What a run asks for and tells.
  struct Work {
    Pass<T> pass;                                               // without batch
    std::function<MicroBatch<T>(int micro_batch)> load;         // as this stage needs it
    std::function<void(int chunk)> gradients;                   // of a chunk of the stage: they are complete
    std::function<void(const StageOperation& operation)> done;  // after each operation; may be empty
    Offload* offload = nullptr;                                 // where a stage of the schedule offloads
  };

  // Keeps references, to the deck too. `cuts`: the units of each chunk of the pipeline.
  Interpreter(const Deck& deck, const GridComms& comms, const std::vector<Range>& cuts, Model<T>& model, Pool& pool,
              Trace& trace);

  // This stage's list. The sum of losses is of the last stage; on others it is empty. Collective over the stages.
  // Errors: Error (storage, all ranks) at the step, where something could not be offloaded: its gradients mean nothing.
  LossSum run(const Schedule& schedule, const Work& work);

 private:
  enum class Way { activation, gradient };    // forwards, backwards
  using Address = std::tuple<Way, int, int>;  // to which chunk and micro-batch
  struct Parcel {
    Tensor<T> data;
    Pending arriving;
  };
  struct Set {  // of a chunk and a micro-batch
    Activations<T> kept;
    Offload::Set away;  // of kept: what is not here, or on its way
  };
  struct Loaded {
    MicroBatch<T> batch;
    bool ready = false;
    int uses = 0;  // to come
  };
  struct Run;

  void operate(Run& run, const StageOperation& operation);
  void forward(Run& run, const StageOperation& operation);
  void backward(Run& run, const StageOperation& operation);
  void send(Run& run, const StageOperation& operation);
  void receive(Run& run, const StageOperation& operation);
  void move_away_or_back(Run& run, const StageOperation& operation);
  void end_offloads(Run& run);
  Pass<T> pass_of(Run& run, int micro_batch);
  void used(Run& run, int micro_batch);
  Tensor<T> take(Run& run, const Address& address);
  void put(Run& run, const Address& address, const Tensor<T>& data);
  void spend(const StageOperation& operation) const;

  const GridComms& comms_;
  Model<T>& model_;
  Pool& pool_;
  Trace& trace_;
  HandOff hand_off_;
  SendMode send_mode_;
  std::vector<std::int64_t> stage_times_;
};

}  // namespace fourfold
