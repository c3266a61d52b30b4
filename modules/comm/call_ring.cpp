#include "comm/call_ring.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.hpp"

namespace fourfold {

namespace {

using Number = std::atomic<std::int64_t>;
static_assert(Number::is_always_lock_free && sizeof(Number) == 8);

constexpr std::int64_t kMagic = 0x3130676e69723446;  // "F4ring01"

// Relaxed everywhere: who reads a rank that moves gets numbers of several moments, who reads one that hangs the last.
std::int64_t get(const Number& number) {
  return number.load(std::memory_order_relaxed);
}
void put(Number& number, std::int64_t value) {
  number.store(value, std::memory_order_relaxed);
}

// A short text; what does not fit is cut.
template <std::size_t kWords>
struct Text {
  std::array<Number, kWords> words;

  void set(std::string_view text) {
    for (std::size_t w = 0; w < kWords; ++w) {
      std::int64_t word = 0;
      const std::size_t begin = std::min(8 * w, text.size());
      std::memcpy(&word, text.data() + begin, std::min<std::size_t>(8, text.size() - begin));
      put(words[w], word);
    }
  }
  std::string get() const {
    std::string text(8 * kWords, '\0');
    for (std::size_t w = 0; w < kWords; ++w) {
      const std::int64_t word = fourfold::get(words[w]);
      std::memcpy(text.data() + 8 * w, &word, 8);
    }
    return text.substr(0, std::min(text.find('\0'), text.size()));
  }
};

struct StoredGroup {
  Number id, size, begun;
  Text<4> name;
};

struct StoredCall {
  Number group, number, operation, elements, element_size, phase, line, peer, ended;
  Text<5> file;
};

// "optim/reducer.cpp" of a path.
std::string_view last_two(std::string_view path) {
  const auto slash = path.rfind('/');
  if (slash == std::string_view::npos || slash == 0) return path;
  const auto folder = path.rfind('/', slash - 1);
  return folder == std::string_view::npos ? path : path.substr(folder + 1);
}

}  // namespace

struct RingFile {
  Number magic, rank, step, progress, begun, ended, waiting, group_count;
  Text<6> phase;
  Text<8> host;
  std::array<StoredGroup, CallRing::kGroups> groups;
  std::array<StoredCall, CallRing::kCalls> calls;
};

CallRing::CallRing(std::string path, int rank, const std::string& host) : path_(std::move(path)) {
  const auto fail = [this](const char* what) {
    fail_one(ExitCode::storage, path_ + ": " + what + ": " + std::strerror(errno));
  };
  unlink(path_.c_str());  // an older run's
  const int descriptor = open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor < 0) fail("cannot be made");
  // Written, not only made longer: a full disk is an error now, and no SIGBUS later.
  const std::vector<char> zeros(sizeof(RingFile), 0);
  void* memory = MAP_FAILED;
  if (pwrite(descriptor, zeros.data(), zeros.size(), 0) == static_cast<ssize_t>(zeros.size()))
    memory = mmap(nullptr, sizeof(RingFile), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  const int reason = errno;
  close(descriptor);
  errno = reason;
  if (memory == MAP_FAILED) fail("cannot be written and mapped");
  file_ = static_cast<RingFile*>(memory);  // all zeros are a file without calls
  put(file_->rank, rank);
  put(file_->step, -1);
  file_->host.set(host);
  file_->phase.set("start");
  put(file_->magic, kMagic);
}

CallRing::~CallRing() {
  munmap(file_, sizeof(RingFile));
  if (remove_) unlink(path_.c_str());
}

std::size_t CallRing::place_of(std::uint64_t group, std::string_view name, std::int64_t size) {
  const auto id = static_cast<std::int64_t>(group);
  std::size_t g = 0;
  const auto known = static_cast<std::size_t>(get(file_->group_count));
  while (g < known && get(file_->groups[g].id) != id) ++g;
  if (g < known || g == file_->groups.size()) return g;
  put(file_->groups[g].id, id);
  put(file_->groups[g].size, size);
  file_->groups[g].name.set(name);
  put(file_->group_count, static_cast<std::int64_t>(known + 1));
  return g;
}

void CallRing::join(std::uint64_t group, std::string_view name, std::int64_t size) {
  if (size > 1) place_of(group, name, size);
}

std::int64_t CallRing::begin(const Given& given) {
  const std::size_t g = place_of(given.group, given.name, given.size);
  if (g == file_->groups.size()) return 0;
  StoredGroup& group = file_->groups[g];
  const std::int64_t ticket = get(file_->begun) + 1;
  StoredCall& call = file_->calls[static_cast<std::size_t>(ticket % kCalls)];
  const bool message = given.peer >= 0;
  const std::int64_t number = message ? 0 : get(group.begun) + 1;
  put(call.group, static_cast<std::int64_t>(g));
  put(call.number, number);
  put(call.operation, static_cast<std::int64_t>(given.operation));
  put(call.elements, given.elements);
  put(call.element_size, given.element_size);
  put(call.phase, static_cast<std::int64_t>(given.site.phase));
  put(call.line, given.site.where.line);
  call.file.set(last_two(given.site.where.file));
  put(call.peer, given.peer);
  put(call.ended, 0);
  if (!message) put(group.begun, number);
  put(file_->begun, ticket);
  return ticket;
}

void CallRing::end(std::int64_t ticket) {
  if (ticket == 0) return;
  put(file_->ended, get(file_->ended) + 1);
  if (ticket > get(file_->begun) - kCalls) put(file_->calls[static_cast<std::size_t>(ticket % kCalls)].ended, 1);
}

void CallRing::wait_for(std::int64_t ticket) {
  put(file_->waiting, ticket);
}

void CallRing::enter(std::int64_t step, const char* phase) {
  put(file_->step, step);
  file_->phase.set(phase);
  put(file_->progress, get(file_->progress) + 1);
}

std::int64_t CallRing::changes() const {
  return get(file_->begun) + get(file_->ended) + get(file_->progress);
}

std::string CallRing::phase() const {
  return file_->phase.get();
}

void CallRing::flush() const {
  msync(file_, sizeof(RingFile), MS_SYNC);
}

std::optional<RingSnapshot> read_ring(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0) return std::nullopt;
  const auto file = std::make_unique<RingFile>();
  // Read, not mapped: a network file system then asks for what is new.
  const bool whole = pread(descriptor, static_cast<void*>(file.get()), sizeof(RingFile), 0) == sizeof(RingFile);
  close(descriptor);
  if (!whole || get(file->magic) != kMagic) return std::nullopt;
  RingSnapshot ring;
  ring.rank = get(file->rank);
  ring.host = file->host.get();
  ring.step = get(file->step);
  ring.phase = file->phase.get();
  ring.progress = get(file->progress);
  for (std::int64_t g = 0; g < std::clamp<std::int64_t>(get(file->group_count), 0, CallRing::kGroups); ++g) {
    const StoredGroup& group = file->groups[static_cast<std::size_t>(g)];
    ring.groups.push_back(
        {static_cast<std::uint64_t>(get(group.id)), group.name.get(), get(group.size), get(group.begun)});
  }
  const std::int64_t begun = get(file->begun);
  const std::int64_t waiting = get(file->waiting);
  for (std::int64_t ticket = std::max<std::int64_t>(1, begun - CallRing::kCalls + 1); ticket <= begun; ++ticket) {
    const StoredCall& stored = file->calls[static_cast<std::size_t>(ticket % CallRing::kCalls)];
    RingCall call;
    call.group = get(stored.group);
    if (call.group < 0 || call.group >= std::ssize(ring.groups)) continue;
    call.number = get(stored.number);
    call.operation = static_cast<Operation>(std::clamp<std::int64_t>(get(stored.operation), 0, kOperations - 1));
    call.elements = get(stored.elements);
    call.element_size = get(stored.element_size);
    call.phase = static_cast<Phase>(std::clamp<std::int64_t>(get(stored.phase), 0, kPhases - 1));
    call.where = stored.file.get() + ":" + std::to_string(get(stored.line));
    call.peer = get(stored.peer);
    call.ended = get(stored.ended) != 0;
    if (ticket == waiting) ring.waiting = std::ssize(ring.calls);
    ring.calls.push_back(std::move(call));
  }
  return ring;
}

}  // namespace fourfold
