// A config.json as settings that are looked for by their keys; what is wrong with one is said by file and key.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.hpp"
#include "base/strict_json.hpp"

namespace fourfold::exchange {

using Json = nlohmann::ordered_json;

// Errors of all (Error, input): another form than the asked-for one. A null is a setting that is not there.
class Config {
 public:
  Config(const std::string& text, const std::string& path) : json_(parse_strict_json(text, path)), path_(path) {
    if (!json_.is_object()) refuse("must be an object");
  }

  [[noreturn]] void refuse(const std::string& what) const { fail_all(ExitCode::input, path_ + ": " + what); }

  bool has(const char* key) const { return json_.contains(key) && !json_.at(key).is_null(); }
  const Json& at(const char* key) const { return json_.at(key); }

  std::int64_t size(const char* key) const {
    if (!has(key)) refuse(std::string(key) + " is missing");
    return size(key, 0);
  }
  std::int64_t size(const char* key, std::int64_t otherwise) const {
    if (!has(key)) return otherwise;
    const Json& value = json_.at(key);
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() < 1 || value.get<std::uint64_t>() > kMost) {
      refuse(std::string(key) + " must be a whole number of 1 or more, not " + value.dump());
    }
    return static_cast<std::int64_t>(value.get<std::uint64_t>());
  }
  double number(const char* key, double otherwise) const {
    if (!has(key)) return otherwise;
    if (!json_.at(key).is_number()) refuse(std::string(key) + " must be a number, not " + json_.at(key).dump());
    return json_.at(key).get<double>();
  }
  bool flag(const char* key, bool otherwise) const {
    if (!has(key)) return otherwise;
    if (!json_.at(key).is_boolean()) refuse(std::string(key) + " must be true or false, not " + json_.at(key).dump());
    return json_.at(key).get<bool>();
  }
  std::string word(const char* key, const std::string& otherwise) const {
    if (!has(key)) return otherwise;
    if (!json_.at(key).is_string()) refuse(std::string(key) + " must be a text, not " + json_.at(key).dump());
    return json_.at(key).get<std::string>();
  }
  // That a setting which changes the numbers has the one value that is built.
  void require(bool built, const char* key, const std::string& what) const {
    if (!built) refuse(std::string(key) + " " + json_.at(key).dump() + " is not built; built: " + what);
  }

 private:
  static constexpr std::int64_t kMost = std::int64_t{1} << 40;
  Json json_;
  std::string path_;
};

}  // namespace fourfold::exchange
