#include "base/error.hpp"
#include "checkpoint/checkpoint.hpp"

namespace fourfold::checkpoint {

namespace {

template <class T>
T number(const State& state, const std::string& name, const char* kind) {
  const auto entry = state.numbers.find(name);
  if (entry == state.numbers.end() || !std::holds_alternative<T>(entry->second))
    fail_all(ExitCode::storage, "the checkpoint's state has no " + std::string(kind) + " '" + name + "'");
  return std::get<T>(entry->second);
}

}  // namespace

std::int64_t State::integer(const std::string& name) const {
  return number<std::int64_t>(*this, name, "integer");
}

double State::real(const std::string& name) const {
  return number<double>(*this, name, "real number");
}

const std::string& State::text(const std::string& name) const {
  const auto entry = texts.find(name);
  if (entry == texts.end()) fail_all(ExitCode::storage, "the checkpoint's state has no text '" + name + "'");
  return entry->second;
}

}  // namespace fourfold::checkpoint
