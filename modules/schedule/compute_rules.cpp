// Every product once, and in an order that it can be made in.
#include <algorithm>
#include <array>

#include "schedule/rules.hpp"

namespace fourfold {
namespace {

using Kind = OperationKind;
constexpr std::size_t kNone = static_cast<std::size_t>(-1);

// Where the list of its stage has the products of one (chunk, micro-batch).
struct Places {
  std::array<std::size_t, 4> index{kNone, kNone, kNone, kNone};  // F, B, I, W
  std::size_t& of(Kind kind) { return index[static_cast<std::size_t>(kind)]; }
};

class ComputeRules {
 public:
  explicit ComputeRules(const Schedule& schedule)
      : schedule_(schedule),
        places_(static_cast<std::size_t>(schedule.chunks()) * static_cast<std::size_t>(schedule.micro_batches)) {}

  std::vector<std::string> faults() {
    for (int stage = 0; stage < schedule_.stages; ++stage) read(stage);
    for (int chunk = 0; chunk < schedule_.chunks(); ++chunk) {
      for (int i = 0; i < schedule_.micro_batches; ++i) complete(chunk, i);
    }
    for (int chunk = 0; chunk < schedule_.chunks() && faults_.empty(); ++chunk) {
      ascending(chunk);
      if (chunk > 0 && !schedule_.crosses(chunk - 1)) follow(chunk - 1);
    }
    return std::move(faults_);
  }

 private:
  void add(const std::string& fault) {
    if (faults_.size() < kMostFaults) faults_.push_back(fault);
  }
  Places& at(int chunk, int micro_batch) {
    return places_[static_cast<std::size_t>(chunk) * static_cast<std::size_t>(schedule_.micro_batches) +
                   static_cast<std::size_t>(micro_batch)];
  }

  void read(int stage) {
    const std::vector<StageOperation>& list = schedule_.list(stage);
    for (std::size_t i = 0; i < list.size(); ++i) {
      const StageOperation& operation = list[i];
      if (!is_compute(operation.kind)) continue;
      if (operation.chunk < 0 || operation.chunk >= schedule_.chunks() ||
          schedule_.stage_of(operation.chunk) != stage) {
        add(place_of(schedule_, stage, i) + ": its chunk is not on this stage");
      } else if (operation.micro_batch < 0 || operation.micro_batch >= schedule_.micro_batches) {
        add(place_of(schedule_, stage, i) + ": micro-batches are 0 to " + std::to_string(schedule_.micro_batches - 1));
      } else if (std::size_t& place = at(operation.chunk, operation.micro_batch).of(operation.kind); place != kNone) {
        add(place_of(schedule_, stage, i) + " is there twice, first as operation " + std::to_string(place + 1));
      } else {
        place = i;
      }
    }
  }

  std::string name(Kind kind, int chunk, int micro_batch) const {
    return name_of(schedule_, {kind, chunk, micro_batch, -1});
  }

  void complete(int chunk, int i) {
    Places& places = at(chunk, i);
    const int stage = schedule_.stage_of(chunk);
    const std::string on_stage = " of stage " + std::to_string(stage);
    const std::size_t forward = places.of(Kind::forward), whole = places.of(Kind::backward);
    const std::size_t input = places.of(Kind::backward_input), weight = places.of(Kind::backward_weight);
    const auto missing = [&](Kind kind) { add(name(kind, chunk, i) + on_stage + " is missing"); };
    const auto behind = [&](std::size_t first, std::size_t second) {
      if (first < second) return;
      add(place_of(schedule_, stage, second) + " stands before " + place_of(schedule_, stage, first) +
          ", which it needs");
    };
    if (forward == kNone) missing(Kind::forward);
    if (whole != kNone && (input != kNone || weight != kNone)) {
      add(place_of(schedule_, stage, whole) + " and " + place_of(schedule_, stage, input != kNone ? input : weight) +
          " make the same gradient");
    } else if (whole == kNone && input == kNone && weight == kNone) {
      missing(Kind::backward);
    } else if (whole == kNone && input == kNone) {
      missing(Kind::backward_input);
    } else if (whole == kNone && weight == kNone) {
      missing(Kind::backward_weight);
    } else if (forward != kNone) {
      behind(forward, whole != kNone ? whole : input);
      if (whole == kNone) behind(input, weight);
    }
  }

  // Chunks that follow each other on one stage hand over without a transfer.
  void follow(int chunk) {
    const int stage = schedule_.stage_of(chunk);
    const auto behind = [&](std::size_t made, std::size_t used) {
      if (made < used) return;
      add(place_of(schedule_, stage, used) + " stands before " + place_of(schedule_, stage, made) + ", which it needs");
    };
    for (int i = 0; i < schedule_.micro_batches; ++i) {
      Places& here = at(chunk, i);
      Places& next = at(chunk + 1, i);
      behind(here.of(Kind::forward), next.of(Kind::forward));
      behind(gradient(next), gradient(here));
    }
  }
  // Where the input gradient is made.
  static std::size_t gradient(Places& places) {
    return places.of(Kind::backward) != kNone ? places.of(Kind::backward) : places.of(Kind::backward_input);
  }

  // Sums of gradients in one order give every schedule the same bits.
  void ascending(int chunk) {
    const int stage = schedule_.stage_of(chunk);
    for (int i = 1; i < schedule_.micro_batches; ++i) {
      Places& before = at(chunk, i - 1);
      Places& after = at(chunk, i);
      const auto place = [](Places& places, Kind half) {
        return places.of(Kind::backward) != kNone ? places.of(Kind::backward) : places.of(half);
      };
      for (const Kind half : {Kind::backward_input, Kind::backward_weight}) {
        const std::size_t first = place(before, half), second = place(after, half);
        if (first < second) continue;
        add(place_of(schedule_, stage, second) + " stands before " + place_of(schedule_, stage, first) +
            ": a chunk's gradients are made in ascending micro-batch order");
        break;
      }
    }
  }

  const Schedule& schedule_;
  std::vector<Places> places_;
  std::vector<std::string> faults_;
};

}  // namespace

std::vector<std::string> compute_faults(const Schedule& schedule) {
  return ComputeRules(schedule).faults();
}

}  // namespace fourfold
