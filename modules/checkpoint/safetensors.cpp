#include "checkpoint/safetensors.hpp"

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "base/error.hpp"
#include "base/strict_json.hpp"

namespace fourfold::safetensors {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kLengthBytes = 8;
constexpr std::array kTypes{Type{"BOOL", 8},    Type{"U8", 8},      Type{"I8", 8},          Type{"F8_E4M3", 8},
                            Type{"F8_E5M2", 8}, Type{"F8_E8M0", 8}, Type{"F8_E4M3FNUZ", 8}, Type{"F8_E5M2FNUZ", 8},
                            Type{"F4", 4},      Type{"F6_E2M3", 6}, Type{"F6_E3M2", 6},     Type{"I16", 16},
                            Type{"U16", 16},    Type{"F16", 16},    Type{"BF16", 16},       Type{"I32", 32},
                            Type{"U32", 32},    Type{"F32", 32},    Type{"F64", 64},        Type{"I64", 64},
                            Type{"U64", 64},    Type{"C64", 64}};

std::string quoted(const std::string& name) {
  return Json(name).dump(-1, ' ', false, Json::error_handler_t::replace);
}

[[noreturn]] void refuse(const std::string& path, std::int64_t offset, const std::string& what) {
  fail_all(ExitCode::input, path + ": safetensors, byte " + std::to_string(offset) + ": " + what);
}

// Bytes of a tensor; nothing where a product overflows or the last byte would be used in part.
std::optional<std::int64_t> size_of(const Type& type, const std::vector<std::int64_t>& shape) {
  std::int64_t elements = 1;
  for (const std::int64_t extent : shape) {
    if (__builtin_mul_overflow(elements, extent, &elements)) return std::nullopt;
  }
  std::int64_t bits = 0;
  if (__builtin_mul_overflow(elements, std::int64_t{type.bits}, &bits) || bits % 8 != 0) return std::nullopt;
  return bits / 8;
}

constexpr const char* kSizeRule = "product of shape and element size must not overflow and must fill whole bytes";

class HeaderReader {
 public:
  HeaderReader(std::span<const unsigned char> head, std::int64_t file_bytes, const std::string& path)
      : head_(head), file_bytes_(file_bytes), path_(path) {}

  Header run() {
    const Json json = parse_strict_json(text(), path_ + ": safetensors header", kLengthBytes, 4);
    for (const auto& [name, value] : json.items()) {
      if (name == "__metadata__") {
        read_metadata(value);
      } else {
        header_.tensors.push_back(read_tensor(name, value));
      }
    }
    check_ranges();
    return std::move(header_);
  }

 private:
  std::string_view text() {
    if (file_bytes_ < kLengthBytes) {
      refuse(path_, 0, "a file begins with 8 bytes of header length; this one has " + std::to_string(file_bytes_));
    }
    std::uint64_t length = 0;
    for (std::size_t i = 0; i < kLengthBytes; ++i) length |= std::uint64_t{head_[i]} << (8 * i);
    if (length > static_cast<std::uint64_t>(kLargestHeader)) {
      refuse(
          path_, 0,
          "the header's length must be at most " + std::to_string(kLargestHeader) + ", not " + std::to_string(length));
    }
    header_.data_begin = kLengthBytes + static_cast<std::int64_t>(length);
    if (header_.data_begin > file_bytes_) {
      refuse(path_, 0,
             "the header (" + std::to_string(length) + " bytes) must end within the file (" +
                 std::to_string(file_bytes_) + " bytes)");
    }
    FOURFOLD_ASSERT(static_cast<std::int64_t>(head_.size()) >= header_.data_begin, "the caller read the whole header");
    std::string_view json(reinterpret_cast<const char*>(head_.data()) + kLengthBytes, length);
    if (json.empty() || json[0] != '{') refuse(path_, kLengthBytes, "the header must begin with {");
    json = json.substr(0, json.find_last_not_of(' ') + 1);
    if (json.back() != '}') {
      refuse(path_, kLengthBytes + static_cast<std::int64_t>(json.size()) - 1,
             "the header must end with } and spaces only");
    }
    return json;
  }

  // The header's JSON has no offsets of its own.
  [[noreturn]] void refuse_entry(const std::string& name, const std::string& what) const {
    refuse(path_, kLengthBytes, "tensor " + quoted(name) + ": " + what);
  }

  void read_metadata(const Json& value) {
    if (!value.is_object()) refuse(path_, kLengthBytes, "__metadata__ must be an object");
    for (const auto& [name, text] : value.items()) {
      if (!text.is_string()) refuse(path_, kLengthBytes, "__metadata__ " + quoted(name) + " must be a string");
      header_.metadata.emplace(name, text.get<std::string>());
    }
  }

  Tensor read_tensor(const std::string& name, const Json& value) const {
    if (!value.is_object()) refuse_entry(name, "must be an object of dtype, shape and data_offsets");
    Tensor tensor;
    tensor.name = name;
    for (const auto& [member, of] : value.items()) {
      if (member == "dtype") {
        if (!of.is_string()) refuse_entry(name, "dtype must be a string");
        tensor.type = find_type(of.get_ref<const std::string&>());
        if (tensor.type == nullptr) refuse_entry(name, "dtype " + of.dump() + " is none of the format's");
      } else if (member == "shape") {
        tensor.shape = numbers(name, "shape", of);
      } else if (member == "data_offsets") {
        const std::vector<std::int64_t> offsets = numbers(name, "data_offsets", of);
        if (offsets.size() != 2) refuse_entry(name, "data_offsets must be [begin, end]");
        tensor.begin = offsets[0];
        tensor.end = offsets[1];
      } else {
        refuse_entry(name, "unknown member " + quoted(member));
      }
    }
    for (const char* wanted : {"dtype", "shape", "data_offsets"}) {
      if (!value.contains(wanted)) refuse_entry(name, std::string(wanted) + " is missing");
    }
    return tensor;
  }

  std::vector<std::int64_t> numbers(const std::string& name, const std::string& member, const Json& value) const {
    if (!value.is_array()) refuse_entry(name, member + " must be a list");
    std::vector<std::int64_t> list;
    for (const Json& number : value) {
      if (!number.is_number_unsigned() || number.get<std::uint64_t>() > std::numeric_limits<std::int64_t>::max()) {
        refuse_entry(name, member + " must hold whole numbers from 0 to 2^63 - 1, not " + number.dump());
      }
      list.push_back(static_cast<std::int64_t>(number.get<std::uint64_t>()));
    }
    return list;
  }

  void check_ranges() {
    std::vector<Tensor>& tensors = header_.tensors;
    std::sort(tensors.begin(), tensors.end(), [](const Tensor& a, const Tensor& b) {
      return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
    });
    std::int64_t at = 0;
    for (const Tensor& tensor : tensors) {
      const auto refuse_range = [&](const std::string& rule) {
        refuse(path_, header_.data_begin + at,
               "tensor " + quoted(tensor.name) + " [" + std::to_string(tensor.begin) + ", " +
                   std::to_string(tensor.end) + "): " + rule);
      };
      if (tensor.end < tensor.begin) refuse_range("data_offsets must not end before they begin");
      if (tensor.begin < at) refuse_range("must not overlap the bytes before " + std::to_string(at));
      if (tensor.begin > at) refuse_range("must leave no hole: the bytes before end at " + std::to_string(at));
      const std::optional<std::int64_t> bytes = size_of(*tensor.type, tensor.shape);
      if (!bytes) refuse_range(kSizeRule);
      if (*bytes != tensor.bytes()) {
        refuse_range("shape and dtype take " + std::to_string(*bytes) + " bytes, data_offsets hold " +
                     std::to_string(tensor.bytes()));
      }
      at = tensor.end;
    }
    if (at != file_bytes_ - header_.data_begin) {
      refuse(path_, header_.data_begin,
             "the tensors must end where the file ends: they take " + std::to_string(at) + " bytes, the file has " +
                 std::to_string(file_bytes_ - header_.data_begin) + " after its header");
    }
  }

  std::span<const unsigned char> head_;
  std::int64_t file_bytes_;
  const std::string& path_;
  Header header_;
};

// Length and header of a file; only as much as its first 8 bytes ask for, and no more than is legal.
std::vector<unsigned char> read_head(const InputFile& file) {
  std::vector<unsigned char> head(static_cast<std::size_t>(std::min(file.size(), kLengthBytes)));
  file.read_at(0, head);
  if (file.size() < kLengthBytes) return head;
  std::uint64_t length = 0;
  for (std::size_t i = 0; i < kLengthBytes; ++i) length |= std::uint64_t{head[i]} << (8 * i);
  if (length > static_cast<std::uint64_t>(std::min(kLargestHeader, file.size() - kLengthBytes))) return head;
  head.resize(kLengthBytes + length);
  file.read_at(kLengthBytes, std::span(head).subspan(kLengthBytes));
  return head;
}

std::int64_t bytes_of(const Entry& entry, const std::string& path) {
  const std::optional<std::int64_t> bytes = size_of(*entry.type, entry.shape);
  if (!bytes) refuse(path, kLengthBytes, "tensor " + quoted(entry.name) + ": " + kSizeRule);
  return *bytes;
}

}  // namespace

const Type* find_type(std::string_view name) {
  const auto found = std::find_if(kTypes.begin(), kTypes.end(), [&](const Type& type) { return type.name == name; });
  return found == kTypes.end() ? nullptr : &*found;
}

std::int64_t Tensor::elements() const {
  std::int64_t product = 1;
  for (const std::int64_t extent : shape) product *= extent;
  return product;
}

const Tensor* Header::find(const std::string& name) const {
  const auto found = std::find_if(tensors.begin(), tensors.end(), [&](const Tensor& one) { return one.name == name; });
  return found == tensors.end() ? nullptr : &*found;
}

Header parse_header(std::span<const unsigned char> head, std::int64_t file_bytes, const std::string& path) {
  return HeaderReader(head, file_bytes, path).run();
}

Reader::Reader(const std::string& path) : file_(path), header_(parse_header(read_head(file_), file_.size(), path)) {}

void Reader::read(const Tensor& tensor, std::int64_t first, std::span<unsigned char> bytes) const {
  FOURFOLD_ASSERT(first >= 0 && first + static_cast<std::int64_t>(bytes.size()) <= tensor.bytes(),
                  "bytes that the tensor has");
  file_.read_at(header_.data_begin + tensor.begin + first, bytes);
}

std::string make_header(std::vector<Entry>& entries, const Metadata& metadata, const std::string& path) {
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return a.type->bits != b.type->bits ? a.type->bits > b.type->bits : a.name < b.name;
  });
  std::set<std::string> names{"__metadata__"};
  Json json = Json::object();
  // The members' own list: ordered_json's operator[] looks at every member before it.
  auto& members = static_cast<std::vector<std::pair<const std::string, Json>>&>(json.get_ref<Json::object_t&>());
  if (!metadata.empty()) members.emplace_back("__metadata__", metadata);
  std::int64_t at = 0;
  for (const Entry& entry : entries) {
    if (!names.insert(entry.name).second) {
      refuse(path, kLengthBytes, "tensor " + quoted(entry.name) + ": the name is taken");
    }
    const std::int64_t begin = at;
    if (__builtin_add_overflow(at, bytes_of(entry, path), &at)) {
      refuse(path, kLengthBytes, "tensor " + quoted(entry.name) + ": " + kSizeRule);
    }
    members.emplace_back(entry.name,
                         Json{{"dtype", entry.type->name}, {"shape", entry.shape}, {"data_offsets", {begin, at}}});
  }
  std::string text;
  try {
    text = json.dump();
  } catch (const Json::exception&) {
    refuse(path, kLengthBytes, "names and metadata must be UTF-8");
  }
  text.resize((text.size() + 7) / 8 * 8, ' ');
  if (static_cast<std::int64_t>(text.size()) > kLargestHeader) {
    refuse(path, 0,
           "the header would have " + std::to_string(text.size()) + " bytes; at most " +
               std::to_string(kLargestHeader) + " are read elsewhere: write more files");
  }
  std::string head;
  for (std::size_t i = 0; i < kLengthBytes; ++i) head.push_back(static_cast<char>(text.size() >> (8 * i) & 0xff));
  return head + text;
}

Writer::Writer(const std::string& path, std::vector<Entry> entries, const Metadata& metadata)
    : entries_(std::move(entries)), file_(path) {
  file_.append(make_header(entries_, metadata, path));
  expected_ = file_.size();
  for (const Entry& entry : entries_) expected_ += bytes_of(entry, path);
}

void Writer::complete() {
  FOURFOLD_ASSERT(file_.size() == expected_, "the bytes of every tensor were appended");
  file_.complete();
}

}  // namespace fourfold::safetensors
