// All ranks open the data and agree.
#include <gtest/gtest.h>

#include "base/error.hpp"
#include "comm/launch.hpp"
#include "d0.hpp"
#include "data/loader.hpp"
#include "files.hpp"
#include "mpi_test.hpp"

namespace fourfold {
namespace {

// Each rank opens what it is given; the message, or nothing.
struct Outcome {
  std::string message;
  Caller caller = Caller::all_ranks;
};

Outcome open(const std::string& path) {
  Deck deck = test::token_deck(8, 4, 1);
  deck.data.train = {path};
  try {
    const std::unique_ptr<Loader> loader = open_loader(deck, test::launch().world());
    EXPECT_GT(loader->samples(), 0);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::input);
    return {error.what(), error.caller()};
  }
  return {};
}

class OpenLoader : public testing::Test {
 protected:
  const int rank_ = test::launch().world().rank();
  const int last_ = test::launch().world().size() - 1;
  const test::Folder folder_{"open"};  // named by process: each rank has its own
};

TEST_F(OpenLoader, EqualDataOpens) {
  EXPECT_EQ(open(folder_.write("a.txt", std::string(100, 'x'))).message, "");
}

TEST_F(OpenLoader, AnErrorOfAllRanksIsOfAllRanks) {
  const Outcome outcome = open(folder_.path("missing.txt"));
  EXPECT_NE(outcome.message.find("missing.txt"), std::string::npos);
  EXPECT_EQ(outcome.caller, Caller::all_ranks);
}

TEST_F(OpenLoader, AnErrorOfOneRankIsItsOwn) {
  if (last_ == 0) GTEST_SKIP() << "NOT TESTED in this launch: those of 2 and 4 ranks run it";
  const std::string good = folder_.write("a.txt", std::string(100, 'x'));
  const Outcome outcome = open(rank_ == last_ ? folder_.path("missing.txt") : good);
  EXPECT_EQ(outcome.message.empty(), rank_ != last_);
  if (rank_ == last_) {
    EXPECT_EQ(outcome.caller, Caller::one_rank);
  }
}

TEST_F(OpenLoader, RanksWithOtherFilesAreNamed) {
  if (last_ == 0) GTEST_SKIP() << "NOT TESTED in this launch: those of 2 and 4 ranks run it";
  const Outcome outcome = open(folder_.write("a.txt", std::string(rank_ == last_ ? 101 : 100, 'x')));
  EXPECT_EQ(outcome.caller, Caller::all_ranks);
  EXPECT_EQ(outcome.message.find("ranks " + std::to_string(last_) + " see other data files"), 0u) << outcome.message;
}

}  // namespace
}  // namespace fourfold
