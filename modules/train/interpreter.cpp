#include "train/interpreter.hpp"

#include <algorithm>
#include <memory>
#include <utility>

#include "base/error.hpp"
#include "checkpoint/stage.hpp"
#include "comm/launch.hpp"
#include "kernels/vector.hpp"
#include "tensor/number.hpp"

namespace fourfold {

namespace {

constexpr int kTags = 1 << 15;  // messages of one tag keep their order

template <class T>
Tensor<T> copy_of(Pool& pool, MemoryTag tag, const Tensor<T>& x) {
  Tensor<T> copy(pool, tag, x.rows(), x.cols());
  Kokkos::deep_copy(Space(), copy.vector(), x.vector());
  return copy;
}

// The messages of one transfer; their buffers live as long as they are under way. Then `after` gets these.
template <class T>
Pending all_of(std::vector<Pending>&& messages, std::vector<Tensor<T>>&& buffers,
               const std::function<void(const std::vector<Tensor<T>>&)>& after = {}) {
  const auto under_way = std::make_shared<std::pair<std::vector<Pending>, std::vector<Tensor<T>>>>(std::move(messages),
                                                                                                   std::move(buffers));
  return Pending([under_way, after] {
    for (Pending& message : under_way->first) message.wait();
    if (after) after(under_way->second);
  });
}

}  // namespace

template <class T>
struct Interpreter<T>::Run {
  const Schedule& schedule;
  const Work& work;
  int stage;
  LossSum loss;
  std::map<int, Loaded> batches;
  std::map<int, Index> samples;  // of each micro-batch, over all coordinates
  std::map<std::pair<int, int>, Set> sets;
  std::map<Address, Parcel> parcels;
  std::map<int, std::deque<Parcel>> sent;  // to each stage, under way
  const StageOperation* next = nullptr;    // the compute operation that follows
};

template <class T>
Interpreter<T>::Interpreter(const Deck& deck, const GridComms& comms, const std::vector<Range>& cuts, Model<T>& model,
                            Pool& pool, Trace& trace)
    : comms_(comms),
      model_(model),
      pool_(pool),
      trace_(trace),
      hand_off_(deck, comms, cuts),
      send_mode_(deck.debug.synchronous_sends ? SendMode::synchronous : SendMode::standard),
      stage_times_(deck.emulate.stage_times) {
  if (!stage_times_.empty()) comms.clock().use_given_times();
}

template <class T>
LossSum Interpreter<T>::run(const Schedule& schedule, const Work& work) {
  Run run{schedule, work, comms_.here().stage, {}, {}, {}, {}, {}, {}, nullptr};
  const std::vector<StageOperation>& list = schedule.list(run.stage);
  for (const StageOperation& operation : list) {
    if (is_compute(operation.kind)) ++run.batches[operation.micro_batch].uses;
  }
  for (auto at = list.begin(); at != list.end(); ++at) {
    const auto next = std::find_if(at, list.end(), [](const StageOperation& o) { return is_compute(o.kind); });
    run.next = next == list.end() ? nullptr : &*next;
    operate(run, *at);
    if (work.done) work.done(*at);
  }
  return run.loss;
}

template <class T>
void Interpreter<T>::operate(Run& run, const StageOperation& operation) {
  const int chunk = operation.chunk < 0 ? 0 : local_chunk(run.schedule, operation.chunk);
  switch (operation.kind) {
    case OperationKind::forward:
      return forward(run, operation);
    case OperationKind::backward:
    case OperationKind::backward_input:
    case OperationKind::backward_weight:
      return backward(run, operation);
    case OperationKind::send_activation:
    case OperationKind::send_gradient:
      return send(run, operation);
    case OperationKind::receive_activation:
    case OperationKind::receive_gradient:
      return receive(run, operation);
    case OperationKind::gather_weights:
      return model_.gather_weights(chunk, run.next->kind == OperationKind::forward ? Phase::forward : Phase::backward);
    case OperationKind::release_weights:
      return model_.release_weights(chunk);
    case OperationKind::reduce_gradients:
      model_.scatter_gradients(chunk);
      return run.work.gradients(chunk);
    case OperationKind::step:
      for (auto& stage : run.sent) {
        for (Parcel& parcel : stage.second) parcel.arriving.wait();
      }
      run.sent.clear();
      FOURFOLD_ASSERT(run.parcels.empty() && run.sets.empty(), "a step leaves nothing behind");
      return end_offloads(run);
    case OperationKind::offload:
    case OperationKind::load:
      return move_away_or_back(run, operation);
  }
}

template <class T>
void Interpreter<T>::move_away_or_back(Run& run, const StageOperation& operation) {
  FOURFOLD_ASSERT(run.work.offload != nullptr, "there is a place for what is offloaded");
  const TraceScope scope(trace_, name_of(run.schedule, operation), "offload");
  Set& set = run.sets.at({operation.chunk, operation.micro_batch});
  if (operation.kind == OperationKind::load) return run.work.offload->load(set.away);
  set.away = run.work.offload->start(model_.offloaded(local_chunk(run.schedule, operation.chunk), set.kept));
}

// A disk that fails is told by all ranks together, before any weight changes.
template <class T>
void Interpreter<T>::end_offloads(Run& run) {
  Offload* offload = run.work.offload;
  if (offload == nullptr) return;
  offload->settle();
  checkpoint::run_stage(comms_.world(),
                        "step " + std::to_string(run.work.pass.step) +
                            ": activations could not be offloaded (parallel.activations), no weight was changed",
                        [&] {
                          if (!offload->fault().empty()) fail_one(ExitCode::storage, offload->fault());
                        });
}

template <class T>
Pass<T> Interpreter<T>::pass_of(Run& run, int micro_batch) {
  Loaded& loaded = run.batches.at(micro_batch);
  if (!loaded.ready) {
    if (run.work.pass.training) set_progress(static_cast<std::int64_t>(run.work.pass.step), "data");
    const PhaseScope scope(trace_, WorkPhase::input, micro_batch);
    loaded.batch = run.work.load(micro_batch);
    run.samples[micro_batch] = loaded.batch.all_sequences;
    loaded.ready = true;
  }
  Pass<T> pass = run.work.pass;
  pass.batch = &loaded.batch;
  return pass;
}

template <class T>
void Interpreter<T>::used(Run& run, int micro_batch) {
  const auto loaded = run.batches.find(micro_batch);
  if (--loaded->second.uses == 0) run.batches.erase(loaded);
}

template <class T>
void Interpreter<T>::forward(Run& run, const StageOperation& operation) {
  const Pass<T> pass = pass_of(run, operation.micro_batch);
  if (pass.training) set_progress(static_cast<std::int64_t>(pass.step), "forward");
  const PhaseScope scope(trace_, WorkPhase::forward, operation.micro_batch);
  const int chunk = operation.chunk;
  Tensor<T> x;
  if (chunk > 0) x = copy_of(pool_, MemoryTag::activations, take(run, {Way::activation, chunk, operation.micro_batch}));
  Set set;
  LossSum loss;
  const Tensor<T> y = model_.forward(local_chunk(run.schedule, chunk), pass, std::move(x), set.kept, loss);
  spend(operation);
  run.loss.loss += loss.loss;
  run.loss.targets += loss.targets;
  if (chunk + 1 < run.schedule.chunks()) put(run, {Way::activation, chunk + 1, operation.micro_batch}, y);
  if (pass.training) run.sets.emplace(std::pair(chunk, operation.micro_batch), std::move(set));
  used(run, operation.micro_batch);
}

template <class T>
void Interpreter<T>::backward(Run& run, const StageOperation& operation) {
  const Pass<T> pass = pass_of(run, operation.micro_batch);
  set_progress(static_cast<std::int64_t>(pass.step), "backward");
  const PhaseScope scope(trace_, WorkPhase::backward, operation.micro_batch);
  const int chunk = operation.chunk;
  const int local = local_chunk(run.schedule, chunk);
  const auto set = run.sets.find({chunk, operation.micro_batch});
  FOURFOLD_ASSERT(set != run.sets.end(), "a checked schedule runs forward before backward");
  Activations<T>& kept = set->second.kept;
  if (!set->second.away.parts.empty()) {
    const TraceScope wait(trace_, "wait for a load", "offload");
    run.work.offload->finish(set->second.away);
  }
  if (makes_gradient(operation.kind)) {
    Tensor<T> dx;
    if (chunk + 1 < run.schedule.chunks()) dx = take(run, {Way::gradient, chunk, operation.micro_batch});
    // Kept for the weight gradients.
    if (operation.kind == OperationKind::backward_input) dx = copy_of(pool_, MemoryTag::activations, dx);
    dx = operation.kind == OperationKind::backward ? model_.backward(local, pass, kept, std::move(dx))
                                                   : model_.backward_input(local, pass, kept, std::move(dx));
    spend(operation);
    if (chunk > 0) put(run, {Way::gradient, chunk - 1, operation.micro_batch}, dx);
  } else {
    model_.backward_weight(local, pass, kept);
    spend(operation);
  }
  if (ends_set(operation.kind)) run.sets.erase(set);
  used(run, operation.micro_batch);
}

// What waits for a chunk: of the same stage at once, of another when it has arrived.
template <class T>
Tensor<T> Interpreter<T>::take(Run& run, const Address& address) {
  const auto parcel = run.parcels.find(address);
  FOURFOLD_ASSERT(parcel != run.parcels.end(), "a checked schedule has what it takes");
  parcel->second.arriving.wait();
  const Tensor<T> data = parcel->second.data;
  run.parcels.erase(parcel);
  return data;
}

template <class T>
void Interpreter<T>::put(Run& run, const Address& address, const Tensor<T>& data) {
  run.parcels.emplace(address, Parcel{copy_of(pool_, MemoryTag::buffers, data), {}});
}

template <class T>
void Interpreter<T>::send(Run& run, const StageOperation& operation) {
  const bool forwards = operation.kind == OperationKind::send_activation;
  const Address address{forwards ? Way::activation : Way::gradient, operation.chunk + (forwards ? 1 : -1),
                        operation.micro_batch};
  const Tensor<T> data = take(run, address);
  std::deque<Parcel>& sent = run.sent[operation.peer];
  // As many under way as the stage holds activation sets: the schedule's check has proved that none waits for ever.
  const auto most = static_cast<std::size_t>(run.schedule.in_flight[static_cast<std::size_t>(run.stage)]);
  while (sent.size() >= std::max<std::size_t>(most, 1)) {
    sent.front().arriving.wait();
    sent.pop_front();
  }
  const HandOff::Side& side = hand_off_.side(run.schedule, operation, run.samples.at(operation.micro_batch));
  FOURFOLD_ASSERT(data.rows() == side.rows && data.cols() == side.cols, "what a chunk hands on is as planned");
  const auto tag = static_cast<int>(transfer_id(run.schedule, operation) % kTags);
  const Phase phase = forwards ? Phase::forward : Phase::backward;
  std::vector<Tensor<T>> buffers;
  for (const CrossingPiece& piece : side.pieces) {
    if (piece.whole) {
      buffers.push_back(data);
    } else {
      pack<T>(piece, data.vector(), buffers.emplace_back(pool_, MemoryTag::buffers, 1, piece.elements).vector());
    }
  }
  Space().fence();
  std::vector<Pending> messages;
  for (std::size_t i = 0; i < side.pieces.size(); ++i) {
    const std::span<Wire<T>> elements = wire(buffers[i].data(), buffers[i].size());
    messages.push_back(start_send<Wire<T>>(hand_off_.group(), elements, side.pieces[i].peer, tag, phase, send_mode_));
  }
  sent.push_back({data, all_of<T>(std::move(messages), std::move(buffers))});
}

template <class T>
void Interpreter<T>::receive(Run& run, const StageOperation& operation) {
  const bool forwards = operation.kind == OperationKind::receive_activation;
  if (forwards) pass_of(run, operation.micro_batch);  // loads it
  const HandOff::Side& side = hand_off_.side(run.schedule, operation, run.samples.at(operation.micro_batch));
  const auto tag = static_cast<int>(transfer_id(run.schedule, operation) % kTags);
  const Phase phase = forwards ? Phase::forward : Phase::backward;
  const Tensor<T> data(pool_, MemoryTag::buffers, side.rows, side.cols);
  std::vector<Tensor<T>> buffers;
  std::vector<Pending> messages;
  for (const CrossingPiece& piece : side.pieces) {
    const Tensor<T>& buffer =
        piece.whole ? buffers.emplace_back(data) : buffers.emplace_back(pool_, MemoryTag::buffers, 1, piece.elements);
    messages.push_back(
        start_receive<Wire<T>>(hand_off_.group(), wire(buffer.data(), buffer.size()), piece.peer, tag, phase));
  }
  const auto unpack_all = [&side, data](const std::vector<Tensor<T>>& arrived) {
    for (std::size_t i = 0; i < arrived.size(); ++i) {
      if (!side.pieces[i].whole) unpack<T>(side.pieces[i], arrived[i].vector(), data.vector());
    }
  };
  run.parcels.emplace(Address{forwards ? Way::activation : Way::gradient, operation.chunk, operation.micro_batch},
                      Parcel{data, all_of<T>(std::move(messages), std::move(buffers), unpack_all)});
}

// emulate.stage_times in place of the kernels' costs.
template <class T>
void Interpreter<T>::spend(const StageOperation& operation) const {
  if (stage_times_.empty()) return;
  VirtualClock& clock = comms_.clock();
  if (operation.kind == OperationKind::forward) clock.spend(stage_times_[0]);
  if (makes_gradient(operation.kind)) clock.spend(stage_times_[1]);
  if (ends_set(operation.kind)) clock.spend(stage_times_[2]);
}

template class Interpreter<float>;
template class Interpreter<double>;
template class Interpreter<kernels::bf16>;

}  // namespace fourfold
