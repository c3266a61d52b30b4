// Where blocks of memory are while they are away: a file of this node, or host memory. Calls return before the bytes
// are moved; they are moved in the order of the calls.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace fourfold {

class AwayStore {
 public:
  using Place = std::int64_t;
  virtual ~AwayStore() = default;

  // `data` must stay until finished() counts this call.
  virtual Place put(const std::byte* data, std::int64_t bytes) = 0;
  // Back into `data`, and the place is free for others. Where a call has failed: zeros.
  virtual void get(Place place, std::byte* data, std::int64_t bytes) = 0;
  // Calls so far; waits until the first `calls` of them are done.
  virtual std::int64_t calls() const = 0;
  virtual void wait(std::int64_t calls) = 0;
  // What the first call that failed has to say; "" while none has.
  virtual std::string fault() const = 0;
};

// A file without a name (nothing stays behind, however the process ends), served by a thread that does nothing else.
// Places are used again: it grows to the most bytes that are away at once. Errors: Error (storage, one rank): there can
// be no such file in `folder`.
std::unique_ptr<AwayStore> make_file_store(const std::string& folder);

// Host memory, moved in the order of the kernels. What a device's blocks go to.
std::unique_ptr<AwayStore> make_host_store();

}  // namespace fourfold
