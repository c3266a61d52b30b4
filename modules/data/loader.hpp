// Micro-batches of any step, as pure functions of the global cursor and the coordinate.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.hpp"
#include "data/batch.hpp"
#include "data/mixture.hpp"
#include "data/token_source.hpp"
#include "deck/deck.hpp"

namespace fourfold {

// What the samples are made of: kept in checkpoints, compared at restart. Neither steps nor batch enter.
struct Fingerprint {
  std::uint64_t hash = 0;  // of text
  std::string text;        // kind, names, sizes and counts, one fact a line
  bool operator==(const Fingerprint&) const = default;
};

// A coordinate is a place on the batch axes (data x depth) of the dense grid. It and the cursor (samples consumed by
// all earlier steps) are all that a batch depends on: peers on other axes and other stages get the same one.
class Loader {
 public:
  // Opens the deck's data. `deck` is resolved: batch.global and batch.micro_batches are set.
  // Errors (Error, input): files that are missing, empty, unreadable, named twice or too short; ids beyond model.vocab;
  // data that the model kind cannot use.
  // `part` of `parts` ranks: what it reads of a large stream to find ids beyond the vocabulary.
  explicit Loader(const Deck& deck, int part = 0, int parts = 1);
  // The same on given token streams; without `valid`, data.valid_fraction cuts it off `train`.
  Loader(const Deck& deck, std::shared_ptr<const TokenSource> train,
         const std::shared_ptr<const TokenSource>& valid = nullptr);

  std::int64_t samples() const { return order_->samples(); }  // of one epoch
  // Sample number k of the run: its number in the training set.
  std::int64_t sample(std::int64_t k) const { return order_->at(k); }

  // Micro-batch m of a step is the m-th run of global / micro_batches consecutive samples, cut in order over the
  // coordinates by quotient and remainder; empty parts are legal. `reuse` gives its memory to the result.
  Batch micro_batch(std::int64_t cursor, std::int64_t micro_index, std::int64_t coordinates, std::int64_t coordinate,
                    Batch reuse = {}) const;
  // Without the samples: sequences, tokens and first_sample, for stages that read none.
  Batch micro_batch_shape(std::int64_t micro_index, std::int64_t coordinates, std::int64_t coordinate) const;
  // Target tokens of a coordinate's samples in a step (of the whole step as 1 coordinate), known before its first
  // backward. Reads the samples where drops_targets().
  std::int64_t targets_in_step(std::int64_t cursor, std::int64_t coordinates, std::int64_t coordinate) const;
  bool drops_targets() const { return goldfish_.k > 0 || masked_end_ >= 0; }  // in training, by loss.goldfish or data

  // Evaluation takes the validation samples in their order, eval.samples of them (0: all), as many in a batch as in a
  // micro-batch of training; the last batch is ragged. Each sample comes once on any number of coordinates.
  std::int64_t eval_samples() const;  // 0: no validation data
  std::int64_t eval_batches() const;
  Batch eval_batch(std::int64_t index, std::int64_t coordinates, std::int64_t coordinate, Batch reuse = {}) const;
  Batch eval_batch_shape(std::int64_t index, std::int64_t coordinates, std::int64_t coordinate) const;
  std::int64_t eval_targets() const;
  std::int64_t eval_bytes() const;  // of text among them; 0 where tokens are not text (no bits per byte)
  std::string eval_text() const;    // those bytes, to compare with compressors

  const Fingerprint& fingerprint() const { return fingerprint_; }

 private:
  using Stream = std::shared_ptr<const TokenSource>;
  void use_streams(const Deck& deck, const std::vector<Stream>& corpora, const Stream& valid, int part, int parts);
  void finish(const Deck& deck, const std::string& facts, const std::vector<std::int64_t>& sizes);

  std::unique_ptr<Samples> train_;
  std::unique_ptr<Samples> valid_;  // null: none
  std::unique_ptr<MixedOrder> order_;
  std::int64_t global_ = 0, micro_batches_ = 0, eval_limit_ = 0;
  GoldfishDeck goldfish_;
  std::int32_t masked_end_ = -1;  // the id after which there is no target; -1: none
  Fingerprint fingerprint_;
};

// Opens the data on every rank and compares. Collective over `world`. Errors: the one of Loader's constructor where all
// ranks have it; where only some have it, theirs (one rank); ranks whose fingerprints differ from rank 0's, by number.
std::unique_ptr<Loader> open_loader(const Deck& deck, const Communicator& world);

}  // namespace fourfold
