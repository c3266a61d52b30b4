// A folder of test files that goes away with the object.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <sstream>
#include <string>

#include "base/error.hpp"

namespace fourfold::test {

class Folder {
 public:
  explicit Folder(const std::string& name)
      : path_(std::filesystem::temp_directory_path() / ("fourfold_" + name + "_" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(path_);
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  std::string path(const std::string& name) const { return (path_ / name).string(); }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path(name), std::ios::binary) << text;
    return path(name);
  }

 private:
  std::filesystem::path path_;
};

inline std::string read_all(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

// "0a ff": two bytes.
inline std::string from_hex(const std::string& hex) {
  std::istringstream words(hex);
  std::string bytes;
  for (int value = 0; words >> std::hex >> value;) bytes.push_back(static_cast<char>(value));
  return bytes;
}

// What an input error says.
inline std::string message_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::input) << error.what();
    return error.what();
  }
  return "no error";
}

// A file's digest, from coreutils' sha256sum.
inline std::string sha256(const std::string& path) {
  char digest[65] = {};
  std::FILE* pipe = ::popen(("sha256sum '" + path + "'").c_str(), "r");
  if (pipe == nullptr || std::fread(digest, 1, 64, pipe) != 64) digest[0] = '\0';
  if (pipe != nullptr) ::pclose(pipe);
  return digest;
}

}  // namespace fourfold::test
