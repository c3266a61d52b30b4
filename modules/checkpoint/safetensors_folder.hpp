// A model's weights as a folder holds them: model.safetensors, or model-00001-of-00003.safetensors and so on with
// model.safetensors.index.json.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/safetensors.hpp"

namespace fourfold::safetensors {

// All tensors of the files that a folder's index names, or of its one file. A path to a single file is taken too.
// Errors (Error, input), beside those of the files: no weights there; an index that is not of the form
// {"weight_map": {name: file}}; a name in two files; index and files that do not hold the same names.
class FolderReader {
 public:
  explicit FolderReader(const std::string& path);

  struct Place {
    const Reader* file;
    const Tensor* tensor;
  };
  const std::vector<Place>& tensors() const { return tensors_; }  // sorted by name
  const Place* find(const std::string& name) const;               // null: none

 private:
  std::vector<std::unique_ptr<Reader>> files_;
  std::vector<Place> tensors_;
};

// Writes the tensors to `folder` in their order, a new file where the next tensor would exceed `shard_bytes` of data;
// one file is called model.safetensors, more get an index. `fill` appends the bytes of an entry to the writer in parts.
// Errors: the Writer's.
void write_folder(const std::string& folder, const std::vector<Entry>& entries, std::int64_t shard_bytes,
                  const Metadata& metadata, const std::function<void(const Entry&, Writer&)>& fill);

}  // namespace fourfold::safetensors
