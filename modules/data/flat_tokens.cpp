#include "data/flat_tokens.hpp"

#include <filesystem>
#include <utility>

#include "base/error.hpp"

namespace fourfold {

namespace {

// What a model can take as an id; anything else becomes -1, which no vocabulary has. place() tells the number itself.
std::int32_t id_of(std::int64_t stored) {
  return stored >= 0 && stored <= std::numeric_limits<std::int32_t>::max() ? static_cast<std::int32_t>(stored) : -1;
}

}  // namespace

FlatTokens::FlatTokens(MappedFile file, std::int64_t begin, TokenType type, std::int64_t count, std::string kind)
    : file_(std::move(file)), begin_(begin), type_(type), count_(count), kind_(std::move(kind)) {
  FOURFOLD_ASSERT(begin + count * token_bytes(type) <= static_cast<std::int64_t>(file_.bytes().size()),
                  "the ids lie in the file");
}

FlatTokens::FlatTokens(MappedFile bin, MappedFile index_file, const MegatronIndex& index)
    : FlatTokens(std::move(bin), 0, index.type(), index.tokens(), "megatron") {
  index_file_ = std::move(index_file);
  index_ = index;
}

std::string FlatTokens::describe() const {
  std::string text = kind_ + " " + std::filesystem::path(file_.path()).filename().string() + " " +
                     token_type_name(type_) + " tokens " + std::to_string(count_);
  if (index_) text += " documents " + std::to_string(index_->documents());
  return text + "\n";
}

TokenPlace FlatTokens::place(std::int64_t position) const {
  TokenPlace place{file_.path(), 0, position};
  place.offset = begin_ + position * token_bytes(type_);
  if (position < count_) {
    place.id = with_token_type(type_, [&](auto stored) {
      return static_cast<std::int64_t>(load_number<decltype(stored)>(file_.bytes().data() + place.offset));
    });
  }
  if (index_ && index_->documents() > 0) {
    place.document = index_->document_of(position);
    place.position = position - index_->document_begin(place.document);
  }
  return place;
}

void FlatTokens::read(std::int64_t first, std::span<std::int32_t> ids) const {
  FOURFOLD_ASSERT(first >= 0 && first + static_cast<std::int64_t>(ids.size()) <= count_, "tokens lie in the stream");
  const unsigned char* at = file_.bytes().data() + begin_ + first * token_bytes(type_);
  with_token_type(type_, [&](auto stored) {
    for (std::int32_t& id : ids) {
      id = id_of(static_cast<std::int64_t>(load_number<decltype(stored)>(at)));
      at += sizeof stored;
    }
  });
}

}  // namespace fourfold
