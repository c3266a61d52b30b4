// A small model under any layout, and a folder, for the tests of checkpoints.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "checkpoint/async.hpp"
#include "checkpoint/checkpoint.hpp"
#include "comm/agree.hpp"
#include "comm/collectives.hpp"
#include "comm/launch.hpp"
#include "grid/process_grid.hpp"
#include "mpi_test.hpp"

namespace fourfold::checkpoint::test {

inline const Communicator& world() {
  return fourfold::test::launch().world();
}

inline std::string bytes_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

// A folder of this test, made by rank 0, removed at the end.
class Folder {
 public:
  explicit Folder(const std::string& below = std::filesystem::temp_directory_path().string()) {
    const std::string name = below + "/fourfold_checkpoint_" + std::to_string(getpid());
    if (world().rank() == 0) std::filesystem::create_directories(name);
    path_ = broadcast_string(world(), name);
  }
  ~Folder() {
    barrier(world(), Phase::control);
    if (world().rank() == 0) std::filesystem::remove_all(path_);
  }
  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

// Does `work` on rank 0 while the others wait.
template <class Work>
void on_rank_0(Work&& work) {
  barrier(world(), Phase::control);
  if (world().rank() == 0) work();
  barrier(world(), Phase::control);
}

struct Tensor {
  std::string name;
  ElementType type;
  std::vector<std::int64_t> shape;
};

// More ranks than elements, scalars, three dims, no elements, more than one checksum chunk, every type.
inline std::vector<Tensor> small_model() {
  return {{"/params/w", ElementType::fp32, {12, 10}},
          {"/params/b", ElementType::fp64, {5}},
          {"/params/s", ElementType::fp32, {}},
          {"/params/block.0/w", ElementType::fp64, {3, 4, 5}},
          {"/params/none", ElementType::fp32, {4, 0}},
          {"/optimizer/m/w", ElementType::bf16, {7, 3}},
          {"/optimizer/v/w", ElementType::int32, {2, 2}},
          {"/optimizer/master/w", ElementType::int64, {9}},
          {"/params/large", ElementType::bf16, {1030, 1024}}};
}

// What rank `rank` of `grid` holds: dims 0 and 1 cut over row and col, the rest flat over depth; vectors cut over row
// only; scalars by all. Replicas share the writing.
inline NamedShard place(const Tensor& tensor, const DenseShape& shape, int rank) {
  const ProcessGrid grid({StageShape{shape, MoeShape{static_cast<int>(shape.size()), 1, 1, 1}}});
  const Coordinates at = grid.coordinates(rank);
  NamedShard named{tensor.name, tensor.type, whole_shard(tensor.shape), nullptr, {}};
  Shard& shard = named.shard;
  if (!tensor.shape.empty()) shard.box[0] = part(tensor.shape[0], shape.row, at.row);
  std::int64_t replicas = shape.data;
  std::int64_t replica = at.data;
  if (tensor.shape.size() >= 2) {
    shard.box[1] = part(tensor.shape[1], shape.col, at.col);
    shard.flat = part(box_size(shard.box), shape.depth, at.depth);
  } else {
    shard.flat = {0, box_size(shard.box)};
    replicas *= std::int64_t{shape.depth} * shape.col;
    replica = (replica * shape.depth + at.depth) * shape.col + at.col;
    if (tensor.shape.empty()) {
      replicas *= shape.row;
      replica = replica * shape.row + at.row;
    }
  }
  named.owned = part(shard.size(), replicas, replica);
  return named;
}

// A rank's part of a model, with memory and values that are a function of (salt, tensor, index).
class Part {
 public:
  Part(const std::vector<Tensor>& model, const DenseShape& shape, int rank, std::uint64_t salt) {
    for (const Tensor& tensor : model) shards_.push_back(place(tensor, shape, rank));
    memory_.resize(shards_.size());
    for (std::size_t i = 0; i < shards_.size(); ++i) {
      memory_[i].resize(static_cast<std::size_t>(shards_[i].shard.size() * bytes(i)));
      shards_[i].data = memory_[i].data();
      fill(i, salt);
    }
  }
  const std::vector<NamedShard>& shards() const { return shards_; }
  std::vector<NamedShard>& shards() { return shards_; }
  void clear() {
    for (auto& memory : memory_) std::fill(memory.begin(), memory.end(), char{0x55});
  }
  bool operator==(const Part& other) const { return memory_ == other.memory_; }

 private:
  std::int64_t bytes(std::size_t i) const { return h5::element_bytes(shards_[i].type); }
  void fill(std::size_t i, std::uint64_t salt) {
    for (std::int64_t k = 0; k < shards_[i].shard.size(); ++k) {
      std::uint64_t value = (static_cast<std::uint64_t>(shards_[i].shard.global_index(k)) + 1) * 0x9e3779b97f4a7c15u;
      value ^= (salt + i) * 0xd6e8feb86659fd93u;
      std::memcpy(memory_[i].data() + k * bytes(i), &value, static_cast<std::size_t>(bytes(i)));
    }
  }

  std::vector<NamedShard> shards_;
  std::vector<std::vector<char>> memory_;
};

inline State small_state() {
  State state;
  state.numbers["cursor"] = std::int64_t{1} << 41;
  state.numbers["rate"] = 0.1;
  state.texts["deck"] = "run: {name: test}\n";
  state.texts["code"] = "0.1.0";
  return state;
}

inline State stepped(State state, std::int64_t step) {
  state.numbers["step"] = step;
  return state;
}

// Data parallel over the whole world.
inline DenseShape all_data() {
  return {world().size(), 1, 1, 1};
}

inline SaveOptions strict(std::int64_t keep = 0) {
  SaveOptions options;
  options.run = "test";
  options.keep = keep;
  options.strict_collective = true;
  return options;
}

inline SaveReport save_in_mode(bool async, const std::string& folder, std::int64_t step,
                               const std::vector<NamedShard>& shards, const SaveOptions& options) {
  if (!async) return save(world(), folder, step, shards, small_state(), options);
  AsyncSave under_way(world(), folder, step, shards, small_state(), options);
  under_way.complete();
  return under_way.report();
}

// The message of the Error that `call` throws; the same on all ranks, of the kind that all ranks share.
template <class Call>
std::string agreed_error(Call&& call, ExitCode code) {
  std::string message = "no error";
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code);
    EXPECT_EQ(error.caller(), Caller::all_ranks);
    message = error.what();
  }
  EXPECT_EQ(first_different(world(), hash_bytes(message)), -1) << message;
  return message;
}

inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

inline bool any_has(const std::vector<std::string>& lines, const std::string& part) {
  for (const std::string& line : lines)
    if (has(line, part)) return true;
  return false;
}

}  // namespace fourfold::checkpoint::test
