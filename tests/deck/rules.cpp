// One test a rule of model_rules.cpp, pipeline_rules.cpp and grid_rules.cpp; those of arithmetic against a brute-force
// statement of the rule.
#include <regex>
#include <set>

#include "deck/derive.hpp"
#include "deck/names.hpp"
#include "deck_support.hpp"

namespace fourfold::test {

using std::to_string;

std::string entry(const std::string& key, std::int64_t value) {
  return key + "=" + to_string(value);
}

// The integers after "legal: " in the first message of this key.
std::set<std::int64_t> legal_values(const ReadResult& result, const std::string& path) {
  std::set<std::int64_t> values;
  for (const DeckError& error : result.errors) {
    if (error.path != path) continue;
    const std::size_t begin = error.message.find("legal: ");
    if (begin == std::string::npos) return values;
    std::istringstream list(error.message.substr(begin + 7, error.message.find(';', begin) - begin - 7));
    std::string value;
    while (std::getline(list, value, ',')) values.insert(std::stoll(value));
    return values;
  }
  return values;
}

bool has_fault(const ReadResult& result, const std::string& path) {
  for (const DeckError& error : result.errors) {
    if (error.path == path) return true;
  }
  return false;
}

TEST(Rules, HeadsDivideHiddenOrHeadDimIsGiven) {
  expect_fault({"model.heads=5"}, "model.head_dim", {"5", "32", "1, 2, 4, 8, 16, 32"});
  expect_legal({"model.heads=5", "model.head_dim=6"});
}

TEST(Rules, HeadsAreNotTooWide) {
  expect_fault({"model.heads=4096", "model.head_dim=4096"}, "model.head_dim", {"too wide", "up to 1024"});
}

TEST(Rules, RopeNeedsAnEvenHead) {
  expect_fault({"model.head_dim=7"}, "model.head_dim", {"7 must be even", "nearest: 8"});
  expect_legal({"model.head_dim=7", "model.positions=learned"});
  expect_legal({"model.head_dim=6"});
}

TEST(Rules, KvHeadsDivideHeads) {
  for (std::int64_t heads : {1, 4, 6, 12}) {
    for (std::int64_t kv_heads = 1; kv_heads <= 13; ++kv_heads) {
      const ReadResult result =
          read_small({entry("model.heads", heads), "model.head_dim=8", entry("model.kv_heads", kv_heads)});
      EXPECT_EQ(has_fault(result, "model.kv_heads"), heads % kv_heads != 0) << heads << " " << kv_heads;
      if (heads % kv_heads != 0) {
        const auto divisors_of_heads = divisors(heads);
        EXPECT_EQ(legal_values(result, "model.kv_heads"),
                  std::set<std::int64_t>(divisors_of_heads.begin(), divisors_of_heads.end()));
      }
    }
  }
}

TEST(Rules, RowSplitsHeadsAndKvHeads) {
  for (std::int64_t heads : {4, 6, 12}) {
    for (const std::int64_t kv_heads : divisors(heads)) {
      for (std::int64_t row = 1; row <= 12; ++row) {
        const ReadResult result = read_small({entry("model.heads", heads), "model.head_dim=8",
                                              entry("model.kv_heads", kv_heads), entry("parallel.dense.row", row)},
                                             row);
        const bool heads_fit = heads % row == 0;
        const bool kv_fit = row % kv_heads == 0 || kv_heads % row == 0;
        EXPECT_EQ(has_fault(result, "parallel.dense.row"), !heads_fit) << heads << " " << row;
        EXPECT_EQ(has_fault(result, "model.kv_heads"), !kv_fit) << heads << " " << kv_heads << " " << row;
        EXPECT_EQ(result.errors.size(), std::size_t{!heads_fit} + std::size_t{!kv_fit});
        // What the message calls legal is legal.
        for (const std::int64_t legal : legal_values(result, "model.kv_heads")) {
          EXPECT_TRUE(heads % legal == 0 && (legal % row == 0 || row % legal == 0));
        }
        for (const std::int64_t legal : legal_values(result, "parallel.dense.row")) EXPECT_EQ(heads % legal, 0);
      }
    }
  }
}

TEST(Rules, LossOfATransformer) {
  expect_fault({"model.loss=squared_error"}, "model.loss", {"mlp, residual or embedding", "cross_entropy"});
  expect_legal({"model.loss=squared_error"}, 1, kEmbeddingDeck);
}

// Keys that the kind of model does not look at: refused where they ask for something, legal at their defaults.
TEST(Rules, KeysOfOtherKinds) {
  const std::vector<std::string> of_transformers = {"model.heads=2",
                                                    "model.kv_heads=1",
                                                    "model.head_dim=2",
                                                    "model.norm=layer",
                                                    "model.positions=none",
                                                    "model.rope_theta=100.0",
                                                    "model.norm_eps=1.0e-6",
                                                    "model.bias=all",
                                                    "model.ffn.kind=swiglu",
                                                    "attention.split=col",
                                                    "model.rope_scaling.kind=linear"};
  const std::vector<std::string> of_blocks = {"model.layers=2", "model.ffn.hidden=8",
                                              "model.init.scale_residual=false"};
  const std::vector<std::string> of_tokens = {"model.vocab=257",
                                              "model.sequence=4",
                                              "model.tie_embeddings=true",
                                              "model.dropout=0.1",
                                              "parallel.sequence_shard=true",
                                              "parallel.depth_splits=sequence"};
  const std::vector<std::string> of_mlps = {"model.activation=gelu", "model.bias_terms=false"};
  const auto key = [](const std::string& entry) { return entry.substr(0, entry.find('=')); };
  for (const std::string& entry : of_transformers) {
    expect_legal({entry});
    expect_fault({entry}, key(entry), {"no effect on model.kind mlp", "only on transformer;"}, 1, kMlpDeck);
    expect_fault({entry}, key(entry), {"no effect on model.kind embedding"}, 1, kEmbeddingDeck);
  }
  for (const std::string& entry : of_transformers) {
    expect_fault({entry}, key(entry), {"no effect on model.kind residual"}, 1, kResidualDeck);
  }
  for (const std::string& entry : of_blocks) {
    expect_legal({entry});
    expect_legal({entry}, 1, kResidualDeck);
    expect_fault({entry}, key(entry), {"no effect on model.kind mlp", "transformer, residual"}, 1, kMlpDeck);
  }
  for (const std::string& entry : of_tokens) {
    expect_legal({entry});
    expect_legal({entry}, 1, kEmbeddingDeck);
    expect_fault({entry}, key(entry), {"no effect on model.kind mlp", "transformer, embedding"}, 1, kMlpDeck);
    expect_fault({entry}, key(entry), {"no effect on model.kind residual"}, 1, kResidualDeck);
  }
  expect_fault({"model.hidden=64"}, "model.hidden", {"no effect on model.kind mlp", "embedding, residual"}, 1,
               kMlpDeck);
  for (const std::string& entry : of_mlps) {
    expect_legal({entry}, 1, kMlpDeck);
    expect_legal({entry}, 1, kResidualDeck);
    expect_fault({entry}, key(entry), {"no effect on model.kind transformer", "only on mlp, residual"});
    expect_fault({entry}, key(entry), {"no effect on model.kind embedding"}, 1, kEmbeddingDeck);
  }
  expect_fault({"model.widths=[4, 2]"}, "model.widths", {"no effect on model.kind embedding"}, 1, kEmbeddingDeck);
  expect_legal({"attention.split=row", "parallel.sequence_shard=false", "model.dropout=0", "model.norm=rms"}, 1,
               kMlpDeck);
}

TEST(Rules, Experts) {
  expect_fault({"model.moe={experts: 4, top_k: 5}"}, "model.moe.top_k", {"5", "1 to 4"});
  expect_legal({"model.moe={experts: 4, top_k: 4}"});
  expect_fault({"model.moe={experts: 4, every: 3}"}, "model.moe.every", {"3", "1 to 2"});
  expect_legal({"model.moe={experts: 4, every: 2}"});
  expect_fault({"model.moe={top_k: 1}"}, "model.moe.experts", {"missing"});
  expect_fault({"model.moe={}"}, "model.moe", {"empty block", "every, experts, top_k, hidden, score"});
  expect_fault({"model.moe={experts: 4}"}, "model.moe", {"transformer or residual"}, 1, kEmbeddingDeck);
  expect_legal({"model.moe={experts: 4}"}, 1, kResidualDeck);
  EXPECT_EQ(read_small({"model.moe={experts: 4}", "model.ffn.hidden=48"}).deck.model.moe->hidden, 48);
}

TEST(Rules, ExpertsAreCutByQuotientAndRemainder) {
  expect_legal({"model.moe={experts: 6}", "parallel.moe={expert: 4}"}, 4);
  expect_fault({"model.moe={experts: 2}", "parallel.moe={expert: 4}"}, "parallel.moe.expert",
               {"4 must be at most model.moe.experts 2", "legal: 1 to 2; nearest: 2"}, 4);
  expect_legal({"model.moe={experts: 8}", "parallel.moe={expert: 4}"}, 4);
}

TEST(Rules, GroupsOfExperts) {
  expect_fault({"model.moe={experts: 6, groups: 4}"}, "model.moe.groups", {"legal: 1, 2, 3, 6"});
  expect_fault({"model.moe={experts: 6, groups: 3, top_groups: 4}"}, "model.moe.top_groups", {"1 to 3; nearest: 3"});
  expect_fault({"model.moe={experts: 6, groups: 3, top_groups: 1, top_k: 3}"}, "model.moe.top_k",
               {"the 2 experts of model.moe.top_groups", "1 to 2"});
  expect_legal({"model.moe={experts: 6, groups: 3, top_groups: 2, top_k: 4}"});
}

TEST(Rules, WhatExpertsDoWithBiases) {
  expect_fault({"model.moe={experts: 4, shared_gate: true}"}, "model.moe.shared_gate", {"shared_hidden"});
  expect_legal({"model.moe={experts: 4, shared_gate: true, shared_hidden: 8}"});
  expect_fault({"model.moe={experts: 4, permute: fused_weight}", "model.bias=all"}, "model.moe.permute",
               {"model.bias: none or qkv"});
  expect_legal({"model.moe={experts: 4, permute: fused_weight}", "model.bias=qkv"});
  expect_fault({"model.moe={experts: 4, permute: fused_weight}"}, "model.moe.permute", {"model.bias_terms: false"}, 1,
               kResidualDeck);
  expect_legal({"model.moe={experts: 4, permute: fused_weight}", "model.bias_terms=false"}, 1, kResidualDeck);
}

TEST(Rules, ExpertsOnExactNumbers) {
  const std::string snap = "numerics.snap=8", fp64 = "precision.compute=fp64";
  expect_legal({"model.moe={experts: 4, top_k: 1}", snap, fp64}, 1, kResidualDeck);
  for (const auto& [entry, key] : {std::pair("top_k: 2", "top_k"),
                                   {"top_k: 1, renormalize: false", "renormalize"},
                                   {"top_k: 1, balance: {aux: 0.01}", "balance.aux"},
                                   {"top_k: 1, balance: {z: 0.01}", "balance.z"},
                                   {"top_k: 1, shared_hidden: 4, shared_gate: true", "shared_gate"}}) {
    expect_fault({std::string("model.moe={experts: 4, ") + entry + "}", snap, fp64}, std::string("model.moe.") + key,
                 {"numerics.snap"}, 1, kResidualDeck);
  }
}

// All forwards before the first backward: one micro-batch, or a schedule that runs so.
TEST(Rules, GlobalBatchNeedsAllForwardsFirst) {
  const std::string moe = "model.moe={experts: 4, balance: {aux: 0.01, scope: global_batch}}";
  for (const std::string schedule : {"gpipe", "layered", "1f1b", "zero_bubble", "list"}) {
    const bool legal = schedule == "gpipe" || schedule == "layered";
    const std::vector<std::string> deck = {moe, "parallel.schedule=" + schedule,
                                           schedule == "list" ? "parallel.schedule_list=['F0 B0']" : "run.seed=1"};
    std::vector<std::string> accumulated = deck;
    accumulated.push_back("batch={global: 8, micro_batches: 2}");
    expect_legal(deck);
    if (legal) {
      expect_legal(accumulated);
    } else {
      expect_fault(accumulated, "model.moe.balance.scope", {"gpipe or layered", "sequence or micro_batch", schedule});
    }
  }
  expect_legal({"model.moe={experts: 4, balance: {scope: global_batch}}", "batch={global: 8, micro_batches: 2}"});
}

TEST(Rules, SumsOverCopiesOfTheExpertGrid) {
  const std::string moe = "model.moe={experts: 8}", partial = "optimizer.shard={data_partial: 2}";
  expect_legal({moe, partial, "parallel.moe.expert=2"}, 4);
  expect_fault({moe, partial, "parallel.moe.expert=4"}, "optimizer.shard", {"parallel.moe.replica 1", "legal: 1"}, 4);
  const std::string torus = "comm.gradient={algorithm: torus2d, dims: [3, 2]}", six = "batch.global=6";
  expect_legal({moe, torus, six, "parallel.moe.expert=3"}, 6);
  expect_legal({moe, torus, six, "parallel.moe.expert=6"}, 6);
  expect_fault({moe, torus, six, "parallel.moe.expert=2"}, "comm.gradient.dims", {"expert x row x col = 2"}, 6);
}

TEST(Rules, ParameterCountFits) {
  expect_fault({"model.layers=10000", "model.hidden=4194304", "model.heads=1024"}, "model", {"2e17"});
}

TEST(Rules, TextNeedsTokensAndTheirVocabulary) {
  expect_fault({"model.vocab=256"}, "model.vocab", {"256 is too small", "257 or more"});
  expect_legal({"model.vocab=257"});
  expect_legal({"model.vocab=100", "data.train=[corpus.bin]"});  // what it holds is seen when it is opened
  expect_legal({"model.vocab=100", "data.raw=u16"});
  expect_legal({"model.vocab=5", "data.kind=synthetic", "data.samples=8"});
  expect_fault({"data={kind: files, train: [corpus.txt]}"}, "data.kind", {"synthetic"}, 1, kMlpDeck);
  expect_fault({"data={kind: synthetic, synthetic: teacher, samples: 8}"}, "data.synthetic", {"mlp", "dyadic"});
  expect_legal({"data.synthetic=teacher"}, 1, kMlpDeck);
  expect_legal({"data.synthetic=teacher"}, 1, kResidualDeck);
  expect_fault({"data={kind: files, train: [corpus.txt]}"}, "data.kind", {"residual takes none"}, 1, kResidualDeck);
}

TEST(Rules, CorporaAndDocuments) {
  expect_fault({"data={train: [a.bin, b.bin], weights: [1]}"}, "data.weights", {"1 weights for 2 entries"});
  expect_fault({"data={train: [a.bin], weights: [0]}"}, "data.weights", {"1"});
  expect_legal({"data={train: [a.bin, b.bin], weights: [7, 3]}"});
  expect_fault({"data.mask_document_ends=true"}, "data.mask_document_ends", {"needs data.end_of_document"});
  expect_fault({"data.end_of_document=257"}, "data.end_of_document", {"not below model.vocab 257", "0 to 256"});
  expect_legal({"data.mask_document_ends=true", "data.end_of_document=256"});
}

TEST(Rules, ValidationData) {
  expect_fault({"data.valid=[v.txt]", "data.valid_fraction=0.1"}, "data.valid_fraction", {"take one away"});
  expect_fault({"eval.every=5"}, "eval.every", {"data.valid_fraction"});
  expect_legal({"eval.every=5", "data.valid_fraction=0.1"});
  expect_legal({"eval.every=5", "data.valid=[v.txt]"});
  expect_fault({"eval.every=5", "data.kind=synthetic", "data.samples=4"}, "eval.every", {"data.valid_samples"});
  expect_legal({"eval.every=5", "data.kind=synthetic", "data.samples=4", "data.valid_samples=4"});
  expect_fault({"data.valid_fraction=1.0"}, "data.valid_fraction", {"0 <= x < 1"});
}

TEST(Rules, WarmupIsWithinTheSteps) {
  expect_fault({"optimizer.schedule.warmup=11"}, "optimizer.schedule.warmup", {"0 to 10", "nearest: 10"});
  expect_legal({"optimizer.schedule.warmup=10"});
}

TEST(Rules, SnapNeedsFp64) {
  expect_fault({"numerics.snap=8"}, "numerics.snap", {"fp64"});
  expect_legal({"numerics.snap=8", "precision.compute=fp64"});
  expect_legal({"numerics.snap=0"});
}

TEST(Rules, RangesOfSingleKeys) {
  expect_fault({"model.dropout=1"}, "model.dropout", {"0 <= x < 1"});
  expect_fault({"optimizer.clip=-0.5"}, "optimizer.clip", {"0 or more"});
  expect_fault({"optimizer.eps=0"}, "optimizer.eps", {"above 0"});
  expect_fault({"model.layers=0"}, "model.layers", {"1 to 10000", "nearest: 1"});
}

TEST(Rules, StagesAreNotMoreThanUnits) {
  expect_fault({"parallel.stages=5"}, "parallel.stages",
               {"5 is more than the model's 4 units (embedding, 2 blocks, head)", "legal: 1 to 4; nearest: 4"}, 5);
  expect_legal({"parallel.stages=4"}, 4);
  expect_fault({"parallel.stages=3"}, "parallel.stages", {"the model's 2 units (its matrices)", "1 to 2"}, 3, kMlpDeck);
  expect_fault({"parallel.stages=4"}, "parallel.stages", {"2 units (embedding, head)"}, 4, kEmbeddingDeck);
  // Grids with other stages are proposed only where the lists of the deck fit them.
  const std::vector<std::string> three = {"parallel.stages=3", "parallel.cuts=[1,1,2]"};
  const ReadResult result = read_small(three, 4);
  ASSERT_EQ(result.errors.size(), 1u) << numbered_list(result.errors);
  EXPECT_NE(result.errors[0].message.find("no grid of 4 ranks fits"), std::string::npos) << result.errors[0].message;
}

TEST(Rules, InterleaveNeedsChunks) {
  for (const std::string schedule : {"gpipe", "1f1b", "layered", "zero_bubble", "geo"}) {
    const std::string extra = schedule == "geo" ? "parallel.extra_in_flight=[1]" : "parallel.extra_in_flight=[]";
    expect_fault({"parallel.stages=2", "parallel.interleave=2", "parallel.schedule=" + schedule, extra},
                 "parallel.interleave", {"2 has no meaning for parallel.schedule " + schedule, "interleaved, modular"},
                 2);
  }
  for (const std::string schedule : {"interleaved", "modular"}) {
    expect_legal({"parallel.stages=2", "parallel.interleave=2", "parallel.schedule=" + schedule}, 2);
    if (schedule == "modular") expect_legal({"parallel.stages=2", "parallel.schedule=" + schedule}, 2);
    expect_fault({"parallel.stages=2", "parallel.interleave=3", "parallel.schedule=" + schedule}, "parallel.interleave",
                 {"3 x stages 2 = 6 chunks", "4 units", "legal: 1 to 2; nearest: 2"}, 2);
  }
}

// What would be 1f1b by another name, and what to type instead.
TEST(Rules, InterleavedWantsTwoChunks) {
  expect_fault({"parallel.stages=2", "parallel.schedule=interleaved"}, "parallel.schedule",
               {"wants parallel.interleave of 2 or more", "type 1f1b, or parallel.interleave=2"}, 2);
  expect_legal({"parallel.stages=2", "parallel.schedule=1f1b"}, 2);
  expect_legal({"parallel.stages=2", "parallel.schedule=interleaved", "parallel.interleave=2"}, 2);
  const ReadResult four = read_small({"parallel.stages=4", "parallel.schedule=interleaved"}, 4);
  ASSERT_EQ(four.errors.size(), 1u) << numbered_list(four.errors);
  EXPECT_TRUE(four.errors[0].message.ends_with("type 1f1b")) << four.errors[0].message;
}

// Keys that the schedule would pass over in silence; lists that say nothing stay.
TEST(Rules, KeysOfOtherSchedules) {
  for (const std::string schedule : {"1f1b", "gpipe", "zero_bubble"}) {
    const std::vector<std::string> deck = {"parallel.stages=2", "parallel.schedule=" + schedule};
    const auto with = [&](const std::string& more) {
      std::vector<std::string> list = deck;
      list.push_back(more);
      return list;
    };
    expect_fault(with("parallel.extra_in_flight=[1]"), "parallel.extra_in_flight",
                 {"for parallel.schedule geo only, and the schedule is " + schedule, "type parallel.schedule=geo"}, 2);
    expect_fault(with("parallel.schedule_list=[F0 B0, F0 B0]"), "parallel.schedule_list",
                 {"for parallel.schedule list only", "type parallel.schedule=list"}, 2);
    expect_legal(with("parallel.extra_in_flight=[0]"), 2);
    expect_legal(with("parallel.schedule_list=[]"), 2);
  }
  expect_legal({"parallel.stages=2", "parallel.schedule=geo", "parallel.extra_in_flight=[1]"}, 2);
}

TEST(Rules, SublayersOfBlocksThatRunAgainWhole) {
  const std::string part = "parallel.activations.sublayers=[attention]";
  expect_fault({part, "parallel.activations.default=recompute"}, "parallel.activations.sublayers",
               {"has no meaning: parallel.activations.default: recompute", "type parallel.activations.default=keep"});
  expect_legal({part, "parallel.activations.default=keep"});
  expect_fault({part, "parallel.activations.recompute=[0-1]"}, "parallel.activations.sublayers",
               {"fewer layers in parallel.activations.recompute"});
  expect_legal({part, "parallel.activations.recompute=[0]"});
  expect_legal({part, "parallel.activations.default=recompute", "parallel.activations.keep=[1]"});
  expect_legal({part, "parallel.activations.default=offload"});
}

// Following what a message says leads somewhere.
TEST(Rules, AdviceOnListsCanBeFollowed) {
  const std::vector<std::string> geo = {"parallel.stages=4", "parallel.schedule=geo"};
  const auto with = [](std::vector<std::string> list, const std::string& more) {
    list.push_back(more);
    return list;
  };
  expect_fault(with(geo, "parallel.extra_in_flight=2"), "parallel.extra_in_flight",
               {"one a boundary between stages, such as [0, 2, 0] for 4 stages"}, 4);
  expect_legal(with(geo, "parallel.extra_in_flight=[0, 2, 0]"), 4);
  for (const std::string keeping : {"recompute", "offload"}) {
    const std::string key = "parallel.activations." + keeping;
    expect_fault({key + "=all"}, key, {"for all of them parallel.activations.default=" + keeping});
    expect_fault({key + "=[all]"}, key,
                 {"legal: 0 to 1", "for all layers type parallel.activations.default=" + keeping});
    expect_legal({"parallel.activations.default=" + keeping});
    expect_legal({key + "=[0]"});
  }
  expect_fault({"parallel.cuts=4"}, "parallel.cuts", {"one a chunk (stages x interleave), such as [2, 2, 2]"});
  // No list of one is proposed where it would be refused.
  const ReadResult dims = read_small({"comm.gradient.dims=4"});
  ASSERT_EQ(dims.errors.size(), 1u);
  EXPECT_EQ(dims.errors[0].message.find("type ["), std::string::npos) << dims.errors[0].message;
}

TEST(Rules, CutsTakeEveryUnitOnce) {
  expect_legal({"parallel.stages=2", "parallel.cuts=[1,3]"}, 2);
  expect_legal({"parallel.stages=2", "parallel.interleave=2", "parallel.schedule=modular", "parallel.cuts=[1,1,1,1]"},
               2);
  expect_fault({"parallel.stages=2", "parallel.cuts=[1,2]"}, "parallel.cuts",
               {"sums up to 3, but the model has 4 units (embedding, 2 blocks, head)"}, 2);
  expect_fault({"parallel.stages=2", "parallel.cuts=[4]"}, "parallel.cuts",
               {"has 1 entries for 2 chunks (stages x interleave)"}, 2);
  expect_fault({"parallel.stages=2", "parallel.cuts=[4,0]"}, "parallel.cuts", {"1 to 10000"}, 2);
  expect_fault({"parallel.stages=2", "parallel.schedule=layered", "parallel.cuts=[2,2]"}, "parallel.cuts",
               {"has no meaning for parallel.schedule layered"}, 2);
}

TEST(Rules, SchedulesGetTheirLists) {
  expect_fault({"parallel.stages=3", "parallel.schedule=geo"}, "parallel.extra_in_flight",
               {"must be given for geo; type 2, one a boundary between stages"}, 3);
  expect_fault({"parallel.stages=3", "parallel.schedule=geo", "parallel.extra_in_flight=[1]"},
               "parallel.extra_in_flight", {"has 1 entries; type 2"}, 3);
  expect_legal({"parallel.stages=3", "parallel.schedule=geo", "parallel.extra_in_flight=[1,0]"}, 3);
  expect_legal({"parallel.schedule=geo"}, 1);
  expect_fault({"parallel.stages=2", "parallel.schedule=list"}, "parallel.schedule_list",
               {"must be given for list; type 2, one a stage"}, 2);
  expect_fault({"parallel.stages=2", "parallel.schedule=list", "parallel.schedule_list=[F0 B0]"},
               "parallel.schedule_list", {"has 1 entries; type 2"}, 2);
  expect_legal({"parallel.stages=2", "parallel.schedule=list", "parallel.schedule_list=[F0 B0, F0 B0]"}, 2);
}

TEST(Rules, StageGrids) {
  const std::string grids = "parallel.stage_grids=[{data: 3}, {row: 2, col: 1}, {}]";
  expect_legal({grids, "batch.micro_batches=2"}, 6);
  const ReadResult read = read_small({grids, "batch.global=30", "batch.micro_batches=3"}, 6);
  ASSERT_TRUE(read.errors.empty()) << numbered_list(read.errors);
  EXPECT_EQ(read.deck.parallel.stage_grids, (std::vector<DenseShape>{{3, 1, 1, 1}, {1, 1, 2, 1}, {}}));
  EXPECT_EQ(read.deck.parallel.stages, 3);
  EXPECT_EQ(deck_ranks(read.deck), 6);
  EXPECT_EQ(read.deck.batch.micro, 0);
  EXPECT_EQ(stage_shape(read.deck, 1).dense, (DenseShape{1, 1, 2, 1}));
  // Ten sequences over three coordinates; an own deck of a place.
  Coordinates here;
  here.data = 1;
  EXPECT_EQ(deck_of_place(read.deck, here).batch.micro, 3);
  here.data = 0;
  EXPECT_EQ(deck_of_place(read.deck, here).batch.micro, 4);
  EXPECT_EQ(deck_of_place(read.deck, here).parallel.dense, (DenseShape{3, 1, 1, 1}));

  expect_fault({"parallel.stage_grids=[{rows: 2}]"}, "parallel.stage_grids",
               {"entry 1: rows is no axis", "nearest: row", "data, depth, row, col"}, 2);
  expect_fault({"parallel.stage_grids=[{row: 2}, {row: 0}]"}, "parallel.stage_grids",
               {"entry 2: row: 0 is out of range", "nearest: 1"}, 3);
  expect_fault({"parallel.stage_grids=[{row: 2, row: 1}]"}, "parallel.stage_grids", {"row is given twice"}, 2);
  expect_fault({"parallel.stage_grids=[2, 1]"}, "parallel.stage_grids", {"entry 1: 2 is not legal"}, 3);
  expect_fault({"parallel.stage_grids={row: 2}"}, "parallel.stage_grids", {"wanted: a list of grids such as"}, 2);
  expect_fault({grids}, "parallel.stage_grids",
               {"3 + 2 + 1 = 6 ranks, but there are 7", "such as [{data: 3}, {data: 2}, {data: 2}]"}, 7);
  expect_fault({grids}, "parallel.stage_grids", {"but there are 2; it needs a rank a stage"}, 2);
  expect_fault({grids, "parallel.stages=2"}, "parallel.stages", {"2 is not the number of grids", "type 3"}, 6);
  expect_legal({grids, "parallel.stages=3"}, 6);
  expect_fault({grids, "parallel.dense.row=2"}, "parallel.dense", {"beside parallel.stage_grids"}, 6);
  expect_fault({grids, "parallel.moe.expert=1"}, "parallel.moe", {"beside parallel.stage_grids"}, 6);
  expect_fault({grids, "batch.micro=2"}, "batch.micro", {"take it away", "batch.micro_batches"}, 6);
  expect_fault({grids, "batch.micro_batches=7"}, "batch.micro_batches",
               {"must divide batch.global 32 (the default)", "nearest: 8"}, 6);
  expect_fault({"parallel.stage_grids=[{row: 2}, {row: 3}]"}, "parallel.stage_grids[2]",
               {"row 3 must divide model.heads 4", "legal: 1, 2, 4; nearest: 2"}, 5);
  expect_fault({grids, "optimizer.shard={data_partial: 3}"}, "optimizer.shard",
               {"must divide data 1 of parallel.stage_grids[2]"}, 6);
  expect_fault({grids, "comm.gradient.algorithm=torus2d"}, "comm.gradient.algorithm", {"legal: flat, two_level"}, 6);
  // An empty list is none.
  expect_legal({"parallel.stage_grids=[]", "parallel.dense.row=2"}, 4);
}

TEST(Rules, SchedulesAreNotLongerThanFiveMillionPasses) {
  const std::vector<std::string> long_one = {"batch.global=4000000", "batch.micro=1", "parallel.stages=2"};
  expect_fault(long_one, "batch.micro", {"gives 4000000 micro-batches x 2 chunks", "at most 2500000 of them"}, 2);
  expect_fault({"batch.global=5000001", "batch.micro_batches=5000001"}, "batch.micro_batches",
               {"5000001 micro-batches x 1 chunk are", "legal: 1 to 5000000; nearest: 5000000"});
  expect_legal({"batch.global=5000000", "batch.micro_batches=5000000"});
  expect_fault({"batch.global=2000000", "batch.micro_batches=2000000", "parallel.schedule=layered"},
               "batch.micro_batches", {"2000000 micro-batches x 4 chunks", "legal: 1 to 1250000"});
}

TEST(Rules, StageTimesAreThree) {
  expect_legal({"emulate.stage_times=[1,2,3]"});
  expect_fault({"emulate.stage_times=[1,2]"}, "emulate.stage_times", {"3 integers", "1 to 1000000000000"});
  expect_fault({"emulate.stage_times=[0,1,1]"}, "emulate.stage_times", {"1 to 1000000000000"});
}

// Every grid that a message proposes.
std::vector<std::vector<std::int64_t>> proposed_grids(const std::string& message) {
  static const std::regex kGrid("stages (\\d+) x data (\\d+) x depth (\\d+) x row (\\d+) x col (\\d+)");
  const std::string list = message.substr(message.find("grids that fit"));
  std::vector<std::vector<std::int64_t>> grids;
  for (std::sregex_iterator match(list.begin(), list.end(), kGrid), end; match != end; ++match) {
    std::vector<std::int64_t> grid;
    for (std::size_t i = 1; i <= 5; ++i) grid.push_back(std::stoll((*match)[i]));
    grids.push_back(grid);
  }
  return grids;
}

TEST(Rules, GridsFitTheRanks) {
  const std::vector<std::string> tp8 = {"model.heads=24", "model.head_dim=8", "parallel.dense.row=8",
                                        "batch.global=48"};
  expect_legal(tp8, 8);
  expect_legal(tp8, 24);
  const ReadResult result = read_small(tp8, 12);
  ASSERT_EQ(result.errors.size(), 1u) << numbered_list(result.errors);
  EXPECT_EQ(result.errors[0].path, "parallel");
  const auto grids = proposed_grids(result.errors[0].message);
  EXPECT_GE(grids.size(), 3u) << result.errors[0].message;
  for (const auto& grid : grids) {
    // What is proposed is accepted.
    EXPECT_EQ(grid[0] * grid[1] * grid[2] * grid[3] * grid[4], 12);
    const ReadResult fits =
        read_small({"model.heads=24", "model.head_dim=8", "batch.global=48", entry("parallel.stages", grid[0]),
                    entry("parallel.dense.data", grid[1]), entry("parallel.dense.depth", grid[2]),
                    entry("parallel.dense.row", grid[3]), entry("parallel.dense.col", grid[4])},
                   12);
    EXPECT_TRUE(fits.errors.empty()) << numbered_list(fits.errors);
  }
  expect_fault({"parallel.dense.data=2"}, "parallel", {"2 ranks, but there are 4", "leave parallel.dense.data out"}, 4);
  expect_fault({"parallel.dense={data: 4096, col: 1048576}", "batch.global=4096"}, "parallel", {"2147483647"}, 4);
}

TEST(Rules, MoeGridHasTheSizeOfTheDenseGrid) {
  expect_fault({"parallel.moe.expert=3"}, "parallel.moe", {"3 must divide the 4 ranks", "1, 2, 4"}, 4);
  expect_fault({"parallel.moe={replica: 1, expert: 2}"}, "parallel.moe", {"2 ranks", "type replica: 2"}, 4);
  expect_legal({"parallel.moe={replica: 2, expert: 2}"}, 4);
  EXPECT_EQ(read_small({"parallel.moe.col=2"}, 4).deck.parallel.moe->replica, 2);
}

// Any two of global, micro, micro_batches give the third, exactly.
TEST(Rules, BatchArithmetic) {
  int legal = 0;
  int refused = 0;
  for (std::int64_t data = 1; data <= 4; ++data) {
    for (std::int64_t depth = 1; depth <= 2; ++depth) {
      for (std::int64_t global = 0; global <= 24; ++global) {
        for (std::int64_t micro = 0; micro <= 6; ++micro) {
          for (std::int64_t count = 0; count <= 6; ++count) {
            std::vector<std::string> overrides = {entry("parallel.dense.depth", depth)};
            if (global > 0) overrides.push_back(entry("batch.global", global));
            if (micro > 0) overrides.push_back(entry("batch.micro", micro));
            if (count > 0) overrides.push_back(entry("batch.micro_batches", count));
            // The rule: some positive numbers agree with those given; 32 and 1 are the defaults.
            const bool two = micro > 0 && count > 0;
            const std::int64_t g = global > 0 ? global : two ? micro * count * data * depth : 32;
            const std::int64_t k = count == 0 && micro == 0 ? 1 : count;
            bool possible = false;
            for (std::int64_t m = 1; m <= 32; ++m) {
              for (std::int64_t n = 1; n <= 32; ++n) {
                possible = possible || ((micro == 0 || m == micro) && (k == 0 || n == k) && m * n * data * depth == g);
              }
            }
            const ReadResult result = read_small(overrides, data * depth);
            ASSERT_EQ(result.errors.empty(), possible)
                << data << " " << depth << " " << global << " " << micro << " " << count << "\n"
                << numbered_list(result.errors);
            if (possible) {
              const BatchDeck& batch = result.deck.batch;
              EXPECT_EQ(batch.micro * batch.micro_batches * data * depth, batch.global);
              EXPECT_EQ(batch.global, g);
              ++legal;
            } else {
              EXPECT_EQ(result.errors.size(), 1u);
              EXPECT_EQ(result.errors[0].path.find("batch."), 0u);
              ++refused;
            }
          }
        }
      }
    }
  }
  EXPECT_GT(legal, 500);
  EXPECT_GT(refused, 500);
}

TEST(Rules, BatchOfSixteenRanks) {  // tensor 2, pipeline 2
  const std::vector<std::string> grid = {"parallel={stages: 2, dense: {row: 2}}", "batch.global=64"};
  auto with = [&grid](const std::string& more) {
    std::vector<std::string> all = grid;
    all.push_back(more);
    return all;
  };
  EXPECT_EQ(read_small(with("batch.micro=4"), 16).deck.batch.micro_batches, 4);
  expect_fault(with("batch.micro=3"), "batch.micro", {"legal: 1, 2, 4, 8, 16;", "nearest: 2"}, 16);
  expect_fault(with("batch.micro_batches=3"), "batch.micro_batches", {"legal: 1, 2, 4, 8, 16;"}, 16);
  expect_fault({"batch={global: 64, micro: 3, micro_batches: 5}"}, "batch.global", {"= 60", "type that"}, 4);
  // Resumed on 3 ranks: 16 does not divide.
  expect_fault({"batch.global=16"}, "batch.global", {"multiple of the 3 coordinates", "15 or 18"}, 3);
}

TEST(Rules, DepthThatSplitsSequences) {
  // Depth is then no coordinate of the batch.
  const std::vector<std::string> deck = {"parallel={depth_splits: sequence, dense: {depth: 4}}",
                                         "batch={global: 6, micro: 3}"};
  const ReadResult result = read_small(deck, 8);
  EXPECT_TRUE(result.errors.empty()) << numbered_list(result.errors);
  EXPECT_EQ(result.deck.batch.micro_batches, 1);
  expect_fault({"parallel.dense.depth=4", "batch.global=6"}, "batch.global", {"8 coordinates"}, 8);
}

TEST(Rules, TorusHoldsTheRanksAndTheWeights) {
  const std::string torus = "comm.gradient.algorithm=torus2d";
  const auto read = [&](std::vector<std::string> more, std::int64_t ranks) {
    more.insert(more.end(), {torus, "batch.global=24"});
    return read_small(more, ranks);
  };
  for (const int row : {1, 2, 4}) {
    for (int x = 1; x <= 12; ++x) {
      for (int y = 1; y <= 12; ++y) {
        const std::string dims = "comm.gradient.dims=[" + to_string(x) + ", " + to_string(y) + "]";
        const ReadResult result = read({entry("parallel.dense.row", row), dims}, 12);
        EXPECT_EQ(has_fault(result, "comm.gradient.dims"), x * y != 12 || x % row != 0) << row << " " << dims;
        EXPECT_EQ(result.deck.comm.model_stride, row);
      }
    }
  }
  expect_fault({torus}, "comm.gradient.dims", {"must be given", "legal: [1, 4], [2, 2], [4, 1]"}, 4);
  expect_fault({torus, "comm.gradient.dims=[2, 2]", "comm.gradient.model_stride=2"}, "comm.gradient.model_stride",
               {"depth x row x col = 1"}, 4);
  expect_legal({"comm.gradient.dims=[3, 3]"}, 4);  // without torus2d nobody looks at them
}

TEST(Rules, PartialShardsDivideTheDataAxis) {
  for (int n = 1; n <= 13; ++n) {
    const ReadResult result =
        read_small({"optimizer.shard={data_partial: " + to_string(n) + "}", "batch.global=24"}, 12);
    EXPECT_EQ(has_fault(result, "optimizer.shard"), 12 % n != 0) << n;
    EXPECT_EQ(result.deck.optimizer.shard, (UpdateShard{UpdateShard::Kind::data_partial, n}));
  }
  expect_fault({"optimizer.shard={data_partial: 3}"}, "optimizer.shard", {"legal: 1, 2, 4;", "nearest: 2"}, 4);
  expect_fault({"optimizer.shard={data_partial: 2}", "comm.gradient.algorithm=two_level"}, "optimizer.shard",
               {"type data, or comm.gradient.algorithm: flat"}, 4);
}

// You et al. 2020: other moments for lamb, where the deck does not give them.
TEST(Rules, DefaultsOfLamb) {
  EXPECT_EQ(read_small({}).deck.optimizer.beta2, 0.95);
  const OptimizerDeck lamb = read_small({"optimizer.kind=lamb"}).deck.optimizer;
  EXPECT_EQ(lamb.beta1, 0.9);
  EXPECT_EQ(lamb.beta2, 0.999);
  EXPECT_EQ(lamb.eps, 1e-6);
  const OptimizerDeck given = read_small({"optimizer={kind: lamb, betas: [0.8, 0.95], eps: 1e-9}"}).deck.optimizer;
  EXPECT_EQ(given.beta2, 0.95);
  EXPECT_EQ(given.eps, 1e-9);
}

TEST(Rules, BatchWithoutARankCount) {
  expect_fault({"batch={global: 64, micro: 3}"}, "batch.micro", {"1, 2, 4, 8, 16, 32, 64"}, std::nullopt);
  expect_fault({"batch.global=7", "parallel.dense.depth=2"}, "batch.global", {"6 or 8"}, std::nullopt);
  expect_legal({"batch={global: 64, micro: 4}"}, std::nullopt);
}

TEST(Rules, ProductsDoNotOverflow) {
  const ReadResult result = read_small({"batch={micro: 1000000000000, micro_batches: 1000000000000}"}, 4);
  ASSERT_EQ(result.errors.size(), 1u) << numbered_list(result.errors);
  EXPECT_EQ(result.errors[0].path, "batch.global");
  EXPECT_EQ(capped_product({std::int64_t{1} << 40, std::int64_t{1} << 40}), INT64_MAX);
  EXPECT_EQ(capped_product({3, 5, 7}), 105);
}

}  // namespace fourfold::test
