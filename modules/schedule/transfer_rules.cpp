// Every transfer has two ends, in orders that agree.
#include <algorithm>
#include <map>
#include <utility>

#include "schedule/rules.hpp"

namespace fourfold {
namespace {

using Kind = OperationKind;

struct End {
  int stage = -1;
  std::size_t index = 0;
  bool known() const { return stage >= 0; }
};

class TransferRules {
 public:
  explicit TransferRules(const Schedule& schedule)
      : schedule_(schedule),
        transfers_(2 * static_cast<std::size_t>(schedule.chunks()) * static_cast<std::size_t>(schedule.micro_batches)) {
  }

  std::vector<std::string> faults() {
    for (int stage = 0; stage < schedule_.stages; ++stage) read(stage);
    if (faults_.empty()) match();
    if (faults_.empty()) {
      for (int stage = 0; stage < schedule_.stages; ++stage) made_and_used(stage);
    }
    if (faults_.empty()) channels();
    if (faults_.empty()) walk();
    return std::move(faults_);
  }

 private:
  struct Transfer {
    End send, receive;
  };

  void add(const std::string& fault) {
    if (faults_.size() < kMostFaults) faults_.push_back(fault);
  }
  std::string place(const End& end) const { return place_of(schedule_, end.stage, end.index); }
  const StageOperation& at(const End& end) const { return schedule_.list(end.stage)[end.index]; }

  // The chunk at the other end of a transfer.
  static int other_chunk(const StageOperation& operation) {
    const bool to_next = operation.kind == Kind::send_activation || operation.kind == Kind::receive_gradient;
    return operation.chunk + (to_next ? 1 : -1);
  }

  void read(int stage) {
    const std::vector<StageOperation>& list = schedule_.list(stage);
    for (std::size_t i = 0; i < list.size(); ++i) {
      const StageOperation& operation = list[i];
      if (!is_transfer(operation.kind)) continue;
      const End end{stage, i};
      const int other = other_chunk(operation);
      const bool exists = operation.chunk >= 0 && operation.chunk < schedule_.chunks() &&
                          schedule_.stage_of(operation.chunk) == stage && other >= 0 && other < schedule_.chunks() &&
                          operation.micro_batch >= 0 && operation.micro_batch < schedule_.micro_batches;
      if (!exists || !schedule_.crosses(std::min(other, operation.chunk))) {
        add(place(end) + ": there is nothing to transfer");
        continue;
      }
      if (operation.peer != schedule_.stage_of(other)) {
        add(place(end) + ": chunk " + std::to_string(other) + " is on stage " +
            std::to_string(schedule_.stage_of(other)));
        continue;
      }
      Transfer& transfer = transfers_[static_cast<std::size_t>(transfer_id(schedule_, operation))];
      End& known = is_send(operation.kind) ? transfer.send : transfer.receive;
      if (known.known()) {
        add(place(end) + " is there twice, first as operation " + std::to_string(known.index + 1));
      }
      known = end;
    }
  }

  // Both ends of every transfer that the chain needs.
  void match() {
    for (int boundary = 0; boundary + 1 < schedule_.chunks(); ++boundary) {
      if (!schedule_.crosses(boundary)) continue;
      const int before = schedule_.stage_of(boundary), after = schedule_.stage_of(boundary + 1);
      for (int i = 0; i < schedule_.micro_batches; ++i) {
        ends({Kind::send_activation, boundary, i, after}, {Kind::receive_activation, boundary + 1, i, before});
        ends({Kind::send_gradient, boundary + 1, i, before}, {Kind::receive_gradient, boundary, i, after});
      }
    }
  }
  void ends(const StageOperation& send, const StageOperation& receive) {
    const Transfer& transfer = transfers_[static_cast<std::size_t>(transfer_id(schedule_, send))];
    const std::string send_name = name_of(schedule_, send) + " of stage " + std::to_string(receive.peer);
    const std::string receive_name = name_of(schedule_, receive) + " of stage " + std::to_string(send.peer);
    if (!transfer.send.known() && !transfer.receive.known()) {
      add(send_name + " and " + receive_name + " are missing");
    } else if (!transfer.receive.known()) {
      add(receive_name + " is missing; " + place(transfer.send) + " has no receive");
    } else if (!transfer.send.known()) {
      add(send_name + " is missing; " + place(transfer.receive) + " has no send");
    }
  }

  void made_and_used(int stage) {
    std::map<std::pair<int, int>, std::size_t> forwards, gradients;  // (chunk, micro-batch): place
    const std::vector<StageOperation>& list = schedule_.list(stage);
    for (std::size_t i = 0; i < list.size(); ++i) {
      const std::pair<int, int> which{list[i].chunk, list[i].micro_batch};
      if (list[i].kind == Kind::forward) forwards[which] = i;
      if (makes_gradient(list[i].kind)) gradients[which] = i;
    }
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (!is_transfer(list[i].kind)) continue;
      const bool of_forward = list[i].kind == Kind::send_activation || list[i].kind == Kind::receive_activation;
      const std::size_t compute = (of_forward ? forwards : gradients).at({list[i].chunk, list[i].micro_batch});
      if (is_send(list[i].kind) ? i < compute : i > compute) {
        add(place({stage, i}) + " stands " + (is_send(list[i].kind) ? "before " : "behind ") + place({stage, compute}) +
            (is_send(list[i].kind) ? ", which makes what it sends" : ", which uses what it receives"));
      }
    }
  }

  const End& other_end(const StageOperation& operation) const {
    const Transfer& transfer = transfers_[static_cast<std::size_t>(transfer_id(schedule_, operation))];
    return is_send(operation.kind) ? transfer.receive : transfer.send;
  }

  // What one stage sends another is received in the order in which it is sent.
  void channels() {
    for (int stage = 0; stage < schedule_.stages; ++stage) {
      std::map<int, End> latest;  // by peer: the receive of the send before
      const std::vector<StageOperation>& list = schedule_.list(stage);
      for (std::size_t i = 0; i < list.size(); ++i) {
        if (!is_send(list[i].kind)) continue;
        const End end = other_end(list[i]);
        End& before = latest[list[i].peer];
        if (before.known() && end.index < before.index) {
          add("sends and receives cross: " + place(other_end(at(before))) + " comes before " + place({stage, i}) +
              ", but " + place(end) + " before " + place(before));
        }
        before = end;
      }
    }
  }

  // All stages run their lists, and a transfer happens when both stand at it.
  void walk() {
    std::vector<std::size_t> next(static_cast<std::size_t>(schedule_.stages), 0);
    const auto head = [&](int stage) {
      std::size_t& i = next[static_cast<std::size_t>(stage)];
      while (i < schedule_.list(stage).size() && !is_transfer(schedule_.list(stage)[i].kind)) ++i;
      return End{stage, i};
    };
    const auto finished = [&](const End& end) { return end.index == schedule_.list(end.stage).size(); };
    for (bool moved = true; moved;) {
      moved = false;
      for (int stage = 0; stage < schedule_.stages; ++stage) {
        for (End end = head(stage); !finished(end); end = head(stage)) {
          const End other = other_end(at(end));
          if (head(other.stage).index != other.index) break;
          ++next[static_cast<std::size_t>(stage)];
          ++next[static_cast<std::size_t>(other.stage)];
          moved = true;
        }
      }
    }
    std::string stuck;
    for (int stage = 0; stage < schedule_.stages; ++stage) {
      const End end = head(stage);
      if (!finished(end)) stuck += "; " + place(end) + " waits for " + place(other_end(at(end)));
    }
    if (!stuck.empty()) add("stages wait for each other where sends are synchronous" + stuck);
  }

  const Schedule& schedule_;
  std::vector<Transfer> transfers_;
  std::vector<std::string> faults_;
};

}  // namespace

std::vector<std::string> transfer_faults(const Schedule& schedule) {
  return TransferRules(schedule).faults();
}

}  // namespace fourfold
