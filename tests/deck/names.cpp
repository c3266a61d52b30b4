#include "deck/names.hpp"

#include <set>

#include "deck/aliases.hpp"
#include "deck/keys.hpp"

#include "deck_support.hpp"

namespace fourfold::test {

TEST(Names, EditDistance) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("optimzer", "optimizer"), 1);
  EXPECT_EQ(edit_distance("hidden", "hiddne"), 1);  // neighbours swapped
  EXPECT_EQ(edit_distance("lr", "final"), edit_distance("final", "lr"));
}

TEST(Names, Nearest) {
  const std::vector<std::string> names = {"run", "model", "data", "optimizer"};
  EXPECT_EQ(nearest_name("modle", names), "model");
  EXPECT_EQ(nearest_name("optimiser", names), "optimizer");
  EXPECT_EQ(nearest_name("completely", names), "");
  EXPECT_EQ(nearest_name("x", names), "");
}

// Names of other programs: none is a key, all lead to one.
TEST(Aliases, LeadToKeys) {
  std::set<std::string> names;
  for (const Alias& alias : aliases()) {
    EXPECT_TRUE(names.insert(alias.name).second) << alias.name << " twice";
    EXPECT_NE(find_key(deck_keys(), alias.key), nullptr) << alias.name << ": " << alias.key;
    EXPECT_EQ(find_key(deck_keys(), alias.name), nullptr) << alias.name;
  }
  EXPECT_GT(names.size(), 60u);
}

TEST(Aliases, InMessages) {
  const auto message = [](const std::string& override) {
    const ReadResult result = read_small({override});
    EXPECT_EQ(result.errors.size(), 1u) << numbered_list(result.errors);
    return result.errors.empty() ? "" : result.errors[0].path + ": " + result.errors[0].message;
  };
  EXPECT_EQ(message("model.num_layers=3"),
            "model.num_layers: unknown key; Megatron-LM's num_layers is model.layers here");
  EXPECT_EQ(message("tensor_model_parallel_size=2"),
            "tensor_model_parallel_size: unknown key; Megatron-LM's tensor_model_parallel_size is parallel.dense.row "
            "here");
  EXPECT_EQ(message("parallel.tensor-model-parallel-size=2"),
            "parallel.tensor-model-parallel-size: unknown key; Megatron-LM's tensor_model_parallel_size is "
            "parallel.dense.row here");
  EXPECT_EQ(message("parallel.pp=2"), "parallel.pp: unknown key; parallel.pp is parallel.stages here");
  EXPECT_EQ(message("checkpoint.async=true"),
            "checkpoint.async: unknown key; torchtitan's checkpoint.async is checkpoint.mode here (type async)");
  EXPECT_EQ(message("training.global_batch_size=8"),
            "training: unknown key; Megatron-LM's global_batch_size is batch.global here");
  EXPECT_EQ(message("training={seq_len: 8, nothing: 3}"),
            "training: unknown key; torchtitan's seq_len is model.sequence here");
  EXPECT_EQ(message("optimizer.warmup=3"),
            "optimizer.warmup: unknown key; it belongs elsewhere: optimizer.schedule.warmup");
}

TEST(Aliases, OfValues) {
  expect_fault({"precision.compute=fp16"}, "precision.compute",
               {"wanted: one of fp64, fp32, bf16", "no fp16", "type bf16"});
  expect_fault({"precision=fp16"}, "precision", {"is a block of keys", "no fp16", "type bf16", "under compute"});
  expect_fault({"precision=bf16"}, "precision", {"write precision: {compute: bf16}"});
  expect_fault({"optimizer.kind=adam"}, "optimizer.kind", {"type adamw"});
}

TEST(Names, Divisors) {
  EXPECT_EQ(divisors(1), (std::vector<std::int64_t>{1}));
  EXPECT_EQ(divisors(36), (std::vector<std::int64_t>{1, 2, 3, 4, 6, 9, 12, 18, 36}));
  for (std::int64_t n = 1; n <= 500; ++n) {
    std::vector<std::int64_t> expected;
    for (std::int64_t d = 1; d <= n; ++d) {
      if (n % d == 0) expected.push_back(d);
    }
    EXPECT_EQ(divisors(n), expected) << n;
  }
}

}  // namespace fourfold::test
