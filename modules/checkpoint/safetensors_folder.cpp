#include "checkpoint/safetensors_folder.hpp"

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.hpp"
#include "base/strict_json.hpp"

namespace fourfold::safetensors {

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

std::map<std::string, std::string> read_index(const std::string& path) {
  const Json json = parse_strict_json(read_text_file(path, kLargestHeader), path);
  const auto map = json.is_object() ? json.find("weight_map") : json.end();
  if (map == json.end() || !map->is_object()) fail_all(ExitCode::input, path + ": weight_map must be an object");
  std::map<std::string, std::string> files;
  for (const auto& [name, file] : map->items()) {
    const std::string text = file.is_string() ? file.get<std::string>() : "";
    // A path out of the folder is no shard.
    if (text.empty() || text.find('/') != std::string::npos || text == "." || text == "..") {
      fail_all(ExitCode::input, path + ": weight_map " + Json(name).dump() + " must be the name of a file beside it");
    }
    files.emplace(name, text);
  }
  return files;
}

std::string shard_name(std::size_t number, std::size_t count) {
  char name[64];
  std::snprintf(name, sizeof name, "model-%05zu-of-%05zu.safetensors", number, count);
  return name;
}

std::int64_t bytes_of(const Entry& entry) {
  std::int64_t elements = 1;
  for (const std::int64_t extent : entry.shape) elements *= extent;
  return elements * entry.type->bits / 8;
}

}  // namespace

FolderReader::FolderReader(const std::string& path) {
  std::error_code ignored;
  std::map<std::string, std::string> index;  // tensor -> file
  const std::string index_path = (fs::path(path) / kIndex).string();
  const bool indexed = fs::is_directory(path, ignored) && fs::exists(index_path, ignored);
  if (!fs::is_directory(path, ignored)) {
    files_.push_back(std::make_unique<Reader>(path));
  } else if (indexed) {
    index = read_index(index_path);
    std::set<std::string> names;
    for (const auto& [tensor, file] : index) names.insert(file);
    for (const std::string& name : names) files_.push_back(std::make_unique<Reader>((fs::path(path) / name).string()));
  } else if (fs::exists(fs::path(path) / kSingle, ignored)) {
    files_.push_back(std::make_unique<Reader>((fs::path(path) / kSingle).string()));
  } else {
    fail_all(ExitCode::input, path + ": holds neither " + kSingle + " nor " + kIndex);
  }

  for (const std::unique_ptr<Reader>& file : files_) {
    for (const Tensor& tensor : file->header().tensors) tensors_.push_back({file.get(), &tensor});
  }
  std::sort(tensors_.begin(), tensors_.end(),
            [](const Place& a, const Place& b) { return a.tensor->name < b.tensor->name; });
  for (std::size_t i = 1; i < tensors_.size(); ++i) {
    if (tensors_[i - 1].tensor->name == tensors_[i].tensor->name) {
      fail_all(ExitCode::input, "tensor " + tensors_[i].tensor->name + " is in " + tensors_[i - 1].file->path() +
                                    " and in " + tensors_[i].file->path());
    }
  }
  if (!indexed) return;
  std::string faults;
  for (const auto& [name, file] : index) {
    const Place* place = find(name);
    if (place == nullptr || fs::path(place->file->path()).filename() != file) {
      faults += "\n  " + name + " is not in " + file;
    }
  }
  for (const Place& place : tensors_) {
    if (index.count(place.tensor->name) == 0) {
      faults += "\n  " + place.tensor->name + " of " + place.file->path() + " is not in the index";
    }
  }
  if (!faults.empty()) fail_all(ExitCode::input, index_path + ": index and files hold different names:" + faults);
}

const FolderReader::Place* FolderReader::find(const std::string& name) const {
  const auto found =
      std::lower_bound(tensors_.begin(), tensors_.end(), name,
                       [](const Place& place, const std::string& to) { return place.tensor->name < to; });
  return found == tensors_.end() || found->tensor->name != name ? nullptr : &*found;
}

void write_folder(const std::string& folder, const std::vector<Entry>& entries, std::int64_t shard_bytes,
                  const Metadata& metadata, const std::function<void(const Entry&, Writer&)>& fill) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (error) fail_all(ExitCode::storage, folder + ": " + error.message());
  std::vector<std::vector<Entry>> shards(1);
  std::int64_t in_shard = 0, total = 0;
  for (const Entry& entry : entries) {
    const std::int64_t bytes = bytes_of(entry);
    if (!shards.back().empty() && in_shard + bytes > shard_bytes) {
      shards.emplace_back();
      in_shard = 0;
    }
    shards.back().push_back(entry);
    in_shard += bytes;
    total += bytes;
  }
  Json map = Json::object();
  std::vector<std::unique_ptr<Writer>> writers;
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const std::string name = shards.size() == 1 ? kSingle : shard_name(i + 1, shards.size());
    for (const Entry& entry : shards[i]) map[entry.name] = name;
    Writer& writer = *writers.emplace_back(
        std::make_unique<Writer>((fs::path(folder) / name).string(), std::move(shards[i]), metadata));
    for (const Entry& entry : writer.entries()) fill(entry, writer);
    writer.complete();
  }
  const std::string index_path = (fs::path(folder) / kIndex).string();
  NewFile index(index_path);
  index.append(Json{{"metadata", {{"total_size", total}}}, {"weight_map", std::move(map)}}.dump(2) + "\n");
  index.complete();
  // Without what names an earlier export's files, a folder that is cut off from here on is no export, and not one of
  // old and new files.
  for (const char* name : {kIndex, kSingle}) {
    fs::remove(fs::path(folder) / name, error);
    if (error) fail_all(ExitCode::storage, (fs::path(folder) / name).string() + ": " + error.message());
  }
  sync_folder_of(index_path);
  for (const std::unique_ptr<Writer>& writer : writers) writer->publish();
  if (writers.size() > 1) index.publish();
}

}  // namespace fourfold::safetensors
