// safetensors files: a JSON header that names tensors, then their bytes. Read and written in parts: memory holds the
// header and what the caller asks for. Every rule of the reference reader is an error that names file, offset, tensor
// and rule (Error, input); what cannot be written is Error (storage).
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/files.hpp"

namespace fourfold::safetensors {

inline constexpr std::int64_t kLargestHeader = 100'000'000;  // of the reference reader, in bytes

// A type of elements: its name in the header and its width. Sub-byte types exist (F4: 4 bits).
struct Type {
  const char* name;
  int bits;
};
// Null: no such type.
const Type* find_type(std::string_view name);

struct Tensor {
  std::string name;
  const Type* type = nullptr;
  std::vector<std::int64_t> shape;  // empty: a scalar; a 0 is legal
  std::int64_t begin = 0, end = 0;  // of its bytes, from the start of the data
  std::int64_t bytes() const { return end - begin; }
  std::int64_t elements() const;  // product of the shape, which does not overflow
};

using Metadata = std::map<std::string, std::string>;

struct Header {
  std::vector<Tensor> tensors;                        // in the order of their bytes
  Metadata metadata;                                  // __metadata__
  std::int64_t data_begin = 0;                        // 8 + the header's length
  const Tensor* find(const std::string& name) const;  // null: none
};

// `head`: at least the length and the header of a file of `file_bytes` bytes that is called `path` in messages.
Header parse_header(std::span<const unsigned char> head, std::int64_t file_bytes, const std::string& path);

class Reader {
 public:
  explicit Reader(const std::string& path);
  const std::string& path() const { return file_.path(); }
  const Header& header() const { return header_; }
  // Bytes [first, first + bytes.size()) of the tensor.
  void read(const Tensor& tensor, std::int64_t first, std::span<unsigned char> bytes) const;

 private:
  InputFile file_;
  Header header_;
};

// What to write: sorted by the width of the type (widest first), then by name, as the reference writer does.
struct Entry {
  std::string name;
  const Type* type = nullptr;
  std::vector<std::int64_t> shape;
};

// The length and the header, padded with spaces to a multiple of 8; sets the entries' order. Errors (Error, input): a
// name twice or not UTF-8, "__metadata__" as a name, sizes that overflow or end inside a byte, a header beyond
// kLargestHeader; `path` names the file.
std::string make_header(std::vector<Entry>& entries, const Metadata& metadata, const std::string& path);

class Writer {
 public:
  Writer(const std::string& path, std::vector<Entry> entries, const Metadata& metadata);
  // In this order the bytes are wanted.
  const std::vector<Entry>& entries() const { return entries_; }
  void append(std::span<const unsigned char> bytes) { file_.append(bytes); }
  // Asserts that all bytes came, and brings them to the disk.
  void complete();
  void publish() { file_.publish(); }  // gives the file its name
  void finish() {
    complete();
    publish();
  }

 private:
  std::vector<Entry> entries_;
  std::int64_t expected_ = 0;  // size of the whole file
  NewFile file_;
};

}  // namespace fourfold::safetensors
