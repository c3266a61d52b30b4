// Writers of token files. They have their names only once all of a writer's are whole.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/files.hpp"
#include "data/token_type.hpp"

namespace fourfold {

// What ids of a vocabulary are stored as in Megatron's files: u16 below 65,500, else i32.
TokenType megatron_type(std::int64_t vocab);

// Documents, each of sequences (most have one). Errors: Error (input) for an id that the type cannot hold, with file,
// document, position and id; Error (storage) of the system.
class TokenWriter {
 public:
  virtual ~TokenWriter() = default;
  virtual void add_sequence(std::span<const std::int32_t> ids) = 0;
  virtual void end_document() = 0;
  virtual void complete() = 0;  // all is on the disk
  void publish();               // the files get their names
  void finish() {
    complete();
    publish();
  }
  const std::vector<std::unique_ptr<NewFile>>& files() const { return files_; }  // in the order of their names' making

 protected:
  NewFile& new_file(const std::string& path) { return *files_.emplace_back(std::make_unique<NewFile>(path)); }

 private:
  std::vector<std::unique_ptr<NewFile>> files_;
};

// STEM.bin and STEM.idx; the index comes last, so that a .bin without one is an interrupted conversion.
class MegatronWriter : public TokenWriter {
 public:
  MegatronWriter(std::string stem, TokenType type);  // one of Megatron's codes
  void add_sequence(std::span<const std::int32_t> ids) override;
  void end_document() override;
  void complete() override;

 private:
  std::string stem_;
  TokenType type_;
  NewFile& bin_;
  std::vector<std::int32_t> lengths_;
  std::vector<std::int64_t> documents_{0};
};

// STEM_000000.bin, STEM_000001.bin and so on of llm.c: at most `shard_tokens` tokens in each (documents may go on in
// the next). u16: the kind of GPT-2; u32: of Llama 3. A document begins with `start`.
class LlmcWriter : public TokenWriter {
 public:
  LlmcWriter(std::string stem, TokenType type, std::int32_t start, std::int64_t shard_tokens);
  void add_sequence(std::span<const std::int32_t> ids) override;
  void end_document() override;
  void complete() override;

 private:
  void put(std::int32_t id);
  void close_shard();

  std::string stem_;
  TokenType type_;
  std::int32_t start_;
  std::int64_t shard_tokens_;
  NewFile* shard_ = nullptr;  // that is being filled
  std::int64_t shards_ = 0, in_shard_ = 0;
  std::int64_t document_ = 0, position_ = 0;
  bool open_ = false;  // a document
};

}  // namespace fourfold
