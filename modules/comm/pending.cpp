#include <exception>
#include <utility>

#include "comm/call.hpp"
#include "comm/collectives.hpp"

namespace fourfold {

namespace {
bool abandoned = false;
}

bool operations_abandoned() {
  return abandoned;
}

Pending::Pending() = default;
Pending::Pending(std::function<void()> finish) : finish_(std::move(finish)) {}
Pending::Pending(Pending&& other) noexcept : finish_(std::exchange(other.finish_, nullptr)) {}

Pending& Pending::operator=(Pending&& other) noexcept {
  if (this != &other) {
    wait();
    finish_ = std::exchange(other.finish_, nullptr);
  }
  return *this;
}

// An error here (a failed MPI operation) ends the program through the terminate handler, as it should.
Pending::~Pending() {
  if (finish_ && std::uncaught_exceptions() > 0) {
    abandoned = true;
    return;
  }
  wait();
}

void Pending::wait() {
  if (!finish_) return;
  const auto finish = std::exchange(finish_, nullptr);
  finish();
}

}  // namespace fourfold
