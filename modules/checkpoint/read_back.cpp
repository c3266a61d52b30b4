#include "checkpoint/read_back.hpp"

#include "base/error.hpp"

namespace fourfold::checkpoint {

namespace {

[[noreturn]] void differs(const std::string& path, const std::string& name) {
  fail_one(ExitCode::storage, path + ": " + name + " reads back other than it was written");
}

// The first entry of one map that the other does not have.
template <class Map>
void compare(const std::string& path, const Map& written, const Map& read) {
  for (const auto& [name, value] : written) {
    const auto found = read.find(name);
    if (found == read.end() || found->second != value) differs(path, "/state/" + name);
  }
  if (written.size() != read.size()) differs(path, "/state");
}

}  // namespace

State read_state(const h5::File& file) {
  const std::string section = "/state/";
  State state;
  state.numbers = file.read_numbers("/state");
  state.numbers.erase("format");
  for (const std::string& name : file.list("/state")) state.texts[name.substr(section.size())] = file.read_text(name);
  return state;
}

void check_read_back(const std::string& path, const State& state, const CommitRecord& record) {
  const h5::File file = h5::File::open_serial(path);
  State wanted = state;
  wanted.numbers.erase("format");
  const State read = read_state(file);
  compare(path, wanted.numbers, read.numbers);
  compare(path, wanted.texts, read.texts);
  for (const DatasetRecord& dataset : record.datasets) {
    const h5::Dataset stored = file.dataset(dataset.name);
    if (stored.type() != dataset.type || stored.shape() != dataset.shape || stored.offset() != dataset.offset)
      differs(path, dataset.name);
  }
}

}  // namespace fourfold::checkpoint
