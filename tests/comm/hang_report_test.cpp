// Who is named for a run that hangs, from rings of calls made up here, and the rings themselves.
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "comm/hang_report.hpp"

namespace fourfold {
namespace {

// Ranks, whose collectives are begun by hand. A call that is not ended and begun last is the one that a rank waits in.
class Job {
 public:
  explicit Job(int ranks) {
    for (int rank = 0; rank < ranks; ++rank) {
      RingSnapshot ring;
      ring.rank = rank;
      ring.host = "host";
      ring.step = 3;
      ring.phase = "backward";
      rings.push_back(ring);
    }
  }

  // Rank `rank` begins its next collective of the group.
  void begin(int rank, const std::string& group, const std::vector<int>& members, std::int64_t elements = 10,
             const std::string& where = "a.cpp:1", Operation operation = Operation::all_reduce) {
    for (const int member : members) place(member, group, members);
    RingSnapshot& ring = rings[static_cast<std::size_t>(rank)];
    const std::size_t g = place(rank, group, members);
    RingCall call;
    call.group = static_cast<std::int64_t>(g);
    call.number = ++ring.groups[g].begun;
    call.operation = operation;
    call.elements = elements;
    call.element_size = 8;
    call.where = where;
    ring.calls.push_back(call);
    ring.waiting = std::ssize(ring.calls) - 1;
  }
  std::size_t place(int rank, const std::string& group, const std::vector<int>& members) {
    RingSnapshot& ring = rings[static_cast<std::size_t>(rank)];
    const std::uint64_t id = std::hash<std::string>()(group + std::to_string(members.front()));
    std::size_t g = 0;
    while (g < ring.groups.size() && ring.groups[g].id != id) ++g;
    if (g == ring.groups.size()) ring.groups.push_back({id, group, std::ssize(members), 0});
    return g;
  }
  void end(int rank) {
    RingSnapshot& ring = rings[static_cast<std::size_t>(rank)];
    ring.calls.back().ended = true;
    ring.waiting = -1;
  }
  void all(const std::string& group, const std::vector<int>& members, std::int64_t elements = 10) {
    for (const int rank : members) {
      begin(rank, group, members, elements);
      end(rank);
    }
  }
  void receive(int rank, int from) {
    RingSnapshot& ring = rings[static_cast<std::size_t>(rank)];
    if (ring.groups.empty()) ring.groups.push_back({1, "stage", 2, 0});
    RingCall call;
    call.group = 0;
    call.operation = Operation::receive;
    call.peer = from;
    ring.calls.push_back(call);
    ring.waiting = std::ssize(ring.calls) - 1;
  }
  HangReport report() const { return find_hang(rings); }

  std::vector<RingSnapshot> rings;
};

const std::vector<int> kWorld{0, 1, 2, 3};

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(HangReport, TheRankThatDoesNotComeIsNamed) {
  Job job(4);
  job.all("world", kWorld);
  for (const int rank : {0, 1, 3}) job.begin(rank, "world", kWorld, 77, "optim/norm.cpp:25");
  const HangReport report = job.report();
  EXPECT_EQ(report.rank, 2);
  EXPECT_TRUE(has(report.reason, "did not come to all_reduce number 2 (77 x 8 bytes, setup, optim/norm.cpp:25)"))
      << report.reason;
  EXPECT_TRUE(has(report.details, "rank(s) 0, 1, 3 came to all_reduce number 2")) << report.details;
  EXPECT_TRUE(has(report.details, "rank(s) 2 did not, the last there of rank 2 was all_reduce number 1"))
      << report.details;
}

// 3 waits for 2 in one group, 2 for 1 in another, 1 for a message of 0, which works on.
TEST(HangReport, AChainLeadsToItsEnd) {
  Job job(4);
  job.begin(3, "col", {2, 3});
  job.begin(2, "row", {1, 2});
  job.receive(1, 0);
  EXPECT_EQ(job.report().rank, 0);
  EXPECT_TRUE(has(job.report().reason, "receive from rank 0"));
}

// P42: rank 1 gives 10 elements where the others give 11.
TEST(HangReport, P42AnotherCountIsTheMinoritys) {
  Job job(4);
  for (const int rank : kWorld) job.begin(rank, "world", kWorld, rank == 1 ? 10 : 11);
  EXPECT_EQ(job.report().rank, 1);
  EXPECT_TRUE(has(job.report().reason, "came to all_reduce number 1 (10 x 8 bytes"));
  EXPECT_TRUE(has(job.report().reason, "where rank(s) 0, 2, 3 came to all_reduce number 1 (11 x"));
}

// P42: of two members neither is in the majority; groups of the same name tell what is usual.
TEST(HangReport, P42GroupsOfTheSameNameDecideBetweenTwo) {
  for (const int odd : {0, 1}) {
    Job job(6);
    for (const int first : {2, 4, 0})
      for (const int rank : {first, first + 1}) job.begin(rank, "data", {first, first + 1}, rank == odd ? 5 : 6);
    EXPECT_EQ(job.report().rank, odd);
  }
}

// P42: ranks 0 and 1 swap two operations; the fault is seen at the first of them.
TEST(HangReport, P42SwappedOperations) {
  Job job(4);
  for (const int rank : kWorld) {
    const bool swapped = rank <= 1;
    job.begin(rank, "world", kWorld, swapped ? 5 : 6, swapped ? "b.cpp:2" : "a.cpp:1");
  }
  const HangReport report = job.report();
  EXPECT_TRUE(has(report.reason, "a.cpp:1") && has(report.reason, "b.cpp:2")) << report.reason;
  EXPECT_TRUE(has(report.reason, "2, 3") || has(report.reason, "0, 1")) << report.reason;
}

// P42: rank 1 leaves out a sum of its group and waits for all in the next: each waits for the other, and who went past
// the sum is further on.
TEST(HangReport, P42WhoLeftOneOutIsFurtherOn) {
  Job job(4);
  for (const int rank : {0, 2, 3}) job.begin(rank, "data", kWorld);
  job.begin(1, "world", kWorld);
  job.rings[1].progress = 8;
  for (const int rank : {0, 2, 3}) job.rings[static_cast<std::size_t>(rank)].progress = 7;
  const HangReport report = job.report();
  EXPECT_EQ(report.rank, 1);
  EXPECT_TRUE(has(report.reason, "went past what others wait for, to all_reduce")) << report.reason;
}

// P42: rank 1 leaves out a sum, and waits in the next one, which all have started; the others wait for the one before.
TEST(HangReport, P42WhoLeftOneOutOfTwoUnderWay) {
  Job job(4);
  for (const int rank : {0, 2, 3}) job.begin(rank, "data", kWorld);
  for (const int rank : kWorld) job.begin(rank, "data+depth", kWorld);
  for (const int rank : {0, 2, 3}) job.rings[static_cast<std::size_t>(rank)].waiting = 0;
  const HangReport report = job.report();
  EXPECT_EQ(report.rank, 1);
  EXPECT_TRUE(has(report.reason, "did not come to all_reduce number 1")) << report.reason;
  EXPECT_TRUE(has(report.reason, "waits itself in all_reduce number 1")) << report.reason;
}

// The same shapes, one left out: numbers no longer mean the same, which only the source lines tell.
TEST(HangReport, ASourceLineTellsWhereShapesDoNot) {
  Job job(4);
  for (const int rank : kWorld) {
    if (rank != 2) {
      job.begin(rank, "world", kWorld, 10, "first.cpp:1");
      job.end(rank);
    }
    job.begin(rank, "world", kWorld, 10, "second.cpp:1");
    if (rank == 2) job.end(rank);
  }
  job.begin(2, "other", kWorld);
  const HangReport report = job.report();
  EXPECT_EQ(report.rank, 2) << report.reason;
}

TEST(HangReport, WhenNobodyWaitsOneIsNamedAllTheSame) {
  Job job(2);
  EXPECT_EQ(job.report().rank, 0);
  EXPECT_TRUE(has(job.report().reason, "no rank waits"));
  EXPECT_EQ(find_hang({}).rank, -1);
}

TEST(HangReport, RankLists) {
  EXPECT_EQ(rank_list({}), "");
  EXPECT_EQ(rank_list({4}), "4");
  EXPECT_EQ(rank_list({1, 0, 3, 4, 5, 9}), "0, 1, 3-5, 9");
}

TEST(CallRing, SaysToOtherProcessesWhatItWasTold) {
  const std::string path = testing::TempDir() + "/ring_test.calls";
  {
    CallRing ring(path, 5, "node7");
    ring.enter(12, "gradient sum");
    std::int64_t last = 0;
    for (int i = 1; i <= 300; ++i) {
      const std::int64_t elements = i;
      last = ring.begin({7, "data", 4, Operation::all_reduce, elements, 4, Phase::gradient, -1});
      if (i < 300) ring.end(last);
    }
    ring.begin({8, "stage", 2, Operation::receive, 9, 2, Phase::forward, 3});
    ring.wait_for(last);
    const auto read = read_ring(path);
    ASSERT_TRUE(read);
    EXPECT_EQ(read->rank, 5);
    EXPECT_EQ(read->host, "node7");
    EXPECT_EQ(read->step, 12);
    EXPECT_EQ(read->phase, "gradient sum");
    ASSERT_EQ(read->groups.size(), 2u);
    EXPECT_EQ(read->groups[0].name, "data");
    EXPECT_EQ(read->groups[0].begun, 300);
    EXPECT_EQ(read->groups[1].begun, 0) << "messages have no numbers";
    ASSERT_EQ(std::ssize(read->calls), CallRing::kCalls);
    const RingCall& waits = read->calls[static_cast<std::size_t>(read->waiting)];
    EXPECT_EQ(waits.number, 300);
    EXPECT_EQ(waits.elements, 300);
    EXPECT_EQ(waits.where.substr(0, waits.where.find(':')), "comm/hang_report_test.cpp");
    EXPECT_FALSE(waits.ended);
    EXPECT_TRUE(read->calls.front().ended);
    EXPECT_EQ(read->calls.back().peer, 3);
    ring.remove_at_end();
  }
  EXPECT_FALSE(std::filesystem::exists(path));
  EXPECT_FALSE(read_ring(path));
}

}  // namespace
}  // namespace fourfold
