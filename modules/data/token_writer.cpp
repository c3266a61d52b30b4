#include "data/token_writer.hpp"

#include <cstdio>
#include <limits>
#include <utility>

#include "base/error.hpp"
#include "data/llmc.hpp"

namespace fourfold {

namespace {

constexpr std::int64_t kSmallVocab = 65500;  // Megatron's own bound

template <class Number>
void append_number(std::string& bytes, Number number) {
  bytes.append(reinterpret_cast<const char*>(&number), sizeof number);
}

template <class Number>
void append_numbers(NewFile& file, const std::vector<Number>& numbers) {
  file.append({reinterpret_cast<const unsigned char*>(numbers.data()), numbers.size() * sizeof(Number)});
}

[[noreturn]] void does_not_fit(const std::string& file, std::int64_t document, std::int64_t position, std::int32_t id,
                               TokenType type) {
  fail_all(ExitCode::input, file + ": document " + std::to_string(document) + ", position " + std::to_string(position) +
                                ": id " + std::to_string(id) + " does not fit " + token_type_name(type) +
                                ", which holds 0 to " + std::to_string(largest_of(type)));
}

}  // namespace

TokenType megatron_type(std::int64_t vocab) {
  return vocab < kSmallVocab ? TokenType::u16 : TokenType::i32;
}

void TokenWriter::publish() {
  for (const std::unique_ptr<NewFile>& file : files_) file->publish();
}

MegatronWriter::MegatronWriter(std::string stem, TokenType type)
    : stem_(std::move(stem)), type_(type), bin_(new_file(stem_ + ".bin")) {
  FOURFOLD_ASSERT(type != TokenType::u32, "Megatron has no code for u32");
}

void MegatronWriter::add_sequence(std::span<const std::int32_t> ids) {
  if (ids.size() > static_cast<std::size_t>(std::numeric_limits<std::int32_t>::max())) {
    fail_all(ExitCode::input, bin_.path() + ": document " + std::to_string(documents_.size() - 1) + " has " +
                                  std::to_string(ids.size()) + " tokens; Megatron's index counts to 2147483647");
  }
  std::string bytes;
  bytes.reserve(ids.size() * static_cast<std::size_t>(token_bytes(type_)));
  with_token_type(type_, [&](auto stored) {
    for (std::size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] < 0 || ids[i] > largest_of(type_)) {
        does_not_fit(bin_.path(), static_cast<std::int64_t>(documents_.size()) - 1, static_cast<std::int64_t>(i),
                     ids[i], type_);
      }
      append_number(bytes, static_cast<decltype(stored)>(ids[i]));
    }
  });
  bin_.append(std::string_view(bytes));
  lengths_.push_back(static_cast<std::int32_t>(ids.size()));
}

void MegatronWriter::end_document() {
  documents_.push_back(static_cast<std::int64_t>(lengths_.size()));
}

void MegatronWriter::complete() {
  FOURFOLD_ASSERT(documents_.back() == static_cast<std::int64_t>(lengths_.size()), "the last document was ended");
  NewFile& index = new_file(stem_ + ".idx");
  std::string head("MMIDIDX\0\0", 9);
  append_number(head, std::uint64_t{1});
  append_number(head, static_cast<std::uint8_t>(type_));
  append_number(head, static_cast<std::uint64_t>(lengths_.size()));
  append_number(head, static_cast<std::uint64_t>(documents_.size()));
  index.append(std::string_view(head));
  append_numbers(index, lengths_);
  std::int64_t at = 0;
  for (const std::int32_t length : lengths_) {
    index.append({reinterpret_cast<const unsigned char*>(&at), sizeof at});
    at += length * token_bytes(type_);
  }
  append_numbers(index, documents_);
  bin_.complete();
  index.complete();
}

LlmcWriter::LlmcWriter(std::string stem, TokenType type, std::int32_t start, std::int64_t shard_tokens)
    : stem_(std::move(stem)), type_(type), start_(start), shard_tokens_(shard_tokens) {
  FOURFOLD_ASSERT(type == TokenType::u16 || type == TokenType::u32, "llm.c's two kinds");
  FOURFOLD_ASSERT(shard_tokens >= 1 && shard_tokens <= std::numeric_limits<std::int32_t>::max(), "the head's count");
}

void LlmcWriter::put(std::int32_t id) {
  if (shard_ != nullptr && in_shard_ == shard_tokens_) close_shard();
  if (shard_ == nullptr) {
    char name[32];
    std::snprintf(name, sizeof name, "_%06lld.bin", static_cast<long long>(shards_));
    shard_ = &new_file(stem_ + name);
    shard_->append(std::string_view(std::string(kLlmcHead, '\0')));
  }
  if (id < 0 || id > largest_of(type_)) does_not_fit(shard_->path(), document_, position_, id, type_);
  with_token_type(type_, [&](auto stored) {
    const auto number = static_cast<decltype(stored)>(id);
    shard_->append({reinterpret_cast<const unsigned char*>(&number), sizeof number});
  });
  ++in_shard_;
}

void LlmcWriter::add_sequence(std::span<const std::int32_t> ids) {
  if (!std::exchange(open_, true)) put(start_);
  for (const std::int32_t id : ids) {
    put(id);
    ++position_;
  }
}

void LlmcWriter::end_document() {
  if (!open_) put(start_);  // an empty document
  open_ = false;
  position_ = 0;
  ++document_;
}

void LlmcWriter::close_shard() {
  const bool llama = type_ == TokenType::u32;
  const std::int32_t head[3] = {llama ? kLlmcLlama3Tokens : kLlmcGpt2Tokens, llama ? 7 : 1,
                                static_cast<std::int32_t>(in_shard_)};
  shard_->write_at(0, {reinterpret_cast<const unsigned char*>(head), sizeof head});
  shard_->complete();
  shard_ = nullptr;
  ++shards_;
  in_shard_ = 0;
}

void LlmcWriter::complete() {
  if (shard_ != nullptr) close_shard();
}

}  // namespace fourfold
