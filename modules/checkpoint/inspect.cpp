#include "checkpoint/inspect.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <set>

#include "base/error.hpp"
#include "checkpoint/checksum.hpp"
#include "checkpoint/folder.hpp"
#include "checkpoint/posix.hpp"
#include "h5/file.hpp"
#include "h5/transfer.hpp"

namespace fourfold::checkpoint {

namespace {

constexpr std::int64_t kMostBytes = kChunkElements * 8;

// Reads elements [begin, begin + count) of a dataset as they are stored.
class Blocks {
 public:
  Blocks(const h5::Dataset& dataset, const Shard& shard)
      : dataset_(dataset), shard_(shard), bytes_(h5::element_bytes(dataset.type())) {}

  const unsigned char* read(Range local) {
    // read_shard places what it reads where the whole shard's elements would be: the buffer holds this block alone.
    Shard block = shard_;
    block.flat = local;
    buffer_.resize(static_cast<std::size_t>(local.size() * bytes_));
    h5::read_shard(dataset_, block, {0, local.size()}, buffer_.data(), {1, kMostBytes});
    return buffer_.data();
  }

 private:
  const h5::Dataset& dataset_;
  Shard shard_;
  std::int64_t bytes_;
  std::vector<unsigned char> buffer_;
};

double element(const unsigned char* data, h5::ElementType type, std::int64_t i) {
  switch (type) {
    case h5::ElementType::fp64:
      return reinterpret_cast<const double*>(data)[i];
    case h5::ElementType::fp32:
      return static_cast<double>(reinterpret_cast<const float*>(data)[i]);
    case h5::ElementType::bf16: {
      const std::uint32_t bits = std::uint32_t{reinterpret_cast<const std::uint16_t*>(data)[i]} << 16;
      float value;
      std::memcpy(&value, &bits, sizeof value);
      return static_cast<double>(value);
    }
    case h5::ElementType::int64:
      return static_cast<double>(reinterpret_cast<const std::int64_t*>(data)[i]);
    case h5::ElementType::int32:
      return static_cast<double>(reinterpret_cast<const std::int32_t*>(data)[i]);
  }
  return 0;
}

void verify_contents(const std::string& path, const CommitRecord& record) {
  const h5::File file = h5::File::open_serial(path);
  for (const DatasetRecord& dataset : record.datasets) {
    const h5::Dataset stored = file.dataset(dataset.name);
    const Shard all = whole_shard(dataset.shape);
    Blocks blocks(stored, all);
    std::vector<std::uint64_t> sums(static_cast<std::size_t>(chunks_of(all.size())), 0);
    for (std::int64_t begin = 0; begin < all.size(); begin += kChunkElements) {
      const Range block{begin, std::min(begin + kChunkElements, all.size())};
      Shard part = all;
      part.flat = block;
      add_checksums(part, {0, block.size()}, blocks.read(block), h5::element_bytes(dataset.type), sums);
      const auto chunk = static_cast<std::size_t>(begin / kChunkElements);
      if (sums[chunk] != dataset.checksums[chunk]) {
        fail_one(ExitCode::storage, path + ":" + dataset.name + ": the checksum of elements " + std::to_string(begin) +
                                        " to " + std::to_string(block.end - 1) + " differs");
      }
    }
  }
}

// "/optimizer/m/x" is of kind "/optimizer/m", "/params/x" of "/params".
std::string kind_of(const std::string& name) {
  const std::size_t first = name.find('/', 1);
  return name.starts_with("/optimizer/") ? name.substr(0, name.find('/', first + 1)) : name.substr(0, first);
}

struct Extremes {
  double distance = 0, largest = 0;
};

Extremes compare_dataset(const h5::File& a, const h5::File& b, const DatasetRecord& record) {
  const h5::Dataset in_a = a.dataset(record.name), in_b = b.dataset(record.name);
  const Shard all = whole_shard(record.shape);
  Blocks blocks_a(in_a, all), blocks_b(in_b, all);
  Extremes extremes;
  for (std::int64_t begin = 0; begin < all.size(); begin += kChunkElements) {
    const Range block{begin, std::min(begin + kChunkElements, all.size())};
    const unsigned char* x = blocks_a.read(block);
    const unsigned char* y = blocks_b.read(block);
    for (std::int64_t i = 0; i < block.size(); ++i) {
      const double u = element(x, record.type, i), v = element(y, record.type, i);
      if (std::isfinite(u)) extremes.largest = std::max(extremes.largest, std::abs(u));
      if (std::isnan(u) && std::isnan(v)) continue;
      const double distance = u == v ? 0.0 : std::abs(u - v);
      extremes.distance =
          std::isnan(distance) ? std::numeric_limits<double>::infinity() : std::max(extremes.distance, distance);
    }
  }
  return extremes;
}

std::map<std::string, DatasetRecord> by_name(const CommitRecord& record) {
  std::map<std::string, DatasetRecord> datasets;
  for (const DatasetRecord& dataset : record.datasets) datasets[dataset.name] = dataset;
  return datasets;
}

// verified_record, its errors with the file's name.
CommitRecord named_record(const std::string& folder, std::int64_t step) {
  try {
    return verified_record(folder, step);
  } catch (const Error& error) {
    const std::string path = StepFiles(folder, step).data;
    const std::string what = error.what();
    fail_one(error.code(), what.find(path) == std::string::npos ? path + ": " + what : what);
  }
}

}  // namespace

std::vector<std::int64_t> committed_steps(const std::string& folder) {
  return steps_with(folder, ".commit");
}

std::vector<std::int64_t> uncommitted_steps(const std::string& folder) {
  std::vector<std::int64_t> steps = steps_with(folder, ".h5.tmp");
  for (const std::int64_t step : steps_with(folder, ".h5")) {
    if (!file_size(StepFiles(folder, step).commit)) steps.push_back(step);
  }
  std::sort(steps.begin(), steps.end());
  steps.erase(std::unique(steps.begin(), steps.end()), steps.end());
  return steps;
}

std::optional<StepPlace> place_of(const std::string& file) {
  const std::filesystem::path path(file);
  const auto step = step_named(path.filename().string(), ".h5");
  if (!step) return std::nullopt;
  return StepPlace{path.has_parent_path() ? path.parent_path().string() : ".", *step};
}

std::string rejection(const StepPlace& place) {
  const StepFiles files(place.folder, place.step);
  if (!file_size(files.commit)) return "it is not committed";
  return file_size(files.rejected) ? read_file(files.rejected) : "";
}

Census census(const StepPlace& place, const DatasetRecord& dataset) {
  const h5::File file = h5::File::open_serial(StepFiles(place.folder, place.step).data);
  const h5::Dataset stored = file.dataset(dataset.name);
  const Shard all = whole_shard(dataset.shape);
  Blocks blocks(stored, all);
  const double smallest = dataset.type == h5::ElementType::fp64 ? std::numeric_limits<double>::min()
                                                                : double{std::numeric_limits<float>::min()};
  Census found;
  for (std::int64_t begin = 0; begin < all.size(); begin += kChunkElements) {
    const Range block{begin, std::min(begin + kChunkElements, all.size())};
    const unsigned char* data = blocks.read(block);
    for (std::int64_t i = 0; i < block.size(); ++i) {
      const double magnitude = std::abs(element(data, dataset.type, i));
      if (!std::isfinite(magnitude)) {
        ++found.non_finite;
        continue;
      }
      found.largest = std::max(found.largest, magnitude);
      if (magnitude > 0 && magnitude < smallest) ++found.denormal;
    }
  }
  return found;
}

CommitRecord inspect_step(const std::string& folder, std::int64_t step, bool contents) {
  CommitRecord record = named_record(folder, step);
  if (contents) verify_contents(StepFiles(folder, step).data, record);
  return record;
}

double TensorDifference::relative() const {
  if (distance == 0) return 0;
  return largest_kind > 0 ? distance / largest_kind : std::numeric_limits<double>::infinity();
}

namespace {

std::string shape_text(const DatasetRecord& record) {
  std::string text(h5::element_name(record.type));
  for (std::size_t dim = 0; dim < record.shape.size(); ++dim)
    text += (dim == 0 ? " " : " x ") + std::to_string(record.shape[dim]);
  return text;
}

// Of the tensors that both records have alike.
std::vector<TensorDifference> distances(const StepPlace& a, const StepPlace& b,
                                        const std::map<std::string, DatasetRecord>& in_a,
                                        const std::map<std::string, DatasetRecord>& in_b) {
  const h5::File file_a = h5::File::open_serial(StepFiles(a.folder, a.step).data);
  const h5::File file_b = h5::File::open_serial(StepFiles(b.folder, b.step).data);
  std::vector<TensorDifference> differences;
  std::map<std::string, double> largest;
  for (const auto& [name, record] : in_a) {
    const auto found = in_b.find(name);
    if (found == in_b.end() || found->second.shape != record.shape || found->second.type != record.type) continue;
    const Extremes extremes = compare_dataset(file_a, file_b, record);
    differences.push_back({name, extremes.distance, 0});
    double& most = largest[kind_of(name)];
    most = std::max(most, extremes.largest);
  }
  for (TensorDifference& difference : differences) difference.largest_kind = largest[kind_of(difference.name)];
  // What a step makes first comes first.
  const auto place = [](const std::string& name) {
    return name.starts_with("/gradients/") ? 0 : name.starts_with("/params/") ? 1 : 2;
  };
  std::stable_sort(differences.begin(), differences.end(),
                   [&](const auto& x, const auto& y) { return place(x.name) < place(y.name); });
  return differences;
}

}  // namespace

StateDifferences compare_states(const StepPlace& a, const StepPlace& b) {
  const auto in_a = by_name(named_record(a.folder, a.step)), in_b = by_name(named_record(b.folder, b.step));
  StateDifferences differences;
  for (const auto& [name, record] : in_a) {
    const auto found = in_b.find(name);
    if (found == in_b.end()) {
      differences.unlike.push_back("only in the first: " + name + " (" + shape_text(record) + ")");
    } else if (shape_text(found->second) != shape_text(record)) {
      differences.unlike.push_back(name + " is " + shape_text(record) + " in the first, " + shape_text(found->second) +
                                   " in the second");
    }
  }
  for (const auto& [name, record] : in_b) {
    if (!in_a.contains(name))
      differences.unlike.push_back("only in the second: " + name + " (" + shape_text(record) + ")");
  }
  differences.tensors = distances(a, b, in_a, in_b);
  return differences;
}

std::vector<TensorDifference> compare_steps(const std::string& folder_a, const std::string& folder_b,
                                            std::int64_t step) {
  const std::string path_a = StepFiles(folder_a, step).data, path_b = StepFiles(folder_b, step).data;
  const auto in_a = by_name(named_record(folder_a, step)), in_b = by_name(named_record(folder_b, step));
  std::set<std::string> kinds_a, kinds_b;
  for (const auto& entry : in_a) kinds_a.insert(kind_of(entry.first));
  for (const auto& entry : in_b) kinds_b.insert(kind_of(entry.first));
  const auto require_in = [](const auto& some, const auto& others, const std::set<std::string>& kinds,
                             const std::string& path) {
    for (const auto& entry : some) {
      if (kinds.contains(kind_of(entry.first)) && !others.contains(entry.first))
        fail_one(ExitCode::input, path + " has no " + entry.first + ": these are states of different models");
    }
  };
  require_in(in_a, in_b, kinds_b, path_b);
  require_in(in_b, in_a, kinds_a, path_a);

  for (const auto& [name, record] : in_a) {
    const auto found = in_b.find(name);
    if (found == in_b.end()) continue;
    if (found->second.shape != record.shape) {
      fail_one(ExitCode::input, name + " has another shape in " + path_b + " than in " + path_a +
                                    ": these are states of different models");
    }
    if (found->second.type != record.type) {
      fail_one(ExitCode::input, name + " is " + std::string(h5::element_name(record.type)) + " in " + path_a + " and " +
                                    std::string(h5::element_name(found->second.type)) + " in " + path_b +
                                    ": runs of one precision.compute can be compared");
    }
  }
  return distances({folder_a, step}, {folder_b, step}, in_a, in_b);
}

}  // namespace fourfold::checkpoint
