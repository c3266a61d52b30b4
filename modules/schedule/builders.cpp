#include "schedule/builders.hpp"

#include <algorithm>
#include <utility>

#include "base/error.hpp"
#include "grid/partition.hpp"
#include "schedule/list_text.hpp"
#include "schedule/transfers.hpp"

namespace fourfold {
namespace {

constexpr std::int64_t kMostOperations = 10'000'000;  // of all stages: lists are held in memory

using Kind = OperationKind;

// The chunks of one stage go round the stages: chunk c is on stage c mod stages.
std::vector<int> round_robin(int stages, int chunks) {
  std::vector<int> stage_of_chunk;
  for (int chunk = 0; chunk < chunks; ++chunk) stage_of_chunk.push_back(chunk % stages);
  return stage_of_chunk;
}

// Micro-batches a stage runs forward before its first backward, then one forward and one backward in turn.
void one_f_one_b(Schedule& schedule, const std::vector<int>& warm_up) {
  const int m = schedule.micro_batches;
  for (int stage = 0; stage < schedule.stages; ++stage) {
    std::vector<StageOperation>& list = schedule.lists[static_cast<std::size_t>(stage)];
    const int before = std::min(m, warm_up[static_cast<std::size_t>(stage)]);
    int forward = 0;
    while (forward < before) list.push_back({Kind::forward, stage, forward++, -1});
    for (int backward = 0; backward < m; ++backward) {
      if (forward < m) list.push_back({Kind::forward, stage, forward++, -1});
      list.push_back({Kind::backward, stage, backward, -1});
    }
    schedule.in_flight.push_back(std::min(m, before + 1));
  }
}

void gpipe(Schedule& schedule, const ScheduleRequest&) {
  one_f_one_b(schedule, std::vector<int>(static_cast<std::size_t>(schedule.stages), schedule.micro_batches));
  complete(schedule, false);
}

void plain_1f1b(Schedule& schedule, const ScheduleRequest&) {
  std::vector<int> warm_up;
  for (int stage = 0; stage < schedule.stages; ++stage) warm_up.push_back(schedule.stages - stage - 1);
  one_f_one_b(schedule, warm_up);
  complete(schedule, false);
}

// A stage has the extra micro-batches of every boundary behind it.
void geo(Schedule& schedule, const ScheduleRequest& request) {
  std::vector<int> warm_up(static_cast<std::size_t>(schedule.stages), 0);
  std::int64_t extra = 0;
  for (int stage = schedule.stages - 1; stage >= 0; --stage) {
    if (stage < schedule.stages - 1) {
      const std::int64_t asked = request.extra_in_flight[static_cast<std::size_t>(stage)];
      extra =
          std::min<std::int64_t>(schedule.micro_batches, extra + std::min<std::int64_t>(asked, schedule.micro_batches));
    }
    warm_up[static_cast<std::size_t>(stage)] =
        static_cast<int>(std::min<std::int64_t>(schedule.micro_batches, schedule.stages - stage - 1 + extra));
  }
  one_f_one_b(schedule, warm_up);
  complete(schedule, false);
}

// Stage s: forward, input gradient, and the weight product of s micro-batches before. F to W of one micro-batch spans
// stages - s forwards ahead and s weight products behind: as many sets as stages everywhere.
void zero_bubble(Schedule& schedule, const ScheduleRequest&) {
  const int m = schedule.micro_batches;
  for (int stage = 0; stage < schedule.stages; ++stage) {
    std::vector<StageOperation>& list = schedule.lists[static_cast<std::size_t>(stage)];
    const int before = std::min(m, schedule.stages - stage - 1);
    int forward = 0, weight = 0;
    while (forward < before) list.push_back({Kind::forward, stage, forward++, -1});
    for (int input = 0; input < m; ++input) {
      if (forward < m) list.push_back({Kind::forward, stage, forward++, -1});
      list.push_back({Kind::backward_input, stage, input, -1});
      if (input >= stage) list.push_back({Kind::backward_weight, stage, weight++, -1});
    }
    while (weight < m) list.push_back({Kind::backward_weight, stage, weight++, -1});
    schedule.in_flight.push_back(std::min(m, schedule.stages));
  }
  complete(schedule, false);
}

// Groups of at least `stages` micro-batches, where there are so many; a group runs through the chunks of a stage one
// after another. The warm-up of stage s reaches 2 (stages - s - 1) operations past the first group's last chunk.
void interleaved(Schedule& schedule, const ScheduleRequest& request) {
  const int per_stage = static_cast<int>(request.interleave);
  if (per_stage == 1) return plain_1f1b(schedule, request);
  const int m = schedule.micro_batches;
  schedule.stage_of_chunk = round_robin(schedule.stages, schedule.stages * per_stage);
  const int groups = std::max(1, m / schedule.stages);
  std::vector<std::pair<int, int>> order;  // of the forwards: chunk of the stage, micro-batch
  std::vector<std::pair<int, int>> back;   // of the backwards
  for (int group = 0; group < groups; ++group) {
    const Range range = part(m, groups, group);
    for (int v = 0; v < per_stage; ++v) {
      for (auto i = static_cast<int>(range.begin); i < range.end; ++i) {
        order.push_back({v, i});
        back.push_back({per_stage - 1 - v, i});
      }
    }
  }
  const auto largest = static_cast<int>(part(m, groups, 0).size());
  const int total = static_cast<int>(order.size());
  for (int stage = 0; stage < schedule.stages; ++stage) {
    std::vector<StageOperation>& list = schedule.lists[static_cast<std::size_t>(stage)];
    const int before = std::min(total, 2 * (schedule.stages - stage - 1) + (per_stage - 1) * largest);
    const auto add = [&](Kind kind, const std::pair<int, int>& which) {
      list.push_back({kind, which.first * schedule.stages + stage, which.second, -1});
    };
    for (int k = 0; k < before; ++k) add(Kind::forward, order[static_cast<std::size_t>(k)]);
    for (int k = 0; k < total; ++k) {
      if (before + k < total) add(Kind::forward, order[static_cast<std::size_t>(before) + static_cast<std::size_t>(k)]);
      add(Kind::backward, back[static_cast<std::size_t>(k)]);
    }
    schedule.in_flight.push_back(std::min(total, before + 1));
  }
  complete(schedule, false);
}

void breadth_first(Schedule& schedule, int chunks) {
  schedule.stage_of_chunk = round_robin(schedule.stages, chunks);
  schedule.in_flight.assign(static_cast<std::size_t>(schedule.stages), 0);
  const auto list = [&](int chunk) -> std::vector<StageOperation>& {
    return schedule.lists[static_cast<std::size_t>(schedule.stage_of(chunk))];
  };
  for (int chunk = 0; chunk < chunks; ++chunk) {
    for (int i = 0; i < schedule.micro_batches; ++i) list(chunk).push_back({Kind::forward, chunk, i, -1});
    schedule.in_flight[static_cast<std::size_t>(schedule.stage_of(chunk))] += schedule.micro_batches;
  }
  for (int chunk = chunks - 1; chunk >= 0; --chunk) {
    for (int i = 0; i < schedule.micro_batches; ++i) list(chunk).push_back({Kind::backward, chunk, i, -1});
  }
  complete(schedule, true);
}

void modular(Schedule& schedule, const ScheduleRequest& request) {
  breadth_first(schedule, schedule.stages * static_cast<int>(request.interleave));
}

void layered(Schedule& schedule, const ScheduleRequest& request) {
  breadth_first(schedule, static_cast<int>(request.units));
}

void by_hand(Schedule& schedule, const ScheduleRequest& request) {
  schedule.stage_of_chunk = round_robin(schedule.stages, schedule.stages * static_cast<int>(request.interleave));
  std::string all;
  for (const ListFault& fault : read_lists(schedule, request.lists)) all += (all.empty() ? "" : "; ") + fault.message;
  if (!all.empty()) fail_all(ExitCode::input, all);
  complete(schedule, false);
}

struct Builder {
  const char* name;
  void (*build)(Schedule&, const ScheduleRequest&);
  bool interleaves, per_unit, extra, lists;  // which parts of a request it takes
};
constexpr Builder kBuilders[] = {
    {"gpipe", gpipe, false, false, false, false},
    {"1f1b", plain_1f1b, false, false, false, false},
    {"interleaved", interleaved, true, false, false, false},
    {"modular", modular, true, false, false, false},
    {"layered", layered, false, true, false, false},
    {"zero_bubble", zero_bubble, false, false, false, false},
    {"geo", geo, false, false, true, false},
    {"list", by_hand, true, false, false, true},
};

// "gpipe, 1f1b": those that `takes` says.
template <class Takes>
std::string names_of(Takes takes) {
  std::string names;
  for (const Builder& builder : kBuilders) {
    if (takes(builder)) names += (names.empty() ? "" : ", ") + std::string(builder.name);
  }
  return names;
}

std::vector<std::string> request_faults(const ScheduleRequest& request, const Builder& builder) {
  std::vector<std::string> faults;
  const auto refuse = [&faults](bool wrong, const std::string& message) {
    if (wrong) faults.push_back(message);
  };
  const std::string stages = std::to_string(request.stages);
  refuse(request.stages < 1, "stages " + stages + ": 1 or more");
  refuse(request.micro_batches < 1, "micro-batches " + std::to_string(request.micro_batches) + ": 1 or more");
  refuse(request.interleave < 1, "interleave " + std::to_string(request.interleave) + ": 1 or more");
  if (!faults.empty()) return faults;
  refuse(request.interleave > 1 && !builder.interleaves,
         "interleave " + std::to_string(request.interleave) + " has no meaning for " + builder.name +
             "; legal: 1, or one of " + names_of([](const Builder& b) { return b.interleaves; }));
  refuse(builder.per_unit && request.units < request.stages,
         "layered over " + stages + " stages needs as many units of the model; it has " +
             std::to_string(request.units) + "; legal: 1 to " + std::to_string(request.units) + " stages");
  const auto boundaries = static_cast<std::size_t>(request.stages - 1);
  const auto& extra = request.extra_in_flight;
  refuse(!builder.extra && !extra.empty(), std::string("extra in flight has no meaning for ") + builder.name +
                                               "; legal: " + names_of([](const Builder& b) { return b.extra; }));
  refuse(builder.extra && (extra.size() != boundaries ||
                           std::any_of(extra.begin(), extra.end(), [](std::int64_t x) { return x < 0; })),
         "extra in flight: wanted " + std::to_string(boundaries) +
             " numbers of 0 or more, one a boundary between stages; there are " + std::to_string(extra.size()));
  refuse(!builder.lists && !request.lists.empty(),
         std::string("lists by hand have no meaning for ") + builder.name + "; legal: list");
  refuse(builder.lists && static_cast<std::int64_t>(request.lists.size()) != request.stages,
         "wanted " + stages + " lists, one a stage; there are " + std::to_string(request.lists.size()));
  constexpr std::int64_t kMost = kMostOperations / 2;
  const std::int64_t chunks = builder.per_unit ? request.units : request.interleave;  // of the model, or a stage
  const std::int64_t sets_of = builder.per_unit ? 1 : request.stages;
  refuse(chunks > kMost || sets_of > kMost / chunks || request.micro_batches > kMost / (chunks * sets_of),
         "chunks x micro-batches is more than " + std::to_string(kMost));
  return faults;
}

Schedule without_lists(const ScheduleRequest& request) {
  Schedule schedule;
  schedule.builder = request.builder;
  schedule.stages = static_cast<int>(request.stages);
  schedule.micro_batches = static_cast<int>(request.micro_batches);
  schedule.stage_of_chunk = round_robin(schedule.stages, schedule.stages);
  schedule.lists.resize(static_cast<std::size_t>(schedule.stages));
  return schedule;
}

}  // namespace

const std::vector<std::string>& schedule_builders() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> list;
    for (const Builder& builder : kBuilders) list.push_back(builder.name);
    return list;
  }();
  return names;
}

Schedule build_schedule(const ScheduleRequest& request) {
  const auto* const builder = std::find_if(std::begin(kBuilders), std::end(kBuilders),
                                           [&](const Builder& b) { return request.builder == b.name; });
  if (builder == std::end(kBuilders)) {
    fail_all(ExitCode::input,
             "no schedule is called " + request.builder + "; legal: " + names_of([](const Builder&) { return true; }));
  }
  const std::vector<std::string> faults = request_faults(request, *builder);
  std::string all;
  for (const std::string& fault : faults) all += (all.empty() ? "" : "; ") + fault;
  if (!faults.empty()) fail_all(ExitCode::input, all);
  Schedule schedule = without_lists(request);
  builder->build(schedule, request);
  return schedule;
}

std::vector<ListFault> list_faults(const ScheduleRequest& request) {
  Schedule schedule = without_lists(request);
  schedule.stage_of_chunk = round_robin(schedule.stages, schedule.stages * static_cast<int>(request.interleave));
  return read_lists(schedule, request.lists);
}

}  // namespace fourfold
