#include "checkpoint/background.hpp"

#include <exception>
#include <new>
#include <utility>

#include "base/timer.hpp"

namespace fourfold::checkpoint {

struct Background::Shared {
  explicit Shared(Work work_in) : work(std::move(work_in)) {}

  void run() {
    const Stopwatch watch;
    try {
      work(stop);
    } catch (const std::exception& error) {
      failure = error.what();
    }
    seconds = watch.seconds();
    finished.store(true, std::memory_order_release);
    finished.notify_all();
  }

  Work work;
  std::atomic<bool> stop = false;
  std::atomic<bool> finished = false;
  std::optional<std::string> failure;
  double seconds = 0;
};

Background::Background(Work work)
    : shared_(std::make_shared<Shared>(std::move(work))), thread_([shared = shared_] { shared->run(); }) {}

Background::~Background() {
  shared_->stop = true;
  if (std::uncaught_exceptions() == 0 || finished()) {
    thread_.join();
    return;
  }
  // NOLINTNEXTLINE(cppcoreguidelines-owning-memory, bugprone-unused-return-value)
  static_cast<void>(new (std::nothrow) std::shared_ptr<Shared>(shared_));
  thread_.detach();
}

bool Background::finished() const {
  return shared_->finished.load(std::memory_order_acquire);
}

void Background::wait() const {
  shared_->finished.wait(false, std::memory_order_acquire);
}

const std::optional<std::string>& Background::failure() const {
  return shared_->failure;
}

double Background::seconds() const {
  return shared_->seconds;
}

}  // namespace fourfold::checkpoint
