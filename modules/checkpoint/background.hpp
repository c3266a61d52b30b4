// Work on a thread of its own, which calls neither MPI nor HDF5.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

namespace fourfold::checkpoint {

// What the work touches is the thread's until finished() is true.
class Background {
 public:
  // The work returns early once `stop` is true. An exception of it is a failure.
  using Work = std::function<void(const std::atomic<bool>& stop)>;
  explicit Background(Work work);
  // Stops the work and waits for it. With an error on its way it waits for nobody, so that a disk that hangs does not
  // keep the job from its end; what the work holds then stays for ever.
  ~Background();
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;

  bool finished() const;
  void wait() const;
  // Once finished:
  const std::optional<std::string>& failure() const;
  double seconds() const;  // that the work took

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
  std::thread thread_;
};

}  // namespace fourfold::checkpoint
