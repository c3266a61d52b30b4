// Which texts are a number, an integer, a truth value. Nothing is guessed.
#include "deck/values.hpp"

#include <cstdlib>

#include "deck_support.hpp"

namespace fourfold::test {

TEST(Values, Numbers) {
  const std::vector<std::pair<std::string, double>> legal = {{"1e-3", 1e-3}, {"1E-3", 1e-3}, {"3.0e-4", 3e-4},
                                                             {"1", 1},       {"+2.5", 2.5},  {".5", 0.5},
                                                             {"1.", 1},      {"0", 0},       {"1e+2", 100}};
  for (const auto& [text, value] : legal) {
    const ReadResult result = read_small({"optimizer.lr=" + text});
    EXPECT_TRUE(result.errors.empty()) << text << "\n" << numbered_list(result.errors);
    EXPECT_EQ(result.deck.optimizer.lr, value) << text;
  }
  for (const std::string text :
       {"\"1e-3\"", "\"1e-3 \"", "'1'",   "fast", "1e-3x", "0x10",   "1_000", "1,5",  ".nan", ".inf", "-.inf",
        "inf",      "nan",       "1e400", "true", "[1]",   "{a: 1}", "~",     "null", "1 2",  "+-1",  "."}) {
    EXPECT_EQ(read_small({"optimizer.lr=" + text}).errors.size(), 1u) << text;
  }
}

TEST(Values, Integers) {
  EXPECT_EQ(read_small({"run.steps=+12"}).deck.run.steps, 12);
  EXPECT_EQ(read_small({"run.seed=9223372036854775807"}).deck.run.seed, 9223372036854775807u);
  EXPECT_TRUE(read_small({"run.seed=9223372036854775807"}).errors.empty());
  for (const std::string text : {"1.0", "1e3", "1.5", "\"1\"", "0x10", "1_000", "9223372036854775808", "-1",
                                 "99999999999999999999", "many", "true", "", "[1]", "1e400"}) {
    EXPECT_EQ(read_small({"run.seed=" + text}).errors.size(), 1u) << text;
  }
  expect_fault({"run.steps=1e3"}, "run.steps", {"1e3 is not an integer", "type 1000"});
  expect_fault({"run.steps=2.5"}, "run.steps", {"2.5 is not an integer", "nearest: 3"});
  expect_fault({"model.layers=99999999999999999999"}, "model.layers", {"does not fit 64 bits", "1 to 10000"});
  expect_fault({"parallel.dense.row=4294967297"}, "parallel.dense.row", {"out of range", "1 to 1048576"});
}

TEST(Values, Booleans) {
  EXPECT_TRUE(read_small({"run.trace=true"}).deck.run.trace);
  EXPECT_FALSE(read_small({"run.trace=false"}).deck.run.trace);
  for (const std::string text :
       {"yes", "no", "on", "off", "True", "TRUE", "y", "1", "0", "\"true\"", "maybe", "[true]"}) {
    EXPECT_EQ(read_small({"run.trace=" + text}).errors.size(), 1u) << text;
  }
  expect_fault({"run.trace=yes"}, "run.trace", {"yes is not legal", "true or false", "type true"});
  expect_fault({"run.trace=Off"}, "run.trace", {"type false"});
}

TEST(Values, ChoicesWithACount) {
  using Kind = UpdateShard::Kind;
  EXPECT_EQ(read_small({"optimizer.shard=data"}).deck.optimizer.shard, (UpdateShard{Kind::data, 0}));
  EXPECT_EQ(read_small({"optimizer.shard={data_partial: 1}"}).deck.optimizer.shard,
            (UpdateShard{Kind::data_partial, 1}));
  for (const std::string text : {"dataa", "[data]", "{data: 2}", "{data_partial: 1, none: 2}", "{}", "2", "~"}) {
    expect_fault({"optimizer.shard=" + text}, "optimizer.shard", {"one of none, data, {data_partial: 1 or more}"});
  }
  expect_fault({"optimizer.shard=data_partial"}, "optimizer.shard", {"it takes a count"});
  expect_fault({"optimizer.shard={data_partial: 0}"}, "optimizer.shard", {"data_partial: 0 is out of range"});
  expect_fault({"optimizer.shard={data_partial: 1.5}"}, "optimizer.shard", {"1.5 is not an integer"});
}

TEST(Values, TextsAndLists) {
  EXPECT_EQ(read_small({"run.name=2026"}).deck.run.name, "2026");
  EXPECT_EQ(read_small({"data.train=[a.txt, \"b c.txt\"]"}).deck.data.train,
            (std::vector<std::string>{"a.txt", "b c.txt"}));
  expect_fault({"data.train=a.txt"}, "data.train", {"wanted: a list of texts", "type [a.txt]"});
  expect_fault({"data.train=[]"}, "data.train", {"0 entries"});
  expect_fault({"data.train=[[a]]"}, "data.train", {"entry 1"});
  expect_fault({"run.name=\"\""}, "run.name", {"wanted: a text"});
  expect_fault({"optimizer.betas=[0.9, 0.95, 0.99]"}, "optimizer.betas", {"3 entries", "2 numbers"});
  expect_fault({"optimizer.betas=[0.9, 1.0]"}, "optimizer.betas", {"entry 2", "0 <= x < 1"});
  expect_fault({"model.widths=[8]"}, "model.widths", {"2 or more"});
}

TEST(Values, Choices) {
  EXPECT_EQ(read_small({"model.ffn.kind=gelu_tanh"}).deck.model.ffn.kind, FeedForwardKind::gelu_tanh);
  EXPECT_EQ(read_small({"model.bias=qkv"}).deck.model.bias, BiasKind::qkv);
  EXPECT_EQ(read_small({"precision.compute=fp64"}).deck.precision, Precision::fp64);
  expect_fault({"precision.compute=fp23"}, "precision.compute", {"fp64, fp32, bf16", "nearest: fp32"});
  expect_fault({"precision.compute=FP32"}, "precision.compute", {"FP32 is not legal"});
}

TEST(Values, NumberLiteralsReadBack) {
  for (const double value : {0.0, 1.0, 0.1, 3e-4, 1e-8, 1e22, 1.7976931348623157e308, 5e-324, 123456789.125}) {
    const std::string text = number_literal(value);
    EXPECT_EQ(std::strtod(text.c_str(), nullptr), value) << text;
    EXPECT_NE(text.find('.'), std::string::npos) << text;
  }
}

}  // namespace fourfold::test
