// The deck as plain typed structs: what every module gets by const&. The reader (deck/reader.hpp) fills them from YAML.
// Defaults here are the defaults of the deck; sizes of the model and the data have none.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "deck/moe_deck.hpp"
#include "grid/axes.hpp"
#include "grid/cuts.hpp"
#include "machine/machine.hpp"

namespace fourfold {

struct RunDeck {
  std::string name = "run";
  std::string folder = "runs/run";  // default: runs/<name>
  std::int64_t steps = 100;
  std::uint64_t seed = 1234;
  double time_limit = 0;               // seconds from a session's start to its end; 0: none
  std::int64_t ranks_every = 100;      // steps between looks for slow ranks; 0: at the end alone
  bool trace = false;                  // write <folder>/trace.json (Chrome trace, for Perfetto)
  std::string machine = "none";        // a machine file: what it runs on
  std::optional<Machine> description;  // what it says, once it is read
  bool operator==(const RunDeck&) const = default;
};

enum class ModelKind { transformer, mlp, embedding, residual };
// Nets whose samples are rows of numbers, not of tokens.
inline bool takes_rows(ModelKind kind) {
  return kind == ModelKind::mlp || kind == ModelKind::residual;
}
enum class Positions { learned, rope, none };
enum class NormKind { layer, rms };
enum class FeedForwardKind { gelu, gelu_tanh, relu, swiglu };
enum class BiasKind { all, none, qkv };
enum class Activation { relu, gelu, gelu_tanh };
enum class LossKind { cross_entropy, squared_error };

struct FeedForwardDeck {
  FeedForwardKind kind = FeedForwardKind::gelu;
  std::int64_t hidden = 0;  // default: 4 x model.hidden
  bool operator==(const FeedForwardDeck&) const = default;
};

// normal: std x N(0,1). dyadic: each row of a matrix has one to `nonzeros` entries of +-1/2, the rest 0 (exact tests).
enum class InitKind { normal, dyadic };

struct InitDeck {
  InitKind kind = InitKind::normal;
  std::int64_t nonzeros = 2;  // of init.kind: dyadic; 1 to 4
  double std = 0.02;
  bool scale_residual = true;  // residual projections x 1/sqrt(2 x layers)
  bool zero_head = false;      // output weights start at zero: the first loss is ln V
  std::string from = "none";   // a checkpoint, whose weights a new run starts from
  bool operator==(const InitDeck&) const = default;
};

// What rotary positions become for contexts longer than those a model was first trained with, as config.json of Hugging
// Face says it. dynamic: nothing up to model.sequence, and so nothing here; it is kept for export.
enum class RopeScaling { none, linear, llama3, dynamic };
struct RopeScalingDeck {
  RopeScaling kind = RopeScaling::none;
  double factor = 1.0;
  double low = 1.0, high = 4.0;        // llama3: original_sequence / wavelength, below and above which ...
  std::int64_t original_sequence = 0;  // of llama3
  bool operator==(const RopeScalingDeck&) const = default;
};

struct ModelDeck {
  ModelKind kind = ModelKind::transformer;
  // transformer (embedding uses vocab, hidden, tie_embeddings, loss)
  std::int64_t layers = 0, hidden = 0, heads = 0;
  std::int64_t kv_heads = 0;             // default: heads
  std::int64_t head_dim = 0;             // default: hidden / heads
  std::int64_t vocab = 0, sequence = 0;  // embedding: sequence defaults to 1
  Positions positions = Positions::rope;
  double rope_theta = 10000.0;
  RopeScalingDeck rope_scaling;
  NormKind norm = NormKind::rms;
  double norm_eps = 1e-5;
  FeedForwardDeck ffn;
  BiasKind bias = BiasKind::none;
  bool tie_embeddings = false;
  double dropout = 0.0;
  InitDeck init;
  std::optional<MoeDeck> moe;
  // mlp: widths[0] inputs, then one entry a matrix; the last is the number of outputs (classes)
  std::vector<std::int64_t> widths;
  // mlp and residual (which uses layers, hidden and ffn.hidden too; its inputs and outputs are hidden wide)
  Activation activation = Activation::relu;
  bool mlp_bias = true;  // key: model.bias_terms
  LossKind loss = LossKind::cross_entropy;
  bool operator==(const ModelDeck&) const = default;
};

inline constexpr std::int64_t kByteVocab = 257;  // text: 256 bytes and the end of a document

enum class DataKind { files, synthetic };
// What a file is that no known header tells: text, or bare token ids.
enum class RawKind { text, u16, u32 };
enum class SyntheticKind { dyadic, teacher };

struct DataDeck {
  DataKind kind = DataKind::files;
  RawKind raw = RawKind::text;
  std::vector<std::string> train;
  std::vector<std::int64_t> weights;  // of each entry of `train`; empty: one stream of all of them
  std::vector<std::string> valid;     // default: the tail of `train`, by valid_fraction
  double valid_fraction = 0.0;
  std::string tokenizer = "auto";     // of generated text, a spec of make_tokenizer (data/tokenizer.hpp)
  std::int64_t end_of_document = -1;  // the id; -1: not given
  bool mask_document_ends = false;    // no training target after it
  bool reset_attention = false;       // a token sees its own document only
  bool reset_positions = false;       // positions begin again with each document
  bool keeps_documents_apart() const { return reset_attention || reset_positions; }
  // synthetic: samples are functions of (seed, index)
  SyntheticKind synthetic = SyntheticKind::dyadic;
  std::int64_t samples = 0;  // in one epoch
  std::int64_t valid_samples = 0;
  bool operator==(const DataDeck&) const = default;
};

// global = micro x coordinates (data x depth) x micro_batches, exactly; any two give the third. 0: not given and not
// yet derived. Without global: 32 where fewer than two are given; without the others: micro_batches 1. With
// parallel.stage_grids micro stays 0: each stage cuts a micro-batch over its own coordinates, parts may be unequal.
struct BatchDeck {
  std::int64_t global = 0, micro = 0, micro_batches = 0;
  bool operator==(const BatchDeck&) const = default;
};

// Goldfish loss: one target in k is left out of the training loss, chosen by a hash of the h tokens before it.
struct GoldfishDeck {
  std::int64_t k = 0;  // 0: off
  std::int64_t h = 13;
  bool operator==(const GoldfishDeck&) const = default;
};

struct LossDeck {
  GoldfishDeck goldfish;
  bool operator==(const LossDeck&) const = default;
};

enum class OptimizerKind { sgd, momentum, adamw, lars, lamb };
enum class ScheduleKind { constant, linear, cosine };

struct RateDeck {
  ScheduleKind kind = ScheduleKind::constant;
  std::int64_t warmup = 0;
  double final = 0.0;
  bool operator==(const RateDeck&) const = default;
};

// Who updates the weights of a reduction group. none: every rank all of them. data: each of its ranks an equal part.
// data_partial: each of `count` neighbours an equal part, so that group size / count ranks update the same part.
struct UpdateShard {
  enum class Kind { none, data, data_partial };
  Kind kind = Kind::none;
  std::int64_t count = 0;  // of data_partial
  bool operator==(const UpdateShard&) const = default;
};
// When the updated parts travel: waited for inside the step, or at the first use of the weights in the next one.
enum class ValueGather { eager, lazy };

struct OptimizerDeck {
  OptimizerKind kind = OptimizerKind::adamw;
  double lr = 3e-4;
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;  // left out with lamb: 0.9, 0.999, 1e-6
  double momentum = 0.9;
  double weight_decay = 0.0;
  double clip = 0.0;     // 0: off
  double trust = 0.001;  // of lars
  UpdateShard shard;
  ValueGather gather = ValueGather::eager;
  RateDeck schedule;
  bool operator==(const OptimizerDeck&) const = default;
};

enum class Precision { fp64, fp32, bf16 };

// What a loss or gradient that is not finite does: ends the run, or only the step, which then changes no weight.
enum class NonFinite { stop, skip };

struct NumericsDeck {
  bool deterministic = false;
  NonFinite non_finite = NonFinite::stop;  // key: numerics.non_finite.policy
  std::int64_t most_skips = 3;             // key: numerics.non_finite.most; in a row
  std::optional<int> snap;                 // dyadic deck: 8
  bool operator==(const NumericsDeck&) const = default;
};

// How gradients are summed over the ranks of a reduction group. flat: over all of them at once. torus2d: the ranks of a
// stage as a mesh of dims[0] x dims[1] (x counts fastest); reduce-scatter over y, then over x. two_level:
// reduce-scatter inside each node, then over the nodes.
enum class GradientAlgorithm { flat, torus2d, two_level };

// Whether the ranks of a node read each other's memory in collectives: where it works, always (else the run is
// refused), never.
enum class SharedMemoryUse { automatic, on, off };

struct CommDeck {
  GradientAlgorithm gradient = GradientAlgorithm::flat;  // key: comm.gradient.algorithm
  std::vector<std::int64_t> dims;                        // of torus2d: X, Y
  std::int64_t model_stride = 0;                         // of torus2d; default: depth x row x col
  std::int64_t bucket_bytes = std::int64_t{4} << 20;     // of one reduction of gradients
  SharedMemoryUse shared_memory = SharedMemoryUse::automatic;
  bool check_calls = false;  // members of a group compare what they are about to do
  bool operator==(const CommDeck&) const = default;
};

// What the depth axis splits: whole samples, or the tokens of each (long contexts).
enum class DepthSplits { batch, sequence };
// Attention between its products: every col rank repeats it, or each does a part of the heads and sequences.
enum class AttentionSplit { row, col };

// What a layer does with what its forward pass makes for backward: holds it, holds its input alone and runs forward
// again, or moves it away meanwhile.
enum class Keeping { keep, recompute, offload };

struct ActivationsDeck {
  Keeping rest = Keeping::keep;                       // key: default; of the layers that no list names
  std::vector<std::string> keep, recompute, offload;  // "3", "0-7", "head"
  std::vector<std::string> sublayers;                 // of a transformer's other blocks, run again: attention, ffn
  std::string offload_folder = "/tmp";
  bool operator==(const ActivationsDeck&) const = default;
};

struct ParallelDeck {
  int stages = 1;
  DenseShape dense;                     // dense.data 0 until the rank count is known ("what the ranks leave")
  std::vector<DenseShape> stage_grids;  // one a stage, where they differ, in place of `dense`; empty: `dense` for all
  std::optional<MoeShape> moe;          // default: replica = what the ranks of a stage leave (0 until they are known)
  std::string schedule = "1f1b";        // a builder of modules/schedule
  std::int64_t interleave = 1;          // model chunks a stage: interleaved, modular, list
  std::vector<std::int64_t> cuts;       // units of each chunk, in the model's order; empty: by cost
  std::vector<std::int64_t> extra_in_flight;  // of geo: micro-batches more across each boundary between stages
  std::vector<std::string> schedule_list;     // of list: what each stage computes
  DepthSplits depth_splits = DepthSplits::batch;
  bool sequence_shard = false;
  AttentionSplit attention_split = AttentionSplit::row;  // key: attention.split
  bool overlap = true;
  ActivationsDeck activations;
  const DenseShape& grid(int stage) const {
    return stage_grids.empty() ? dense : stage_grids[static_cast<std::size_t>(stage)];
  }
  // Parts that the batch is cut into on a grid.
  std::int64_t coordinates(const DenseShape& grid) const {
    return depth_splits == DepthSplits::batch ? grid.coordinates() : std::int64_t{grid.data};
  }
  std::int64_t coordinates() const { return coordinates(dense); }
  bool operator==(const ParallelDeck&) const = default;
};

// Neighbours on row that hold the same KV head: row / kv_heads where row is larger, else 1.
inline int kv_sharers(const ModelDeck& model, int row) {
  return model.kind == ModelKind::transformer ? kv_head_sharers(model.kv_heads, row) : 1;
}

struct EvalDeck {
  std::int64_t every = 0;    // 0: only at the end, if there is validation data
  std::int64_t samples = 0;  // 0: all
  bool operator==(const EvalDeck&) const = default;
};

// async: threads write a copy while training goes on. What a save that fails does: ends the run, or warns.
enum class SaveMode { sync, async };
enum class OnSaveError { stop, warn };
enum class FileComponent { automatic, ompio, romio321 };

// MPI-IO, in its own terms. 0: its choice.
struct MpiIoDeck {
  FileComponent component =
      FileComponent::automatic;      // of Open MPI; automatic: romio321, or what the user's environment says
  std::int64_t striping_factor = 0;  // disks (object storage targets) that a file is spread over
  std::int64_t striping_unit = 0;    // bytes on one before the next
  std::int64_t cb_nodes = 0;         // ranks that write for the others: aggregators
  std::int64_t cb_buffer_size = 0;   // bytes that one of them writes at once
  bool operator==(const MpiIoDeck&) const = default;
};

struct CheckpointDeck {
  std::int64_t every = 0;  // 0: only at the end
  std::int64_t keep = 2;   // committed steps of this run that stay; 0: all
  SaveMode mode = SaveMode::sync;
  OnSaveError on_error = OnSaveError::stop;
  std::int64_t transfer_bytes = std::int64_t{64} << 20;  // of one rank at once, and of the buffer that all goes through
  bool strict_collective = false;                        // a transfer that is not made collectively is an error
  bool collective_metadata = true;                       // HDF5's own structures too
  std::int64_t alignment = 4096;                         // tensors of 16 times this begin at multiples of it
  std::vector<std::string> allow_missing;                // tensors that the file or the model may lack
  MpiIoDeck mpi_io;
  bool operator==(const CheckpointDeck&) const = default;
};

// Seconds without a movement after which a run has hung, by what it does then; 0: never.
struct WatchdogDeck {
  double start = 1800, step = 600, evaluation = 600, checkpoint = 1800;
  bool operator==(const WatchdogDeck&) const = default;
};

// Instruments that look for faults of the program or the machine.
struct DebugDeck {
  std::int64_t replica_check = 0;  // compare replicas every so many steps; 0: never
  std::int64_t record = 0;         // write gradients and states every so many steps to <folder>/record; 0: never
  bool synchronous_sends = false;  // between stages: complete only when the other side receives
  bool operator==(const DebugDeck&) const = default;
};

// The machine whose nodes and virtual clock stand in for the real ones.
struct EmulateDeck {
  std::string machine = "none";        // a machine file
  std::optional<Machine> description;  // what it says, once it is read
  // tF, tI, tW in picoseconds: the forward pass, input gradient and weight gradient of one micro-batch through one
  // model chunk. Empty: from FLOPs.
  std::vector<std::int64_t> stage_times;
  bool asked() const { return machine != "none"; }
  bool operator==(const EmulateDeck&) const = default;
};

struct Deck {
  RunDeck run;
  ModelDeck model;
  DataDeck data;
  BatchDeck batch;
  LossDeck loss;
  OptimizerDeck optimizer;
  Precision precision = Precision::fp32;
  NumericsDeck numerics;
  ParallelDeck parallel;
  CommDeck comm;
  EvalDeck eval;
  CheckpointDeck checkpoint;
  WatchdogDeck watchdog;
  DebugDeck debug;
  EmulateDeck emulate;
  bool operator==(const Deck&) const = default;
};

}  // namespace fourfold
