#include "data/token_samples.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.hpp"
#include "data/bytes.hpp"
#include "deck/deck.hpp"

namespace fourfold {

namespace {

bool legal(std::int32_t id, std::int64_t vocab) {
  return id >= 0 && id < vocab;
}

std::string complaint(const TokenSource& source, std::int64_t position, std::int64_t vocab) {
  const TokenPlace place = source.place(position);
  std::string text = place.file + ": document " + std::to_string(place.document) + ", position " +
                     std::to_string(place.position) + ", byte " + std::to_string(place.offset) + ": id " +
                     std::to_string(place.id) + " is not below model.vocab " + std::to_string(vocab);
  if (source.largest_id() == kEndOfDocument) {
    text += "; text as bytes needs model.vocab " + std::to_string(kByteVocab) + " (256 ends a document)";
  }
  return text;
}

}  // namespace

void require_ids_below(const TokenSource& source, std::int64_t vocab, int scanner, int scanners) {
  if (source.largest_id() < vocab) return;
  std::array<std::int32_t, 4096> chunk;
  const Range mine = source.size() > kSharedScan ? part(source.size(), scanners, scanner) : Range{0, source.size()};
  for (std::int64_t first = mine.begin; first < mine.end; first += static_cast<std::int64_t>(chunk.size())) {
    const std::int64_t count = std::min(mine.end - first, static_cast<std::int64_t>(chunk.size()));
    const std::span<std::int32_t> ids(chunk.data(), static_cast<std::size_t>(count));
    source.read(first, ids);
    const auto bad = std::find_if(ids.begin(), ids.end(), [&](std::int32_t id) { return !legal(id, vocab); });
    if (bad != ids.end()) fail_all(ExitCode::input, complaint(source, first + (bad - ids.begin()), vocab));
  }
}

std::int64_t whole_sequences(const TokenSource& source, std::int64_t tokens) {
  return source.size() < 1 ? 0 : (source.size() - 1) / tokens;
}

TokenSamples::TokenSamples(std::shared_ptr<const TokenSource> source, Range range, std::int64_t tokens,
                           std::int64_t vocab)
    : source_(std::move(source)), range_(range), tokens_(tokens), vocab_(vocab) {}

std::int64_t TokenSamples::bytes(std::int64_t begin, std::int64_t end) const {
  return source_->bytes((range_.begin + begin) * tokens_ + 1, (range_.begin + end) * tokens_ + 1);
}

void TokenSamples::append(std::int64_t index, Batch& batch) const {
  const std::int64_t first = (range_.begin + index) * tokens_;
  const std::size_t old = batch.ids.size();
  const std::size_t tokens = static_cast<std::size_t>(tokens_);
  batch.ids.resize(old + tokens);
  batch.targets.resize(old + tokens);
  const std::span<std::int32_t> ids = std::span(batch.ids).subspan(old);
  const std::span<std::int32_t> targets = std::span(batch.targets).subspan(old);
  source_->read(first, ids);
  source_->read(first + 1, targets);
  // The file may have changed since the start, and a bad id would read outside the embedding table.
  for (std::size_t i = 0; i < tokens; ++i) {
    if (!legal(ids[i], vocab_)) {
      fail_one(ExitCode::input, complaint(*source_, first + static_cast<std::int64_t>(i), vocab_));
    }
    if (!legal(targets[i], vocab_)) {
      fail_one(ExitCode::input, complaint(*source_, first + 1 + static_cast<std::int64_t>(i), vocab_));
    }
  }
  ++batch.sequences;
}

}  // namespace fourfold
