#include "exchange/config.hpp"

#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/strict_json.hpp"

namespace fourfold::exchange {

Config::Config(const std::string& text, const std::string& path)
    : json_(std::make_unique<const Json>(parse_strict_json(text, path))), path_(path) {
  if (!json_->is_object()) refuse("must be an object");
}

Config::~Config() = default;

void Config::refuse(const std::string& what) const {
  fail_all(ExitCode::input, path_ + ": " + what);
}

bool Config::has(const char* key) const {
  return json_->contains(key) && !json_->at(key).is_null();
}

const Json& Config::at(const char* key) const {
  return json_->at(key);
}

std::int64_t Config::size(const char* key) const {
  if (!has(key)) refuse(std::string(key) + " is missing");
  return size(key, 0);
}

std::int64_t Config::size(const char* key, std::int64_t otherwise) const {
  constexpr std::uint64_t kMost = std::uint64_t{1} << 40;
  if (!has(key)) return otherwise;
  const Json& value = at(key);
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() < 1 || value.get<std::uint64_t>() > kMost) {
    refuse(std::string(key) + " must be a whole number of 1 or more, not " + value.dump());
  }
  return static_cast<std::int64_t>(value.get<std::uint64_t>());
}

double Config::number(const char* key, double otherwise) const {
  if (!has(key)) return otherwise;
  if (!at(key).is_number()) refuse(std::string(key) + " must be a number, not " + at(key).dump());
  return at(key).get<double>();
}

bool Config::flag(const char* key, bool otherwise) const {
  if (!has(key)) return otherwise;
  if (!at(key).is_boolean()) refuse(std::string(key) + " must be true or false, not " + at(key).dump());
  return at(key).get<bool>();
}

std::string Config::word(const char* key, const std::string& otherwise) const {
  if (!has(key)) return otherwise;
  if (!at(key).is_string()) refuse(std::string(key) + " must be a text, not " + at(key).dump());
  return at(key).get<std::string>();
}

void Config::require(bool built, const char* key, const std::string& what) const {
  if (!built) refuse(std::string(key) + " " + at(key).dump() + " is not built; built: " + what);
}

}  // namespace fourfold::exchange
