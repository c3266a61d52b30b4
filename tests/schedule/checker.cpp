// Broken schedules are refused before they run, and the message names the operations.
#include <functional>
#include <random>
#include <utility>

#include "schedule_support.hpp"
#include "test_support.hpp"

namespace fourfold::test {

TEST(Checker, DroppedReceive) {
  Schedule schedule = build("1f1b", 3, 4);
  auto& list = schedule.lists[1];
  list.erase(list.begin() + static_cast<std::ptrdiff_t>(find(schedule, 1, Kind::receive_activation, 2)));
  expect_refused(schedule, {"receive activation for F2 from stage 0 of stage 1 is missing",
                            "of stage 0 (send activation 2 to stage 1) has no receive"});
}

TEST(Checker, DroppedSendAndBoth) {
  Schedule schedule = build("gpipe", 2, 2);
  auto& list = schedule.lists[1];
  list.erase(list.begin() + static_cast<std::ptrdiff_t>(find(schedule, 1, Kind::send_gradient, 0)));
  expect_refused(schedule, {"send gradient 0 to stage 0 of stage 1 is missing",
                            "of stage 0 (receive gradient for 0 from stage 1) has no send"});
  auto& other = schedule.lists[0];
  other.erase(other.begin() + static_cast<std::ptrdiff_t>(find(schedule, 0, Kind::receive_gradient, 0)));
  expect_refused(schedule, {"send gradient 0 to stage 0 of stage 1 and receive gradient for 0", "are missing"});
}

TEST(Checker, DoubledTransfers) {
  for (const Kind kind : {Kind::send_activation, Kind::receive_gradient}) {
    Schedule schedule = build("1f1b", 2, 3);
    auto& list = schedule.lists[0];
    const std::size_t place = find(schedule, 0, kind, 1);
    list.insert(list.begin() + static_cast<std::ptrdiff_t>(place) + 1, StageOperation(list[place]));
    expect_refused(schedule,
                   {"operation " + std::to_string(place + 2) + " of stage 0 (" + name_of(schedule, list[place]) +
                    ") is there twice, first as operation " + std::to_string(place + 1)});
  }
}

TEST(Checker, CrossedSends) {
  Schedule schedule = build("gpipe", 2, 2);
  auto& list = schedule.lists[0];
  const std::size_t first = find(schedule, 0, Kind::send_activation, 0);
  const std::size_t second = find(schedule, 0, Kind::send_activation, 1);
  const StageOperation moved = list[first];
  list.insert(list.begin() + static_cast<std::ptrdiff_t>(second) + 1, moved);
  list.erase(list.begin() + static_cast<std::ptrdiff_t>(first));
  expect_refused(schedule, {"sends and receives cross", "of stage 0 (send activation 1 to stage 1) comes before",
                            "of stage 1 (receive activation for F0 from stage 0) before"});
}

TEST(Checker, CircleOfSynchronousSends) {
  // Both stages send before they receive: fine with buffers, a deadlock without.
  Schedule schedule = build("1f1b", 2, 2);
  auto& list = schedule.lists[1];
  const std::size_t receive = find(schedule, 1, Kind::receive_activation, 1);
  const StageOperation moved = list[receive];
  list.erase(list.begin() + static_cast<std::ptrdiff_t>(receive));
  list.insert(list.begin() + static_cast<std::ptrdiff_t>(find(schedule, 1, Kind::send_gradient, 0)) + 1, moved);
  expect_refused(schedule, {"stages wait for each other where sends are synchronous",
                            "of stage 0 (send activation 1 to stage 1) waits for",
                            "of stage 1 (send gradient 0 to stage 0) waits for"});
}

TEST(Checker, SwappedBackward) {
  Schedule schedule = build("gpipe", 2, 3);
  std::swap(schedule.lists[1][find(schedule, 1, Kind::backward, 0)],
            schedule.lists[1][find(schedule, 1, Kind::backward, 1)]);
  expect_refused(schedule, {"of stage 1 (B1) stands before", "(B0): a chunk's gradients are made in ascending"});
  schedule = build("gpipe", 2, 3);
  std::swap(schedule.lists[1][find(schedule, 1, Kind::forward, 2)],
            schedule.lists[1][find(schedule, 1, Kind::backward, 2)]);
  expect_refused(schedule, {"of stage 1 (B2) stands before", "(F2), which it needs"});
  schedule = build("zero_bubble", 2, 3);
  std::swap(schedule.lists[1][find(schedule, 1, Kind::backward_weight, 1)],
            schedule.lists[1][find(schedule, 1, Kind::backward_weight, 2)]);
  expect_refused(schedule, {"of stage 1 (W2) stands before", "(W1): a chunk's gradients"});
  schedule = build("zero_bubble", 1, 1);
  std::swap(schedule.lists[0][find(schedule, 0, Kind::backward_input, 0)],
            schedule.lists[0][find(schedule, 0, Kind::backward_weight, 0)]);
  expect_refused(schedule, {"of stage 0 (W0) stands before", "(I0), which it needs"});
}

TEST(Checker, ChunksOfOneStageInOrder) {
  Schedule schedule = build("modular", 1, 1, 2);
  std::swap(schedule.lists[0][find(schedule, 0, Kind::forward, 0, 0)],
            schedule.lists[0][find(schedule, 0, Kind::forward, 0, 1)]);
  expect_refused(schedule, {"of stage 0 (F0.1) stands before", "(F0.0), which it needs"});
  schedule = build("modular", 1, 1, 2);
  std::swap(schedule.lists[0][find(schedule, 0, Kind::backward, 0, 0)],
            schedule.lists[0][find(schedule, 0, Kind::backward, 0, 1)]);
  expect_refused(schedule, {"of stage 0 (B0.0) stands before", "(B0.1), which it needs"});
}

TEST(Checker, TransferBesideItsProduct) {
  Schedule schedule = build("1f1b", 2, 1);
  std::swap(schedule.lists[0][0], schedule.lists[0][1]);
  expect_refused(schedule,
                 {"operation 1 of stage 0 (send activation 0 to stage 1) stands before", "(F0), which makes"});
  schedule = build("1f1b", 2, 1);
  std::swap(schedule.lists[1][0], schedule.lists[1][1]);
  expect_refused(schedule, {"(receive activation for F0 from stage 0) stands behind", "(F0), which uses"});
}

TEST(Checker, OperationsThatAreNothing) {
  Schedule schedule = build("1f1b", 2, 2);
  schedule.lists[0].insert(schedule.lists[0].begin(), {Kind::receive_activation, 0, 0, 1});
  expect_refused(schedule, {"operation 1 of stage 0", "there is nothing to transfer"});
  schedule = build("1f1b", 2, 2);
  schedule.lists[0].insert(schedule.lists[0].begin(), {Kind::forward, 1, 0, -1});
  expect_refused(schedule, {"operation 1 of stage 0 (F0): its chunk is not on this stage"});
  schedule = build("1f1b", 2, 2);
  schedule.lists[0].insert(schedule.lists[0].begin(), {Kind::forward, 0, 2, -1});
  expect_refused(schedule, {"operation 1 of stage 0 (F2): micro-batches are 0 to 1"});
  schedule = build("1f1b", 3, 1);
  schedule.lists[0][find(schedule, 0, Kind::send_activation, 0)].peer = 2;
  expect_refused(schedule, {"(send activation 0 to stage 2): chunk 1 is on stage 1"});
}

TEST(Checker, InFlightAsDeclared) {
  Schedule schedule = build("1f1b", 3, 4);
  schedule.in_flight[0] = 2;
  expect_refused(schedule, {"of stage 0 (F2) makes 3 activation sets in flight, but 2 are declared"});
}

// Whatever is taken away, doubled or exchanged in any list of any builder: refused, or a schedule that can still run
// (two neighbours that have nothing to do with each other).
TEST(Checker, RandomMutations) {
  std::mt19937_64 engine(seed());
  int refused = 0;
  for (const ScheduleRequest& request : requests(3, 4)) {
    const Schedule whole = build_schedule(request);
    for (int trial = 0; trial < (full() ? 400 : 60); ++trial) {
      Schedule schedule = whole;
      auto& list = schedule.lists[engine() % schedule.lists.size()];
      const std::size_t place = engine() % list.size();
      const StageOperation operation = list[place];
      const auto kind = trial % 3;
      if (kind == 0) {
        list.erase(list.begin() + static_cast<std::ptrdiff_t>(place));
      } else if (kind == 1) {
        list.insert(list.begin() + static_cast<std::ptrdiff_t>(engine() % (list.size() + 1)), operation);
      } else {
        std::swap(list[place], list[engine() % list.size()]);
      }
      const ScheduleReport report = check_schedule(schedule);
      refused += report.faults.empty() ? 0 : 1;
      if (kind < 2) {
        EXPECT_FALSE(report.faults.empty()) << text_of(request) << ": " << name_of(whole, operation);
        const std::string faults = all_text(report.faults);
        // Gathers and releases of a chunk are named as a pair.
        const std::string whole_name = name_of(whole, operation);
        const std::size_t chunk = whole_name.find("of chunk");
        const std::string name = chunk == std::string::npos ? whole_name : whole_name.substr(chunk);
        EXPECT_NE(faults.find(name), std::string::npos) << name << " in " << faults;
      }
    }
  }
  EXPECT_GT(refused, 500);
}

}  // namespace fourfold::test
