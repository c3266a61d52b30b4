// The study block: values, and faults with their places, all at once.
#include <gtest/gtest.h>

#include <algorithm>

#include "deck/study.hpp"
#include "study/presets.hpp"

namespace fourfold {
namespace {

const char* const kDeck =
    "run: {steps: 4}\n"
    "model: {kind: mlp, widths: [8, 8]}\n"
    "data: {kind: synthetic, samples: 96}\n"
    "batch: {global: 24}\n";

StudyRead read(const std::string& block, const std::vector<std::string>& overrides = {}) {
  return read_study(block + kDeck, "s.yaml", overrides, study::strategy_names());
}

std::string all(const StudyRead& read) {
  return numbered_list(read.errors);
}

TEST(StudyBlock, IsReadAndHasDefaults) {
  const StudyRead result = read(
      "study:\n  name: big\n  kind: strategies\n  ranks: [1, 2]\n  strategies: [ddp, zero1]\n  repeats: 2\n"
      "  target_loss: 0.5\n  sweep: {optimizer: {lr: [1e-3, 2e-3]}, model.widths: [[8, 8], [8, 4, 8]]}\n",
      {"study.repeats=5", "run.steps=9"});
  ASSERT_TRUE(result.errors.empty()) << all(result);
  EXPECT_EQ(result.study.folder, "runs/big");
  EXPECT_EQ(result.study.kind, StudyKind::strategies);
  EXPECT_EQ(result.study.repeats, 5);
  EXPECT_EQ(result.study.target_loss, 0.5);
  EXPECT_EQ(result.study.seeds, std::vector<std::int64_t>{1234});
  ASSERT_EQ(result.study.sweep.size(), 2u);
  EXPECT_EQ(result.study.sweep[0].path, "optimizer.lr");
  EXPECT_EQ(result.study.sweep[0].values[1], "2e-3");
  EXPECT_EQ(result.study.sweep[1].values[1], "[8, 4, 8]");
  EXPECT_EQ(result.deck.run.steps, 9);
  EXPECT_EQ(result.overrides, std::vector<std::string>{"run.steps=9"});
}

TEST(StudyBlock, EveryFaultIsSaidAtOnceWithItsPlace) {
  const StudyRead result = read(
      "study:\n"
      "  kind: scalling\n"                // 2
      "  ranks: [1, 2, 2]\n"              // 3
      "  repeats: 0\n"                    // 4
      "  strategies: [ddp, zero2]\n"      // 5
      "  colour: red\n"                   // 6
      "  sweep:\n"                        // 7
      "    optimizer.lrr: [1]\n"          // 8
      "    optimizer.lr: [1e-3, fast]\n"  // 9
      "    run.seed: [1, 2]\n"            // 10
      "    parallel.dense.row: [1, 2]\n"  // 11
      "    model.dropout: 0.1\n"          // 12
      "run:  {stepz: 4}\n"                // 13
      "model: {kind: mlp, widths: [8, 8]}\n");
  std::vector<int> lines;
  for (const DeckError& error : result.errors) lines.push_back(error.line);
  for (const int line : {2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13}) {
    EXPECT_EQ(std::count(lines.begin(), lines.end(), line), 1) << "line " << line << "\n" << all(result);
  }
  EXPECT_TRUE(std::is_sorted(lines.begin(), lines.end())) << all(result);
  EXPECT_NE(all(result).find("zero2 is no strategy; nearest: zero1"), std::string::npos) << all(result);
  EXPECT_NE(all(result).find("s.yaml:9:26: study.sweep.optimizer.lr: fast is not legal"), std::string::npos)
      << all(result);
  EXPECT_NE(all(result).find("s.yaml:2:3: study.kind: scalling is not legal"), std::string::npos) << all(result);
}

TEST(StudyBlock, RulesThatSpanKeys) {
  EXPECT_NE(all(read("")).find("study: is missing"), std::string::npos);
  EXPECT_NE(all(read("study: {kind: strategies}\n")).find("wants study.strategies"), std::string::npos);
  EXPECT_NE(all(read("study: {kind: scaling, ranks: [4]}\n")).find("two rank counts"), std::string::npos);
  EXPECT_NE(all(read("study: {scaling: weak, ranks: [1, 2]}\n")).find("is of study.kind: scaling"), std::string::npos);
  EXPECT_NE(all(read("study: {kind: scaling, scaling: weak, ranks: [1, 2], sweep: {batch.global: [1, 2]}}\n"))
                .find("grows with the ranks"),
            std::string::npos);
  EXPECT_NE(all(read("study: {ranks: [1]}\n", {"study.repeat=3"})).find("nearest: study.repeats"), std::string::npos);
}

TEST(StudyBlock, OtherCommandsRefuseIt) {
  const ReadResult result = read_deck("study: {ranks: [1]}\n" + std::string(kDeck), "s.yaml");
  ASSERT_EQ(result.errors.size(), 1u);
  EXPECT_NE(result.errors[0].message.find("fourfold study"), std::string::npos) << result.errors[0].message;
}

}  // namespace
}  // namespace fourfold
