// The trial table: what a killed writer leaves, several writers, outcomes.
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>

#include "base/error.hpp"
#include "comm/launch.hpp"
#include "h5/file.hpp"
#include "h5/transfer.hpp"
#include "mpi_test.hpp"
#include "trials/table.hpp"
#include "trials/table_file.hpp"

namespace fourfold::trials {
namespace {

using Outcome = TrialState::Outcome;

class Table : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / ("trials_test_" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string folder() const { return folder_.string(); }
  void append(const std::string& file, const std::string& text) const {
    std::ofstream(folder_ / file, std::ios::app | std::ios::binary) << text;
  }
  std::filesystem::path folder_;
};

TEST_F(Table, RowsComeBackAsTheyWere) {
  const Row row = {{"ranks", std::int64_t{4}},
                   {"step_seconds", 0.1 + 0.2},
                   {"none", std::numeric_limits<double>::quiet_NaN()},
                   {"layout", std::string("data 2 x row 2, \"quoted\"")}};
  {
    TrialTable table(folder(), "");
    table.attempt("a", 1, false);
    table.done("a", row);
  }
  const Row read = read_trials(folder()).at("a").row;
  ASSERT_EQ(read.size(), row.size());
  EXPECT_EQ(std::get<std::int64_t>(*find(read, "ranks")), 4);
  EXPECT_EQ(std::get<double>(*find(read, "step_seconds")), 0.1 + 0.2);  // to the bit
  EXPECT_TRUE(std::isnan(number(read, "none")));
  EXPECT_EQ(text(read, "layout"), "data 2 x row 2, \"quoted\"");
  EXPECT_EQ(find(read, "other"), nullptr);
}

TEST_F(Table, AnUnfinishedLineIsCutOffAndDoesNotCount) {
  {
    TrialTable table(folder(), "");
    table.attempt("a", 1, false);
    table.done("a", {{"x", std::int64_t{1}}});
  }
  append("trials.jsonl", R"({"trial":"b","done":[["x",)");
  EXPECT_EQ(read_trials(folder()).count("b"), 0u);
  {
    TrialTable table(folder(), "");
    table.failed("b", "why");
  }
  const auto states = read_trials(folder());
  EXPECT_EQ(states.at("a").outcome, Outcome::done);
  EXPECT_EQ(states.at("b").outcome, Outcome::failed);
  EXPECT_EQ(states.at("b").message, "why");
}

TEST_F(Table, DeathsInARowAreCountedAndEndWithAnOutcome) {
  TrialTable table(folder(), "");
  for (std::int64_t n = 1; n <= 3; ++n) {
    table.attempt("a", n, false);
    const TrialState state = read_trials(folder()).at("a");
    EXPECT_TRUE(state.died);
    EXPECT_EQ(state.attempts, n);
  }
  table.session("a", R"({"steps":3})");  // the fourth would have been stopped early
  TrialState state = read_trials(folder()).at("a");
  EXPECT_FALSE(state.died);
  EXPECT_EQ(state.attempts, 0);
  ASSERT_EQ(state.sessions.size(), 1u);
  table.attempt("a", 1, true);
  EXPECT_EQ(read_trials(folder()).at("a").sessions.size(), 1u);  // it goes on from there
  table.attempt("a", 2, false);
  EXPECT_TRUE(read_trials(folder()).at("a").sessions.empty());  // it began anew
  table.failed("a", "not finite");
  table.attempt("a", 1, false);  // a failed one that is tried again
  EXPECT_EQ(read_trials(folder()).at("a").outcome, Outcome::none);
  EXPECT_EQ(read_trials(folder()).at("a").attempts, 1);
}

TEST_F(Table, DoneWinsWhicheverJobWroteIt) {
  {
    TrialTable one(folder(), "ranks=1");
    TrialTable two(folder(), "ranks=2");
    one.attempt("a", 1, false);
    two.attempt("b", 1, false);
    one.done("a", {{"x", std::int64_t{1}}});
    two.attempt("a", 2, false);
    two.failed("a", "late");
  }
  EXPECT_EQ(read_trials(folder()).at("a").outcome, Outcome::done);
  EXPECT_TRUE(read_trials(folder()).at("b").died);
}

TEST_F(Table, TwoJobsDoNotWriteOneFile) {
  const TrialTable table(folder(), "ranks=2");
  EXPECT_THROW(TrialTable(folder(), "ranks=2"), Error);
  const TrialTable other(folder(), "ranks=4");
}

TEST_F(Table, ALineThatIsNoneIsNamed) {
  append("trials.jsonl", "{\"trial\":\"a\",\"attempt\":1,\"time\":1}\nnonsense\n");
  try {
    read_trials(folder());
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("trials.jsonl:2:"), std::string::npos) << error.what();
  }
}

TEST_F(Table, TheFileKeepsTimesApartAndAppearsWhole) {
  const Communicator alone(test::launch().world(), {0}, "table");
  const std::vector<Row> rows = {
      {{"ranks", std::int64_t{1}}, {"layout", std::string("one rank")}, {"step_seconds", 0.5}},
      {{"ranks", std::int64_t{2}}, {"layout", std::string("data 2")}, {"step_seconds", 0.25}, {"data:bytes", 64.0}}};
  const std::string name = folder() + "/table.h5";
  for (int time = 0; time < 2; ++time) {
    write_table(alone, name, rows, [](const std::string& column) { return column == "step_seconds"; });
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(folder_), {}), 1);  // no temporary file is left
  const h5::File file = h5::File::open_serial(name);
  const auto column = [&](const std::string& path) {
    const h5::Dataset dataset = file.dataset(path);
    std::vector<double> values(2);
    h5::read_shard(dataset, whole_shard({2}), {0, 2}, values.data(), {});
    return values;
  };
  EXPECT_EQ(column("/columns/ranks"), (std::vector<double>{1, 2}));
  EXPECT_EQ(column("/timing/step_seconds"), (std::vector<double>{0.5, 0.25}));
  EXPECT_TRUE(std::isnan(column("/columns/data:bytes")[0]));
  EXPECT_EQ(column("/columns/data:bytes")[1], 64);
  EXPECT_EQ(file.read_text("/texts/layout"), "one rank\ndata 2\n");
}

TEST(TrialKey, IsOfTheWholeText) {
  EXPECT_EQ(trial_key("abc"), trial_key("abc"));
  EXPECT_NE(trial_key("abc"), trial_key("abd"));
  EXPECT_EQ(trial_key("").size(), 16u);
}

}  // namespace
}  // namespace fourfold::trials
