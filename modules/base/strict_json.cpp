#include "base/strict_json.hpp"

#include <iterator>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <vector>

#include "base/error.hpp"

namespace fourfold {

namespace {

using Json = nlohmann::ordered_json;

// Counts what the parser has read, for messages.
class Cursor {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  Cursor(const char* at, const char** furthest) : at_(at), furthest_(furthest) {}
  const char& operator*() const { return *at_; }
  Cursor& operator++() {
    *furthest_ = ++at_;
    return *this;
  }
  bool operator==(const Cursor& other) const { return at_ == other.at_; }
  bool operator!=(const Cursor& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  const char** furthest_;
};

// Builds the value without recursion, so that depth costs no stack.
class Builder : public nlohmann::json_sax<Json> {
 public:
  Builder(std::string path, int depth, const char* const* furthest, const char* begin, std::size_t offset)
      : path_(std::move(path)), depth_(depth), furthest_(furthest), begin_(begin), offset_(offset) {}

  Json result;

  bool null() override { return put(nullptr); }
  bool boolean(bool value) override { return put(value); }
  bool number_integer(number_integer_t value) override { return put(value); }
  bool number_unsigned(number_unsigned_t value) override { return put(value); }
  bool number_float(number_float_t value, const string_t& /*text*/) override { return put(value); }
  bool string(string_t& value) override { return put(std::move(value)); }
  bool binary(binary_t& /*value*/) override { return false; }  // no JSON text has it
  bool start_object(std::size_t /*elements*/) override { return open(Json::object()); }
  bool start_array(std::size_t /*elements*/) override { return open(Json::array()); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }

  bool key(string_t& name) override {
    if (!open_.back().members.insert(name).second) {
      refuse("the member " + Json(name).dump() + " is there twice", place());
    }
    name_ = std::move(name);
    return true;
  }

  bool parse_error(std::size_t /*position*/, const std::string& token,
                   const nlohmann::detail::exception& why) override {
    // "[json.exception.parse_error.101] parse error at line 1, column 3: syntax error while parsing ..."
    std::string text = why.what();
    if (const std::size_t start = text.find(": "); start != std::string::npos) text = text.substr(start + 2);
    static_cast<void>(token);
    refuse("is not JSON: " + text, place());
  }

 private:
  struct Level {
    Json* value;
    std::unordered_set<std::string> members;
  };

  std::size_t place() const { return offset_ + static_cast<std::size_t>(*furthest_ - begin_); }

  [[noreturn]] void refuse(const std::string& what, std::size_t at) const {
    fail_all(ExitCode::input, path_ + ": before byte " + std::to_string(at) + ": " + what);
  }

  Json* place_value(Json&& value) {
    if (open_.empty()) {
      result = std::move(value);
      return &result;
    }
    Json& parent = *open_.back().value;
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    // The members' own list: ordered_json's operator[] looks at every member before it.
    auto& members = parent.get_ref<Json::object_t&>();
    static_cast<std::vector<std::pair<const std::string, Json>>&>(members).emplace_back(name_, std::move(value));
    return &members.back().second;
  }

  bool put(Json&& value) {
    place_value(std::move(value));
    return true;
  }

  bool open(Json&& value) {
    if (static_cast<int>(open_.size()) >= depth_) {
      refuse("is nested more than " + std::to_string(depth_) + " deep", place());
    }
    // Only the innermost open value grows, so the outer pointers stay.
    open_.push_back({place_value(std::move(value)), {}});
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  std::string path_;
  int depth_;
  const char* const* furthest_;
  const char* begin_;
  std::size_t offset_;
  std::vector<Level> open_;
  std::string name_;
};

}  // namespace

nlohmann::ordered_json parse_strict_json(std::string_view text, const std::string& path, std::size_t offset,
                                         int depth) {
  const char* furthest = text.data();
  Builder builder(path, depth, &furthest, text.data(), offset);
  Json::sax_parse(Cursor(text.data(), &furthest), Cursor(text.data() + text.size(), &furthest), &builder);
  return std::move(builder.result);
}

}  // namespace fourfold
