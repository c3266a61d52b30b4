#include "comm/shared_memory.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <map>
#include <utility>
#include <vector>

namespace fourfold {

namespace {

constexpr std::int64_t kChunk = std::int64_t{1} << 30;  // of addresses; pages follow when blocks are taken
constexpr std::int64_t kPage = 4096;
constexpr std::int64_t kAlignment = 64;

std::int64_t up(std::int64_t bytes, std::int64_t multiple) {
  return (bytes + multiple - 1) / multiple * multiple;
}

}  // namespace

struct SharedMemory::State {
  struct Chunk {
    int file;
    std::byte* base;
    std::int64_t size, committed;
    std::map<std::int64_t, std::int64_t> free;  // size by offset; neighbours are one
  };
  struct Mapped {
    std::byte* base;
    std::int64_t size;
  };

  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State() {
    for (const Chunk& chunk : chunks) {
      munmap(chunk.base, static_cast<std::size_t>(chunk.size));
      close(chunk.file);
    }
    for (const auto& [place, mapped] : others) munmap(mapped.base, static_cast<std::size_t>(mapped.size));
  }

  bool refuse(const std::string& what, int code) {
    refusal = what + ": " + std::strerror(code);
    return false;
  }
  bool add_chunk(std::int64_t bytes);
  bool commit(Chunk& chunk, std::int64_t end);
  void give_back(std::size_t chunk, std::int64_t offset, std::int64_t size);

  std::vector<Chunk> chunks;
  std::map<std::pair<std::int32_t, std::int32_t>, Mapped> others;  // by process and file
  std::string refusal;
};

bool SharedMemory::State::add_chunk(std::int64_t bytes) {
  rlimit files{};
  if (getrlimit(RLIMIT_FSIZE, &files) != 0 || files.rlim_cur != RLIM_INFINITY) {
    refusal = "the size of files is limited (ulimit -f)";  // growing a chunk beyond it is a signal
    return false;
  }
  const std::int64_t size = std::max(kChunk, up(bytes, kPage));
  const int file = memfd_create("fourfold", MFD_CLOEXEC);
  if (file < 0) return refuse("memfd_create", errno);
  if (ftruncate(file, size) != 0) {
    refuse("ftruncate", errno);
    close(file);
    return false;
  }
  void* base = mmap(nullptr, static_cast<std::size_t>(size), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (base == MAP_FAILED) {
    refuse("mmap", errno);
    close(file);
    return false;
  }
  chunks.push_back({file, static_cast<std::byte*>(base), size, 0, {{0, size}}});
  return true;
}

bool SharedMemory::State::commit(Chunk& chunk, std::int64_t end) {
  end = up(end, kPage);
  if (end <= chunk.committed) return true;
  int failed = 0;
  do {
    failed = fallocate(chunk.file, 0, chunk.committed, end - chunk.committed) == 0 ? 0 : errno;
  } while (failed == EINTR);
  if (failed != 0) return refuse("fallocate", failed);
#ifdef MADV_POPULATE_WRITE
  // All at once, in place of a page fault each; where the kernel cannot, they come at the first touch.
  madvise(chunk.base + chunk.committed, static_cast<std::size_t>(end - chunk.committed), MADV_POPULATE_WRITE);
#endif
  chunk.committed = end;
  return true;
}

void SharedMemory::State::give_back(std::size_t chunk, std::int64_t offset, std::int64_t size) {
  auto& free = chunks[chunk].free;
  auto here = free.emplace(offset, size).first;
  const auto next = std::next(here);
  if (next != free.end() && here->first + here->second == next->first) {
    here->second += next->second;
    free.erase(next);
  }
  if (here == free.begin()) return;
  const auto before = std::prev(here);
  if (before->first + before->second == here->first) {
    before->second += here->second;
    free.erase(here);
  }
}

SharedMemory::SharedMemory() : state_(std::make_shared<State>()) {}

const std::string& SharedMemory::refusal() const {
  return state_->refusal;
}

// The tightest free range, the lowest of equals: its pages are there already.
SharedMemory::Block SharedMemory::take(std::int64_t bytes) const {
  if (bytes <= 0) return nullptr;
  State& state = *state_;
  const std::int64_t size = up(bytes, kAlignment);
  for (int attempt = 0; attempt < 2; ++attempt) {
    std::size_t chunk = state.chunks.size();
    std::map<std::int64_t, std::int64_t>::iterator best;
    for (std::size_t c = 0; c < state.chunks.size(); ++c) {
      for (auto it = state.chunks[c].free.begin(); it != state.chunks[c].free.end(); ++it) {
        if (it->second < size || (chunk < state.chunks.size() && it->second >= best->second)) continue;
        chunk = c;
        best = it;
      }
    }
    if (chunk < state.chunks.size()) {
      const auto [offset, found] = *best;
      if (!state.commit(state.chunks[chunk], offset + size)) return nullptr;
      state.chunks[chunk].free.erase(best);
      if (found > size) state.chunks[chunk].free.emplace(offset + size, found - size);
      return {state.chunks[chunk].base + offset,
              [owner = state_, chunk, at = offset, size](std::byte*) { owner->give_back(chunk, at, size); }};
    }
    if (!state.add_chunk(size)) return nullptr;
  }
  return nullptr;
}

SharedMemory::Place SharedMemory::find(const void* address) const {
  const auto* byte = static_cast<const std::byte*>(address);
  for (const State::Chunk& chunk : state_->chunks) {
    if (byte >= chunk.base && byte < chunk.base + chunk.size) return {getpid(), chunk.file, byte - chunk.base};
  }
  return {};
}

std::byte* SharedMemory::address(const Place& place) const {
  if (place.process == getpid()) {
    for (const State::Chunk& chunk : state_->chunks) {
      if (chunk.file == place.chunk) return chunk.base + place.offset;
    }
    return nullptr;
  }
  const std::pair key(place.process, place.chunk);
  auto found = state_->others.find(key);
  if (found == state_->others.end()) {
    const std::string path = "/proc/" + std::to_string(place.process) + "/fd/" + std::to_string(place.chunk);
    const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (file < 0) return nullptr;
    struct stat status {};
    void* base = MAP_FAILED;
    if (fstat(file, &status) == 0 && status.st_size > place.offset) {
      base = mmap(nullptr, static_cast<std::size_t>(status.st_size), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    }
    const int failed = errno;
    close(file);
    errno = failed;
    if (base == MAP_FAILED) return nullptr;
    found = state_->others.emplace(key, State::Mapped{static_cast<std::byte*>(base), status.st_size}).first;
  }
  return found->second.base + place.offset;
}

}  // namespace fourfold
