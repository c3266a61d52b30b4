// The keys of a deck.
#include "deck/keys.hpp"

#include <utility>

#include "deck/key_line.hpp"

namespace fourfold {
namespace {

constexpr double kMostSteps = 1e15;
constexpr double kMostSize = 1 << 22;  // of one dim of a matrix, so that counts of elements and bytes fit 64 bits
constexpr double kMostVocab = 2147483647;
constexpr double kMostLayers = 10000;
constexpr double kMostCount = 1e15;

// Optional blocks exist as soon as one of their keys is given.
MoeShape& moe_shape_of(Deck& deck) {
  if (!deck.parallel.moe) deck.parallel.moe = MoeShape{0, 1, 1, 1};
  return *deck.parallel.moe;
}
const MoeShape& moe_shape_of(const Deck& deck) {
  return *deck.parallel.moe;
}
bool has_moe_shape(const Deck& deck) {
  return deck.parallel.moe.has_value();
}

bool same_grids(const Deck& deck) {
  return deck.parallel.stage_grids.empty();
}

std::vector<DeckKey> make_table() {
  std::vector<DeckKey> table;
  const auto add = [&table](Line line) { table.push_back(std::move(line).key()); };

  add(text("run.name", "name of the run, for logs", [](auto& d) { return &d.run.name; }));
  add(text("run.folder", "metrics.jsonl, deck.yaml, checkpoints/ and trace.json go here", [](auto& d) {
        return &d.run.folder;
      }).derived("runs/<run.name>", "runs/run"));
  add(integer("run.steps", between(0, kMostSteps),
              "optimizer steps of the whole run, restarts included; they count from 1",
              [](auto& d) { return &d.run.steps; }));
  add(integer("run.seed", at_least(0), "of initial weights, data order and dropout",
              [](auto& d) { return &d.run.seed; }));
  add(number("run.time_limit", at_least(0),
             "seconds from a session's start to its end: it saves in time and leaves with 75; 0: none but Slurm's",
             [](auto& d) { return &d.run.time_limit; }));
  add(integer(
      "run.ranks_every", at_least(0),
      "steps between lines that name the rank which computes longest, and how the others wait; 0: at the end alone",
      [](auto& d) { return &d.run.ranks_every; }));
  add(boolean("run.trace", "write trace.json, a Chrome trace for Perfetto", [](auto& d) { return &d.run.trace; }));
  add(text("run.machine",
           "a machine file of what this runs on, whose rates are the ceiling that speeds are compared with; none: no "
           "ceiling without --calibrate",
           [](auto& d) { return &d.run.machine; }));

  add(choice("model.kind", "a decoder, a plain net, a look-up and a head, or blocks h + W2 act(W1 h)",
             {"transformer", "mlp", "embedding", "residual"}, [](auto& d) { return &d.model.kind; }));
  add(integer("model.layers", between(1, kMostLayers), "blocks: attention and feed-forward, or of a residual stack",
              [](auto& d) { return &d.model.layers; })
          .needed(Need::blocks, "4"));
  add(integer("model.hidden", between(1, kMostSize), "width of the residual stream", [](auto& d) {
        return &d.model.hidden;
      }).needed(Need::stream, "256"));
  add(integer("model.heads", between(1, kMostSize), "query heads", [](auto& d) {
        return &d.model.heads;
      }).needed(Need::transformer, "8"));
  add(integer("model.kv_heads", between(1, kMostSize), "key and value heads; divides heads", [](auto& d) {
        return &d.model.kv_heads;
      }).derived("model.heads", "8"));
  add(integer("model.head_dim", between(1, kMostSize), "width of one head; even for rope", [](auto& d) {
        return &d.model.head_dim;
      }).derived("model.hidden / model.heads", "32"));
  add(integer("model.vocab", between(1, kMostVocab),
              "tokens in the vocabulary; text as bytes needs 257 (256 is the end of a document)",
              [](auto& d) { return &d.model.vocab; })
          .needed(Need::token_model, "257"));
  add(integer("model.sequence", between(1, kMostSize), "tokens in one sample", [](auto& d) {
        return &d.model.sequence;
      }).needed(Need::transformer, "256"));
  add(choice("model.positions", "learned: a table of sequence rows; rope: rotary", {"learned", "rope", "none"},
             [](auto& d) { return &d.model.positions; }));
  add(number("model.rope_theta", above(0), "base of the rotary frequencies",
             [](auto& d) { return &d.model.rope_theta; }));
  add(choice(
      "model.rope_scaling.kind",
      "angles for longer contexts: all / factor; those of long wavelengths / factor (Llama 3.1); dynamic: none up "
      "to model.sequence",
      {"none", "linear", "llama3", "dynamic"}, [](auto& d) { return &d.model.rope_scaling.kind; }));
  add(number("model.rope_scaling.factor", at_least(1), "how many times longer",
             [](auto& d) { return &d.model.rope_scaling.factor; }));
  add(number("model.rope_scaling.low", above(0), "of llama3: fewer turns in original_sequence are slowed by the factor",
             [](auto& d) { return &d.model.rope_scaling.low; }));
  add(number("model.rope_scaling.high", above(0), "of llama3: more turns in original_sequence stay",
             [](auto& d) { return &d.model.rope_scaling.high; }));
  add(integer("model.rope_scaling.original_sequence", between(1, kMostSize), "of llama3: the context that was longest",
              [](auto& d) { return &d.model.rope_scaling.original_sequence; })
          .derived("none", "8192"));
  add(choice("model.norm", "before attention, before feed-forward and at the end", {"layer", "rms"},
             [](auto& d) { return &d.model.norm; }));
  add(number("model.norm_eps", above(0), "added to the variance or mean square",
             [](auto& d) { return &d.model.norm_eps; }));
  add(choice("model.ffn.kind", "gelu is the erf form, gelu_tanh the approximation; swiglu has a gate matrix",
             {"gelu", "gelu_tanh", "relu", "swiglu"}, [](auto& d) { return &d.model.ffn.kind; }));
  add(integer("model.ffn.hidden", between(1, kMostSize), "width inside the feed-forward block", [](auto& d) {
        return &d.model.ffn.hidden;
      }).derived("4 x model.hidden", "1024"));
  add(choice("model.bias", "which linear layers of a block have one; the head never has", {"all", "none", "qkv"},
             [](auto& d) { return &d.model.bias; }));
  add(boolean("model.tie_embeddings", "the head uses the embedding's weights",
              [](auto& d) { return &d.model.tie_embeddings; }));
  add(number("model.dropout", fraction(), "after the embedding, attention and feed-forward",
             [](auto& d) { return &d.model.dropout; }));
  add(choice("model.init.kind", "normal: std x N(0, 1); dyadic: one to nonzeros entries of +-1/2 a row, the rest 0",
             {"normal", "dyadic"}, [](auto& d) { return &d.model.init.kind; }));
  add(integer("model.init.nonzeros", between(1, 4), "of init.kind dyadic",
              [](auto& d) { return &d.model.init.nonzeros; }));
  add(number("model.init.std", at_least(0), "standard deviation of the initial weights",
             [](auto& d) { return &d.model.init.std; }));
  add(boolean("model.init.scale_residual", "projections into the residual stream start smaller by sqrt(2 x layers)",
              [](auto& d) { return &d.model.init.scale_residual; }));
  add(boolean("model.init.zero_head", "the head starts at zero, so that the first loss is ln(vocab)",
              [](auto& d) { return &d.model.init.zero_head; }));
  add(text("model.init.from", "a checkpoint, step_N.h5: a new run starts from its weights",
           [](auto& d) { return &d.model.init.from; }));
  for (DeckKey& key : moe_keys()) table.push_back(std::move(key));
  add(integers("model.widths", between(1, kMostSize), "of an mlp: inputs, then the outputs of each matrix",
               [](auto& d) { return &d.model.widths; })
          .entries(2, 10001)
          .needed(Need::mlp, "[16, 32, 8]"));
  add(choice("model.activation", "between the matrices of an mlp or of a residual block", {"relu", "gelu", "gelu_tanh"},
             [](auto& d) { return &d.model.activation; }));
  add(boolean("model.bias_terms", "every matrix of an mlp or a residual stack has a bias",
              [](auto& d) { return &d.model.mlp_bias; }));
  add(choice("model.loss", "of an mlp, residual or embedding net; a transformer has cross_entropy",
             {"cross_entropy", "squared_error"}, [](auto& d) { return &d.model.loss; }));

  add(choice("data.kind", "files of text or tokens, or samples that are functions of the seed", {"files", "synthetic"},
             [](auto& d) { return &d.data.kind; }));
  add(choice("data.raw", "what files are that no header tells: text, or bare ids of 16 or 32 bits (nanoGPT)",
             {"text", "u16", "u32"}, [](auto& d) { return &d.data.raw; }));
  add(texts("data.train", "files, from the working directory", [](auto& d) { return &d.data.train; })
          .entries(1, SIZE_MAX)
          .needed(Need::text_data, "[corpus/corpus.txt]"));
  add(integers("data.weights", between(1, 1e9), "share of each entry of data.train in the samples",
               [](auto& d) { return &d.data.weights; })
          .entries(1, SIZE_MAX)
          .derived("none: the entries are one stream", "[1]"));
  add(texts("data.valid", "files for evaluation", [](auto& d) { return &d.data.valid; })
          .entries(1, SIZE_MAX)
          .derived("the tail of data.train, by data.valid_fraction", "[corpus/valid.txt]"));
  add(number("data.valid_fraction", fraction(), "of data.train held out at its end; 0: none",
             [](auto& d) { return &d.data.valid_fraction; }));
  add(text(
      "data.tokenizer",
      "of prompts and generated text: bytes, a tokenizer.json, vocab.json or *.model, a folder with one; auto: what "
      "convert weights left in run.folder, else bytes where model.vocab is 257",
      [](auto& d) { return &d.data.tokenizer; }));
  add(integer("data.end_of_document", between(0, kMostSize), "id that ends a document: 256 of text, 50256 of GPT-2",
              [](auto& d) { return &d.data.end_of_document; })
          .derived("none", "256"));
  add(boolean("data.mask_document_ends", "in training the token after an end_of_document is no target",
              [](auto& d) { return &d.data.mask_document_ends; }));
  add(boolean("data.reset_attention", "a token sees its own document only, not those before it in the sample",
              [](auto& d) { return &d.data.reset_attention; }));
  add(boolean("data.reset_positions", "positions begin again with each document in a sample",
              [](auto& d) { return &d.data.reset_positions; }));
  add(choice("data.synthetic", "dyadic: inputs and targets in {-1, 0, 1}; teacher: a fixed random net's answers",
             {"dyadic", "teacher"}, [](auto& d) { return &d.data.synthetic; }));
  add(integer("data.samples", between(1, kMostCount), "synthetic samples in one epoch", [](auto& d) {
        return &d.data.samples;
      }).needed(Need::synthetic_data, "1024"));
  add(integer("data.valid_samples", between(0, kMostCount), "synthetic samples for evaluation",
              [](auto& d) { return &d.data.valid_samples; }));

  add(integer("batch.global", between(1, 1e12),
              "samples in one step; global = micro x (data x depth) x micro_batches, exactly",
              [](auto& d) { return &d.batch.global; })
          .derived("the product of the others if both are given, else 32", "32"));
  add(integer("batch.micro", between(1, 1e12), "samples in one forward pass of one (data, depth) coordinate",
              [](auto& d) { return &d.batch.micro; })
          .derived("what global leaves", "32"));
  add(integer("batch.micro_batches", between(1, 1e12), "forward and backward passes in one step", [](auto& d) {
        return &d.batch.micro_batches;
      }).derived("what global leaves, 1 if micro is not given either", "1"));

  add(integer("loss.goldfish.k", between(0, 1e6), "leave one target in k out of the training loss; 0: off",
              [](auto& d) { return &d.loss.goldfish.k; }));
  add(integer("loss.goldfish.h", between(1, kMostSize), "tokens before a target whose hash decides that",
              [](auto& d) { return &d.loss.goldfish.h; }));

  add(choice("optimizer.kind",
             "momentum: v = momentum v + g, w -= lr v; adamw: decoupled decay; lars, lamb: rates by layer",
             {"sgd", "momentum", "adamw", "lars", "lamb"}, [](auto& d) { return &d.optimizer.kind; }));
  add(number("optimizer.lr", at_least(0), "peak learning rate", [](auto& d) { return &d.optimizer.lr; }));
  Limits betas = fraction();
  betas.fewest_entries = betas.most_entries = 2;
  add(Line("optimizer.betas", KeyType::numbers, "decay of the first and second moments; left out with lamb: 0.9, 0.999")
          .limits(betas)
          .stored(
              [](Deck& d, const Value& value) {
                const auto& pair = std::get<std::vector<double>>(value);
                d.optimizer.beta1 = pair[0];
                d.optimizer.beta2 = pair[1];
              },
              [](const Deck& d) {
                return Value(std::vector<double>{d.optimizer.beta1, d.optimizer.beta2});
              }));
  add(number("optimizer.eps", above(0), "added to the root of the second moment; left out with lamb: 1e-6",
             [](auto& d) { return &d.optimizer.eps; }));
  add(number("optimizer.momentum", fraction(), "of kinds momentum and lars",
             [](auto& d) { return &d.optimizer.momentum; }));
  add(number("optimizer.trust", above(0), "lars: a matrix's rate is lr x trust x |w| / (|g| + weight_decay |w|)",
             [](auto& d) { return &d.optimizer.trust; }));
  add(number("optimizer.weight_decay", at_least(0), "of tensors with two or more dims, embeddings included",
             [](auto& d) { return &d.optimizer.weight_decay; }));
  add(number("optimizer.clip", at_least(0), "largest norm of all gradients together; 0: off",
             [](auto& d) { return &d.optimizer.clip; }));
  add(Line("optimizer.shard", KeyType::counted_choice,
           "data: each rank that sums a gradient updates its part and keeps its moments; {data_partial: n}: n of them")
          .limits(at_least(1))
          .choices({"none", "data"})
          .counted("data_partial")
          .stored(
              [](Deck& d, const Value& value) {
                const auto& given = std::get<NamedCount>(value);
                using Kind = UpdateShard::Kind;
                d.optimizer.shard = {given.count > 0        ? Kind::data_partial
                                     : given.name == "data" ? Kind::data
                                                            : Kind::none,
                                     given.count};
              },
              [](const Deck& d) {
                const UpdateShard& shard = d.optimizer.shard;
                if (shard.kind == UpdateShard::Kind::data_partial)
                  return Value(NamedCount{"data_partial", shard.count});
                return Value(NamedCount{shard.kind == UpdateShard::Kind::data ? "data" : "none", 0});
              }));
  add(choice("optimizer.gather", "updated parts of the weights: waited for in the step, or at first use in the next",
             {"eager", "lazy"}, [](auto& d) { return &d.optimizer.gather; }));
  add(choice("optimizer.schedule.kind", "of the learning rate after the warm-up", {"constant", "linear", "cosine"},
             [](auto& d) { return &d.optimizer.schedule.kind; }));
  add(integer("optimizer.schedule.warmup", between(0, kMostSteps), "steps over which the rate rises to lr",
              [](auto& d) { return &d.optimizer.schedule.warmup; }));
  add(number("optimizer.schedule.final", at_least(0), "rate of the last step, for linear and cosine",
             [](auto& d) { return &d.optimizer.schedule.final; }));

  add(choice("precision.compute", "of weights, activations and products; bf16 keeps fp32 masters",
             {"fp64", "fp32", "bf16"}, [](auto& d) { return &d.precision; }));

  add(boolean("numerics.deterministic", "sums over ranks in a fixed order: the same bits in every run",
              [](auto& d) { return &d.numerics.deterministic; }));
  add(Line("numerics.snap", KeyType::integer,
           "round weights and layer outputs to 2^-snap, gradients to 2^-(snap + 4); 0: off")
          .limits(between(0, 20))
          .stored(
              [](Deck& d, const Value& value) {
                const auto bits = static_cast<int>(std::get<std::int64_t>(value));
                d.numerics.snap = bits == 0 ? std::nullopt : std::optional<int>(bits);
              },
              [](const Deck& d) { return Value(std::int64_t{d.numerics.snap.value_or(0)}); }));

  add(choice("numerics.non_finite.policy",
             "of a loss or gradient that is not finite: end the run, or leave the step out", {"stop", "skip"},
             [](auto& d) { return &d.numerics.non_finite; }));
  add(integer("numerics.non_finite.most", between(1, kMostSteps),
              "of skip: steps left out in a row before the run ends", [](auto& d) { return &d.numerics.most_skips; }));

  add(integer("parallel.stages", between(1, kMostExtent), "pipeline stages",
              [](auto& d) { return &d.parallel.stages; }));
  add(integer("parallel.dense.data", between(1, kMostExtent), "copies of the weights, each with its own samples",
              [](auto& d) { return &d.parallel.dense.data; })
          .derived("what the ranks leave", "1"));
  add(integer("parallel.dense.depth", between(1, kMostExtent), "splits samples, and weights in store", [](auto& d) {
        return &d.parallel.dense.depth;
      }).only_if(same_grids));
  add(integer("parallel.dense.row", between(1, kMostExtent), "splits output features, heads and the vocabulary",
              [](auto& d) { return &d.parallel.dense.row; })
          .only_if(same_grids));
  add(integer("parallel.dense.col", between(1, kMostExtent), "splits input features", [](auto& d) {
        return &d.parallel.dense.col;
      }).only_if(same_grids));
  add(grids("parallel.stage_grids", between(1, kMostExtent),
            "in place of dense: a grid for each stage, as {data: 2, row: 3}, of any size; axes left out are 1",
            [](auto& d) { return &d.parallel.stage_grids; }));
  add(integer("parallel.moe.replica", between(1, kMostExtent), "copies of the expert grid",
              [](auto& d) { return &moe_shape_of(d).replica; })
          .derived("what the ranks of a stage leave", "1")
          .only_if(has_moe_shape));
  add(integer("parallel.moe.expert", between(1, kMostExtent),
              "splits the experts, by quotient and remainder; at most model.moe.experts",
              [](auto& d) { return &moe_shape_of(d).expert; })
          .derived("1", "1")
          .only_if(has_moe_shape));
  add(integer("parallel.moe.row", between(1, kMostExtent), "splits output features of an expert",
              [](auto& d) { return &moe_shape_of(d).row; })
          .derived("1", "1")
          .only_if(has_moe_shape));
  add(integer("parallel.moe.col", between(1, kMostExtent), "splits input features of an expert",
              [](auto& d) { return &moe_shape_of(d).col; })
          .derived("1", "1")
          .only_if(has_moe_shape));
  add(choice("parallel.schedule", "order of the micro-batches in the pipeline; list: by hand",
             {"gpipe", "1f1b", "interleaved", "modular", "layered", "zero_bubble", "geo", "list"},
             [](auto& d) { return &d.parallel.schedule; }));
  add(integer("parallel.interleave", between(1, kMostLayers), "model chunks a stage, of interleaved, modular and list",
              [](auto& d) { return &d.parallel.interleave; }));
  add(integers("parallel.cuts", between(1, kMostLayers),
               "units of each model chunk, in the model's order: embedding, blocks, head, or matrices of an mlp, "
               "residual blocks",
               [](auto& d) { return &d.parallel.cuts; })
          .list_help("type a list with one a chunk (stages x interleave), such as [2, 2, 2] for 3 chunks of 6 units")
          .derived("by cost, the largest as small as it can be", "[6]"));
  add(integers("parallel.extra_in_flight", between(0, kMostCount),
               "of geo: micro-batches more in flight across each boundary between stages",
               [](auto& d) { return &d.parallel.extra_in_flight; })
          .list_help("type a list with one a boundary between stages, such as [0, 2, 0] for 4 stages")
          .derived("none, geo needs them", "[0]"));
  add(texts("parallel.schedule_list",
            "of list: what each stage computes, as \"F0 F1 B0 B1\": F forward, B backward or I and W, its two halves",
            [](auto& d) { return &d.parallel.schedule_list; })
          .list_help("type a list with a text for each stage, such as [F0-1 B0-1, F0 B0 F1 B1] for 2 stages")
          .derived("none, list needs them", "[]"));
  add(choice("parallel.depth_splits", "what the depth axis splits: samples, or the tokens of each (long contexts)",
             {"batch", "sequence"}, [](auto& d) { return &d.parallel.depth_splits; }));
  add(boolean("parallel.sequence_shard", "tokens between linear layers are split over row",
              [](auto& d) { return &d.parallel.sequence_shard; }));
  add(boolean("parallel.overlap", "movements run behind products where there are any",
              [](auto& d) { return &d.parallel.overlap; }));
  add(choice(
      "parallel.activations.default",
      "of every layer between forward and backward: keep all; keep the input and run forward again; move all away",
      {"keep", "recompute", "offload"}, [](auto& d) { return &d.parallel.activations.rest; }));
  add(texts("parallel.activations.keep",
            "layers other than by default: blocks (matrices of an mlp) from 0, ranges, head",
            [](auto& d) { return &d.parallel.activations.keep; })
          .list_help("type a list of layers, such as [0], or for all of them parallel.activations.default=keep")
          .derived("none", "[head]"));
  add(texts("parallel.activations.recompute", "the same, of layers that run forward again",
            [](auto& d) { return &d.parallel.activations.recompute; })
          .list_help("type a list of layers, such as [0], or for all of them parallel.activations.default=recompute")
          .derived("none", "[\"0-1\"]"));
  add(texts("parallel.activations.offload", "the same, of layers that move all away",
            [](auto& d) { return &d.parallel.activations.offload; })
          .list_help("type a list of layers, such as [0], or for all of them parallel.activations.default=offload")
          .derived("none", "[\"2\"]"));
  add(texts("parallel.activations.sublayers",
            "of a transformer's blocks that are not recomputed whole: attention, ffn, each with its norm, run again",
            [](auto& d) { return &d.parallel.activations.sublayers; })
          .derived("none", "[attention]"));
  add(text("parallel.activations.offload_folder",
           "of each node, for what is offloaded on CPU builds; on a GPU it goes to host memory",
           [](auto& d) { return &d.parallel.activations.offload_folder; }));
  add(choice("attention.split", "row: col ranks repeat attention; col: they share its heads, then its sequences",
             {"row", "col"}, [](auto& d) { return &d.parallel.attention_split; }));

  add(choice("comm.gradient.algorithm",
             "sums of gradients: all ranks at once; y, then x of a mesh; inside nodes, then between them",
             {"flat", "torus2d", "two_level"}, [](auto& d) { return &d.comm.gradient; }));
  add(integers("comm.gradient.dims", between(1, kMostExtent), "of torus2d: the ranks of a stage as a mesh [X, Y]",
               [](auto& d) { return &d.comm.dims; })
          .entries(2, 2)
          .derived("none, torus2d needs them", "[1, 1]"));
  add(integer("comm.gradient.model_stride", between(1, kMostExtent),
              "of torus2d: neighbours along X that hold different weights, which the sum over X skips",
              [](auto& d) { return &d.comm.model_stride; })
          .derived("depth x row x col", "1"));
  add(integer("comm.bucket_bytes", between(1, 1e12), "gradients summed in one operation; changes no deterministic bit",
              [](auto& d) { return &d.comm.bucket_bytes; }));
  add(choice("comm.shared_memory", "the ranks of a node read each other's memory in collectives (auto: where it works)",
             {"auto", "on", "off"}, [](auto& d) { return &d.comm.shared_memory; }));
  add(boolean("comm.check_calls",
              "the ranks of a group compare what they are about to do, before each collective (to find a bug; slow)",
              [](auto& d) { return &d.comm.check_calls; }));

  add(integer("eval.every", between(0, kMostSteps),
              "steps between evaluations; 0: at the end, if there is validation data",
              [](auto& d) { return &d.eval.every; }));
  add(integer("eval.samples", between(0, kMostCount), "validation samples in one evaluation; 0: all",
              [](auto& d) { return &d.eval.samples; }));

  add(integer("checkpoint.every", between(0, kMostSteps), "steps between checkpoints; 0: at the end",
              [](auto& d) { return &d.checkpoint.every; }));
  add(integer("checkpoint.keep", between(0, kMostCount), "committed steps of this run that stay; 0: all",
              [](auto& d) { return &d.checkpoint.keep; }));
  add(choice("checkpoint.mode", "async: a thread of each rank writes a copy of its part while training goes on",
             {"sync", "async"}, [](auto& d) { return &d.checkpoint.mode; }));
  add(choice("checkpoint.on_error", "a save that fails ends the run, or is only said (the last one of a run ends it)",
             {"stop", "warn"}, [](auto& d) { return &d.checkpoint.on_error; }));
  add(integer("checkpoint.transfer_bytes", between(4096, 2147483647),
              "largest transfer of a rank, and its buffer for synchronous saves and for reading",
              [](auto& d) { return &d.checkpoint.transfer_bytes; }));
  add(boolean("checkpoint.strict_collective", "a transfer that HDF5 does not make collectively is an error, not a note",
              [](auto& d) { return &d.checkpoint.strict_collective; }));
  add(boolean("checkpoint.collective_metadata", "HDF5 reads and writes its own structures by collective operations",
              [](auto& d) { return &d.checkpoint.collective_metadata; }));
  add(integer("checkpoint.alignment", between(1, 1 << 30),
              "bytes; in the file tensors of 16 times this and more begin at multiples of it",
              [](auto& d) { return &d.checkpoint.alignment; }));
  add(texts(
      "checkpoint.allow_missing",
      "tensors (blocks.0.attention.q.weight) that a checkpoint may lack, they stay at their initial values, or have "
      "beyond the model's, they are not read",
      [](auto& d) { return &d.checkpoint.allow_missing; }));
  add(choice("checkpoint.mpi_io.component", "of Open MPI, for files; auto: romio321, unless OMPI_MCA_io is set",
             {"auto", "ompio", "romio321"}, [](auto& d) { return &d.checkpoint.mpi_io.component; }));
  add(integer("checkpoint.mpi_io.striping_factor", between(0, 1 << 20),
              "disks (object storage targets) that a file is spread over; 0: the file system's choice",
              [](auto& d) { return &d.checkpoint.mpi_io.striping_factor; }));
  add(integer("checkpoint.mpi_io.striping_unit", between(0, 1e12), "bytes on one disk before the next; 0: as above",
              [](auto& d) { return &d.checkpoint.mpi_io.striping_unit; }));
  add(integer("checkpoint.mpi_io.cb_nodes", between(0, kMostExtent),
              "aggregators: ranks that write for the others; 0: MPI-IO's choice",
              [](auto& d) { return &d.checkpoint.mpi_io.cb_nodes; }));
  add(integer("checkpoint.mpi_io.cb_buffer_size", between(0, 2147483647),
              "bytes of an aggregator's buffer; 0: MPI-IO's choice",
              [](auto& d) { return &d.checkpoint.mpi_io.cb_buffer_size; }));

  add(number("watchdog.start", at_least(0),
             "seconds without a movement after which a run that starts or restarts has hung and is ended; 0: never",
             [](auto& d) { return &d.watchdog.start; }));
  add(number("watchdog.step", at_least(0), "the same in a step", [](auto& d) { return &d.watchdog.step; }));
  add(number("watchdog.evaluation", at_least(0), "the same in an evaluation, and in eval and generate",
             [](auto& d) { return &d.watchdog.evaluation; }));
  add(number("watchdog.checkpoint", at_least(0), "the same while any rank writes a checkpoint, a record or the trace",
             [](auto& d) { return &d.watchdog.checkpoint; }));

  add(integer("debug.replica_check", between(0, kMostSteps),
              "steps between comparisons of what ranks hold in common, bit by bit; 0: never",
              [](auto& d) { return &d.debug.replica_check; }));
  add(integer("debug.record", between(0, kMostSteps),
              "steps between records of gradients, weights and moments, for fourfold inspect --compare; 0: never",
              [](auto& d) { return &d.debug.record; }));
  add(boolean("debug.synchronous_sends",
              "messages between stages wait until the other side receives, whatever MPI could hold for them",
              [](auto& d) { return &d.debug.synchronous_sends; }));
  add(text("emulate.machine",
           "a machine file, whose nodes and virtual clock stand in for the real ones; none: they do not",
           [](auto& d) { return &d.emulate.machine; }));
  add(integers("emulate.stage_times", between(1, 1e12),
               "picoseconds of a micro-batch in a model chunk: forward, input gradient, weight gradient",
               [](auto& d) { return &d.emulate.stage_times; })
          .entries(3, 3)
          .derived("from FLOPs", "[1000000, 1000000, 1000000]"));
  return table;
}

}  // namespace

const KeyTable& deck_keys() {
  static const KeyTable table = make_table();
  return table;
}

}  // namespace fourfold
