#include "data/loader.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <optional>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "comm/collectives.hpp"
#include "data/bytes.hpp"
#include "data/file_list.hpp"
#include "data/goldfish.hpp"
#include "data/synthetic.hpp"
#include "data/token_files.hpp"
#include "data/token_samples.hpp"
#include "grid/partition.hpp"

namespace fourfold {

namespace {

// FNV-1a, 64 bits.
std::uint64_t hash_of(const std::string& text) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

[[noreturn]] void too_short(const std::string& key, const TokenSource& source, std::int64_t tokens,
                            std::int64_t wanted) {
  const std::string first = source.place(0).file;
  const std::string last = source.place(source.size() - 1).file;
  fail_all(ExitCode::input, key + ": " + (first == last ? first + " holds " : first + " to " + last + " hold ") +
                                std::to_string(source.size()) + " tokens, but " + std::to_string(wanted) +
                                (wanted == 1 ? " sequence of " : " sequences of ") + std::to_string(tokens) + " take " +
                                std::to_string(wanted * tokens + 1));
}

// A coordinate's part of a micro-batch, the sequences [begin, begin + all), without what is in it.
Batch shape_of(const Samples& samples, std::int64_t begin, std::int64_t all, const Range& mine) {
  Batch batch;
  batch.all_sequences = all;
  batch.sequences = mine.size();
  batch.tokens = samples.tokens();
  batch.first_sample = begin + mine.begin;
  return batch;
}

// No target in a row whose input ends a document: what comes next is of another one.
void mask_after(std::int32_t end, Batch& batch) {
  for (std::size_t row = 0; row < batch.ids.size(); ++row) {
    if (batch.ids[row] == end) batch.targets[row] = -1;
  }
}

std::string corpus_key(std::size_t i) {
  return "data.train[" + std::to_string(i) + "]";
}

std::unique_ptr<Samples> joined(std::vector<std::unique_ptr<Samples>> parts) {
  if (parts.size() == 1) return std::move(parts.front());
  return std::make_unique<JoinedSamples>(std::move(parts));
}

// Empties a batch but keeps its memory.
Batch emptied(Batch batch) {
  batch.sequences = batch.all_sequences = batch.input_width = batch.value_width = batch.first_sample = 0;
  batch.samples.clear();
  batch.ids.clear();
  batch.targets.clear();
  batch.inputs.clear();
  batch.values.clear();
  return batch;
}

}  // namespace

Loader::Loader(const Deck& deck, int part, int parts) {
  if (deck.data.kind == DataKind::synthetic) {
    const std::int64_t samples = deck.data.samples;
    if (samples < 1) fail_all(ExitCode::input, "data.samples: synthetic data needs the number of samples in an epoch");
    train_ = make_synthetic(deck, Range{0, samples});
    if (deck.data.valid_samples > 0) valid_ = make_synthetic(deck, Range{samples, samples + deck.data.valid_samples});
    finish(deck, deck.data.synthetic == SyntheticKind::teacher ? "synthetic teacher\n" : "synthetic dyadic\n",
           {samples});
    return;
  }
  const std::vector<std::string> files = expand_files(deck.data.train, "data.train");
  std::vector<Stream> corpora;
  if (deck.data.weights.empty()) {
    corpora.push_back(open_token_files(files, deck.data.raw, "data.train"));
  } else {  // each entry of the list is a corpus of its own
    for (std::size_t i = 0; i < deck.data.train.size(); ++i) {
      const std::string key = corpus_key(i);
      corpora.push_back(open_token_files(expand_files({deck.data.train[i]}, key), deck.data.raw, key));
    }
  }
  Stream valid;
  if (!deck.data.valid.empty()) {
    const std::vector<std::string> held_out = expand_files(deck.data.valid, "data.valid");
    require_disjoint(files, held_out);
    valid = open_token_files(held_out, deck.data.raw, "data.valid");
  }
  use_streams(deck, corpora, valid, part, parts);
}

Loader::Loader(const Deck& deck, std::shared_ptr<const TokenSource> train,
               const std::shared_ptr<const TokenSource>& valid) {
  use_streams(deck, {std::move(train)}, valid, 0, 1);
}

void Loader::use_streams(const Deck& deck, const std::vector<Stream>& corpora, const Stream& valid, int part,
                         int parts) {
  if (takes_rows(deck.model.kind)) {
    fail_all(ExitCode::input,
             "data.kind: files needs a model with a vocabulary; model.kind mlp and residual take synthetic");
  }
  const std::int64_t tokens = std::max<std::int64_t>(1, deck.model.sequence);
  const std::int64_t vocab = deck.model.vocab;
  const bool cut_tail = !valid && deck.data.valid_fraction > 0.0;
  std::string facts;
  std::vector<std::unique_ptr<Samples>> trained, held_out;
  std::vector<std::int64_t> sizes;
  for (std::size_t i = 0; i < corpora.size(); ++i) {
    const Stream& stream = corpora[i];
    const std::string key = corpora.size() == 1 ? "data.train" : corpus_key(i);
    const std::int64_t sequences = whole_sequences(*stream, tokens);
    if (sequences < 1) too_short(key, *stream, tokens, 1);
    require_ids_below(*stream, vocab, part, parts);
    facts += "train\n" + stream->describe();
    if (corpora.size() > 1) facts += "weight " + std::to_string(deck.data.weights[i]) + "\n";
    Range range{0, sequences};
    if (cut_tail) {
      // The tail, in whole sequences and at least one. It shares one token with the training part: the last training
      // target is the first validation input, and no target is in both.
      if (sequences < 2) too_short(key + " (with data.valid_fraction)", *stream, tokens, 2);
      const std::int64_t wanted = std::llround(deck.data.valid_fraction * static_cast<double>(sequences));
      range.end = sequences - std::clamp<std::int64_t>(wanted, 1, sequences - 1);
      held_out.push_back(std::make_unique<TokenSamples>(stream, Range{range.end, sequences}, tokens, vocab));
    }
    sizes.push_back(range.size());
    trained.push_back(std::make_unique<TokenSamples>(stream, range, tokens, vocab));
  }
  if (valid) {
    const std::int64_t sequences = whole_sequences(*valid, tokens);
    if (sequences < 1) too_short("data.valid", *valid, tokens, 1);
    require_ids_below(*valid, vocab, part, parts);
    facts += "valid\n" + valid->describe();
    held_out.push_back(std::make_unique<TokenSamples>(valid, Range{0, sequences}, tokens, vocab));
  }
  train_ = joined(std::move(trained));
  if (!held_out.empty()) valid_ = joined(std::move(held_out));
  if (deck.data.mask_document_ends) {
    masked_end_ = static_cast<std::int32_t>(deck.data.end_of_document);
    facts += "no targets after " + std::to_string(masked_end_) + "\n";
  }
  finish(deck, facts, sizes);
}

void Loader::finish(const Deck& deck, const std::string& facts, const std::vector<std::int64_t>& sizes) {
  global_ = deck.batch.global;
  micro_batches_ = deck.batch.micro_batches;
  eval_limit_ = deck.eval.samples;
  goldfish_ = deck.loss.goldfish;
  FOURFOLD_ASSERT(global_ >= 1 && micro_batches_ >= 1 && global_ % micro_batches_ == 0,
                  "the deck's batch is resolved before data is opened");
  order_ = std::make_unique<MixedOrder>(deck.run.seed, sizes,
                                        sizes.size() == 1 ? std::vector<std::int64_t>{1} : deck.data.weights);
  fingerprint_.text = facts + "sequence " + std::to_string(train_->tokens()) + "\ntraining samples " +
                      std::to_string(train_->count()) + "\nvalidation samples " +
                      std::to_string(valid_ ? valid_->count() : 0) + "\nseed " + std::to_string(deck.run.seed) + "\n";
  fingerprint_.hash = hash_of(fingerprint_.text);
}

Batch Loader::micro_batch_shape(std::int64_t micro_index, std::int64_t coordinates, std::int64_t coordinate) const {
  const std::int64_t run = global_ / micro_batches_;
  return shape_of(*train_, micro_index * run, run, part(run, coordinates, coordinate));
}

Batch Loader::eval_batch_shape(std::int64_t index, std::int64_t coordinates, std::int64_t coordinate) const {
  const std::int64_t run = global_ / micro_batches_;
  const std::int64_t begin = index * run;
  const std::int64_t all = std::min(run, eval_samples() - begin);
  return shape_of(*valid_, begin, all, part(all, coordinates, coordinate));
}

Batch Loader::micro_batch(std::int64_t cursor, std::int64_t micro_index, std::int64_t coordinates,
                          std::int64_t coordinate, Batch reuse) const {
  FOURFOLD_ASSERT(cursor >= 0 && micro_index >= 0 && micro_index < micro_batches_, "a micro-batch of the step");
  const std::int64_t run = global_ / micro_batches_;
  const Range mine = part(run, coordinates, coordinate);
  Batch batch = emptied(std::move(reuse));
  batch.tokens = train_->tokens();
  batch.all_sequences = run;
  batch.first_sample = micro_index * run + mine.begin;
  for (std::int64_t i = 0; i < mine.size(); ++i) {
    batch.samples.push_back(order_->at(cursor + batch.first_sample + i));
    train_->append(batch.samples.back(), batch);
  }
  drop_targets(goldfish_, batch);
  if (masked_end_ >= 0) mask_after(masked_end_, batch);
  return batch;
}

std::int64_t Loader::targets_in_step(std::int64_t cursor, std::int64_t coordinates, std::int64_t coordinate) const {
  if (!drops_targets()) {  // every row is a target, whichever samples the step takes
    return micro_batches_ * part(global_ / micro_batches_, coordinates, coordinate).size() * train_->tokens();
  }
  std::int64_t targets = 0;
  Batch batch;
  for (std::int64_t m = 0; m < micro_batches_; ++m) {
    batch = micro_batch(cursor, m, coordinates, coordinate, std::move(batch));
    targets += std::count_if(batch.targets.begin(), batch.targets.end(), [](std::int32_t id) { return id >= 0; });
  }
  return targets;
}

std::int64_t Loader::eval_samples() const {
  if (!valid_) return 0;
  return eval_limit_ > 0 ? std::min(eval_limit_, valid_->count()) : valid_->count();
}

std::int64_t Loader::eval_batches() const {
  const std::int64_t run = global_ / micro_batches_;
  return (eval_samples() + run - 1) / run;
}

Batch Loader::eval_batch(std::int64_t index, std::int64_t coordinates, std::int64_t coordinate, Batch reuse) const {
  FOURFOLD_ASSERT(index >= 0 && index < eval_batches(), "a batch of the evaluation");
  const std::int64_t run = global_ / micro_batches_;
  const std::int64_t begin = index * run;
  const std::int64_t all = std::min(run, eval_samples() - begin);
  const Range mine = part(all, coordinates, coordinate);
  Batch batch = emptied(std::move(reuse));
  batch.all_sequences = all;
  batch.tokens = valid_->tokens();
  batch.first_sample = begin + mine.begin;
  for (std::int64_t i = 0; i < mine.size(); ++i) {
    batch.samples.push_back(batch.first_sample + i);
    valid_->append(batch.samples.back(), batch);
  }
  return batch;
}

std::int64_t Loader::eval_targets() const {
  return valid_ ? eval_samples() * valid_->tokens() : 0;
}

std::int64_t Loader::eval_bytes() const {
  return valid_ ? valid_->bytes(0, eval_samples()) : 0;
}

std::string Loader::eval_text() const {
  std::string text;
  if (eval_bytes() == 0) return text;
  text.reserve(static_cast<std::size_t>(eval_bytes()));
  Batch batch;
  for (std::int64_t i = 0; i < eval_batches(); ++i) {
    batch = eval_batch(i, 1, 0, std::move(batch));
    text += decode_bytes(batch.targets);
  }
  return text;
}

std::unique_ptr<Loader> open_loader(const Deck& deck, const Communicator& world) {
  std::unique_ptr<Loader> loader;
  std::optional<Error> failure;
  try {
    loader = std::make_unique<Loader>(deck, world.rank(), world.size());
  } catch (const Error& error) {
    failure = error;
  }
  const std::array<std::int64_t, 2> mine{failure ? 1 : 0,
                                         loader ? std::bit_cast<std::int64_t>(loader->fingerprint().hash) : 0};
  std::vector<std::int64_t> all(2 * static_cast<std::size_t>(world.size()));
  const std::vector<std::int64_t> sizes(static_cast<std::size_t>(world.size()), 2);
  all_gather<std::int64_t>(world, mine, all, sizes, Phase::setup);

  std::int64_t failed = 0;
  std::string others;
  for (std::size_t rank = 0; rank < sizes.size(); ++rank) {
    failed += all[2 * rank];
    if (all[2 * rank + 1] != all[1]) others += (others.empty() ? "" : ", ") + std::to_string(rank);
  }
  if (failure) {
    if (failed == world.size()) throw *failure;
    fail_one(failure->code(), failure->what());
  }
  // Where some failed, theirs is the message; the job is about to be aborted.
  if (failed == 0 && !others.empty()) {
    fail_all(ExitCode::input,
             "ranks " + others + " see other data files than rank 0, which has:\n" + loader->fingerprint().text);
  }
  return loader;
}

}  // namespace fourfold
