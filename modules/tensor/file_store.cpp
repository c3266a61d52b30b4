#include <fcntl.h>
#include <linux/magic.h>
#include <pthread.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "base/error.hpp"
#include "base/log.hpp"
#include "tensor/away_store.hpp"

namespace fourfold {

namespace {

// A file that is closed whatever happens.
struct Descriptor {
  int number = -1;
  ~Descriptor() {
    if (number >= 0) close(number);
  }
};

bool lies_in_memory(int file) {
  struct statfs system {};
  return fstatfs(file, &system) == 0 && (system.f_type == TMPFS_MAGIC || system.f_type == RAMFS_MAGIC);
}

class FileStore : public AwayStore {
 public:
  explicit FileStore(const std::string& folder) : folder_(folder) {
    std::string name = folder + "/fourfold-offload-XXXXXX";
    file_.number = mkostemp(name.data(), O_CLOEXEC);
    if (file_.number < 0) {
      fail_one(ExitCode::storage, "no file can be made in " + folder + ": " + std::strerror(errno));
    }
    unlink(name.c_str());
    if (lies_in_memory(file_.number)) {
      log_warn("parallel.activations.offload_folder: " + folder +
               " is in memory itself (tmpfs): offloading there saves none; give a folder on a disk of the node");
    }
    // Signals are the main thread's; a file that grows beyond its limit is an error of the call here.
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    thread_ = std::thread([this] { serve(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  ~FileStore() override {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  FileStore(const FileStore&) = delete;
  FileStore& operator=(const FileStore&) = delete;

  Place put(const std::byte* data, std::int64_t bytes) override {
    std::vector<Place>& free = free_[bytes];
    Place place = end_;
    if (free.empty()) {
      end_ += bytes;
    } else {
      place = free.back();
      free.pop_back();
    }
    post({const_cast<std::byte*>(data), bytes, place, true});
    return place;
  }

  void get(Place place, std::byte* data, std::int64_t bytes) override {
    post({data, bytes, place, false});
    free_[bytes].push_back(place);  // what is written there comes behind
  }

  std::int64_t calls() const override { return calls_; }

  void wait(std::int64_t calls) override {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return done_ >= calls; });
  }

  std::string fault() const override {
    const std::lock_guard lock(mutex_);
    return fault_;
  }

 private:
  struct Call {
    std::byte* data;
    std::int64_t bytes;
    Place place;
    bool writes;
  };

  void post(const Call& call) {
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back(call);
      ++calls_;
    }
    changed_.notify_all();
  }

  // The thread's work.
  void serve() {
    for (std::unique_lock lock(mutex_);;) {
      changed_.wait(lock, [&] { return ends_ || !queue_.empty(); });
      if (queue_.empty()) return;
      const Call call = queue_.front();
      queue_.pop_front();
      const bool failed_before = !fault_.empty();
      lock.unlock();
      std::string fault;
      if (!failed_before) fault = move(call);
      if ((failed_before || !fault.empty()) && !call.writes) {
        std::memset(call.data, 0, static_cast<std::size_t>(call.bytes));
      }
      lock.lock();
      if (!failed_before) fault_ = fault;
      ++done_;
      changed_.notify_all();
    }
  }

  std::string move(const Call& call) const {
    for (std::int64_t moved = 0; moved < call.bytes;) {
      const auto left = static_cast<std::size_t>(call.bytes - moved);
      const ssize_t bytes = call.writes ? pwrite(file_.number, call.data + moved, left, call.place + moved)
                                        : pread(file_.number, call.data + moved, left, call.place + moved);
      if (bytes < 0 && errno == EINTR) continue;
      if (bytes <= 0) {
        return std::to_string(left) + " bytes cannot be " + (call.writes ? "written to" : "read from") + " a file in " +
               folder_ + ": " + (bytes < 0 ? std::strerror(errno) : "it ends");
      }
      moved += bytes;
    }
    return "";
  }

  const std::string folder_;
  Descriptor file_;
  std::map<std::int64_t, std::vector<Place>> free_;  // by size
  Place end_ = 0;
  std::int64_t calls_ = 0;  // written by the main thread alone

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Call> queue_;
  std::int64_t done_ = 0;
  std::string fault_;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<AwayStore> make_file_store(const std::string& folder) {
  return std::make_unique<FileStore>(folder);
}

}  // namespace fourfold
