// A config.json as settings that are looked for by their keys; what is wrong with one is said by file and key.
#pragma once

#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace fourfold::exchange {

using Json = nlohmann::ordered_json;

// Errors of all (Error, input): another form than the asked-for one. A null is a setting that is not there; without
// `otherwise` one that is not there is an error.
class Config {
 public:
  Config(const std::string& text, const std::string& path);
  ~Config();
  Config(const Config&) = delete;
  Config& operator=(const Config&) = delete;

  [[noreturn]] void refuse(const std::string& what) const;
  bool has(const char* key) const;
  const Json& at(const char* key) const;

  std::int64_t size(const char* key) const;  // 1 or more
  std::int64_t size(const char* key, std::int64_t otherwise) const;
  double number(const char* key, double otherwise) const;
  bool flag(const char* key, bool otherwise) const;
  std::string word(const char* key, const std::string& otherwise) const;
  // That a setting which changes the numbers has the one value that is built.
  void require(bool built, const char* key, const std::string& what) const;

 private:
  std::unique_ptr<const Json> json_;
  std::string path_;
};

}  // namespace fourfold::exchange
