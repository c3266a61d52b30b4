#include "exchange/weights.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "base/error.hpp"
#include "base/files.hpp"
#include "checkpoint/checkpoint.hpp"
#include "checkpoint/folder.hpp"
#include "checkpoint/inspect.hpp"
#include "checkpoint/safetensors_folder.hpp"
#include "deck/reader.hpp"
#include "deck/writer.hpp"
#include "exchange/llmc_model.hpp"
#include "exchange/tensor_map.hpp"
#include "h5/file.hpp"

namespace fourfold::exchange {

namespace {

namespace fs = std::filesystem;
using safetensors::FolderReader;

constexpr std::int64_t kChunkBytes = std::int64_t{4} << 20;
constexpr std::int64_t kLargestConfig = std::int64_t{1} << 24;
constexpr const char* kTypeText = "imported_type";
constexpr std::int64_t kGpt2Vocab = 50257;  // its last id ends a document

std::int64_t elements_of(const std::vector<std::int64_t>& shape) {
  std::int64_t elements = 1;
  for (const std::int64_t extent : shape) elements *= extent;
  return elements;
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text;
  for (const std::int64_t extent : shape) text += (text.empty() ? "" : " x ") + std::to_string(extent);
  return text.empty() ? "one number" : text;
}

// Memory that the system may write to a file, which has no name and goes away with it.
class Scratch {
 public:
  Scratch(const std::string& folder, std::int64_t bytes)
      : size_(static_cast<std::size_t>(std::max<std::int64_t>(1, bytes))) {
    std::string name = folder + "/scratch_XXXXXX";
    const int file = ::mkstemp(name.data());
    if (file < 0) failed(name);
    ::unlink(name.c_str());
    void* address = MAP_FAILED;
    const int error = ::posix_fallocate(file, 0, static_cast<off_t>(size_));  // a full disk is an error, not a signal
    if (error == 0) address = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (error != 0) errno = error;
    if (address == MAP_FAILED) {
      const int reason = errno;
      ::close(file);
      errno = reason;
      failed(name);
    }
    ::close(file);
    data_ = static_cast<unsigned char*>(address);
  }
  ~Scratch() { ::munmap(data_, size_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  unsigned char* data() { return data_; }

 private:
  [[noreturn]] void failed(const std::string& name) const {
    fail_all(ExitCode::storage, name + ": no room for " + std::to_string(size_) + " bytes: " + std::strerror(errno));
  }

  std::size_t size_;
  unsigned char* data_ = nullptr;
};

// Writes element (o, i) of an in x all matrix to (o, i) of an out x in one, from column `first` on.
void transpose(const unsigned char* from, std::int64_t rows, std::int64_t all, std::int64_t first, std::int64_t out,
               unsigned char* to, std::int64_t in, std::int64_t begin, std::size_t bytes) {
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t o = 0; o < out; ++o) {
      std::memcpy(to + static_cast<std::size_t>(o * in + begin + r) * bytes,
                  from + static_cast<std::size_t>(r * all + first + o) * bytes, bytes);
    }
  }
}

void write_text(const std::string& path, const std::string& text) {
  NewFile file(path);
  file.append(std::string_view(text));
  file.finish();
}

// A run's folder with a checkpoint of step 0 in the making.
class Draft {
 public:
  struct Tensor {
    std::string ours;
    std::vector<std::int64_t> shape;
  };

  // Errors (Error): storage; input where the folder holds checkpoints already.
  Draft(const std::string& run_folder, const std::vector<Tensor>& tensors, Precision precision)
      : run_folder_(run_folder), precision_(precision), type_(element_type(precision)) {
    std::error_code error;
    fs::create_directories(run_folder, error);
    if (error) fail_all(ExitCode::storage, run_folder + ": " + error.message());
    if (!checkpoint::committed_steps(folder()).empty()) {
      fail_all(ExitCode::input, folder() + " holds checkpoints already; name another --output");
    }
    for (const Tensor& tensor : tensors) elements_ += elements_of(tensor.shape);
    scratch_ = std::make_unique<Scratch>(run_folder, elements_ * h5::element_bytes(type_));
    unsigned char* at = scratch_->data();
    for (const Tensor& tensor : tensors) {
      const Shard shard = whole_shard(tensor.shape);
      shards_.push_back({"/params/" + tensor.ours, type_, shard, at, Range{0, shard.size()}});
      at += shard.size() * h5::element_bytes(type_);
    }
  }

  Number number() const { return number_of(type_); }
  std::int64_t elements() const { return elements_; }
  unsigned char* data(std::size_t tensor) { return static_cast<unsigned char*>(shards_[tensor].data); }
  std::string tokenizer_folder() const { return run_folder_ + "/tokenizer"; }

  // Once all data are there. Returns the checkpoint's path. `imported`: the one type that the source had.
  std::string save(const Communicator& world, const ModelDeck& model, const DataDeck& data,
                   std::optional<Number> imported, const std::string& version) {
    Deck deck;
    deck.run.name = fs::path(run_folder_).filename().string();
    deck.run.folder = run_folder_;
    deck.model = model;
    deck.data = data;
    deck.data.kind = DataKind::synthetic;  // a place-holder: the model is what the deck is for
    deck.data.samples = 1;
    deck.precision = precision_;
    deck.parallel.dense.data = 0;  // what the ranks leave
    checkpoint::State state;
    state.numbers["cursor"] = std::int64_t{0};
    state.texts["deck"] = write_deck(deck);
    state.texts["version"] = version;
    if (imported) state.texts[kTypeText] = number_name(*imported);
    checkpoint::SaveOptions options;
    options.run = deck.run.name;
    const std::string path = checkpoint::save(world, folder(), 0, shards_, state, options).path;
    write_text(run_folder_ + "/deck.yaml", state.texts["deck"]);
    return path;
  }

 private:
  static h5::ElementType element_type(Precision precision) {
    return precision == Precision::fp64   ? h5::ElementType::fp64
           : precision == Precision::fp32 ? h5::ElementType::fp32
                                          : h5::ElementType::bf16;
  }
  std::string folder() const { return run_folder_ + "/checkpoints"; }

  std::string run_folder_;
  Precision precision_;
  h5::ElementType type_;
  std::int64_t elements_ = 0;
  std::unique_ptr<Scratch> scratch_;
  std::vector<checkpoint::NamedShard> shards_;
};

// One tensor of ours, out of theirs, to `to`.
void import_one(const TensorMap& map, const FolderReader::Place& place, Number stored, unsigned char* to, Number type) {
  const std::int64_t wide = number_bytes(stored), narrow = number_bytes(type);
  const std::int64_t columns = map.their_shape.size() > 1 ? map.their_shape.back() : 1;
  const std::int64_t rows = map.transposed ? map.their_shape[0] : map.shape[0];
  const std::int64_t first_row = map.transposed ? 0 : map.first;
  const std::int64_t step = std::max<std::int64_t>(1, kChunkBytes / std::max<std::int64_t>(1, columns * wide));
  std::vector<unsigned char> read, converted;
  for (std::int64_t row = 0; row < rows; row += step) {
    const std::int64_t count = std::min(step, rows - row);
    read.resize(static_cast<std::size_t>(count * columns * wide));
    place.file->read(*place.tensor, (first_row + row) * columns * wide, read);
    converted.resize(static_cast<std::size_t>(count * columns * narrow));
    convert(read, stored, converted, type);
    if (map.transposed) {
      transpose(converted.data(), count, columns, map.first, map.shape[0], to, map.shape[1], row,
                static_cast<std::size_t>(narrow));
    } else {
      std::copy(converted.begin(), converted.end(), to + row * columns * narrow);
    }
  }
}

// What a folder holds, against what the model wants.
class Source {
 public:
  // Errors (Error, input): all that is missing, not expected, of another shape or type.
  Source(const std::string& folder, Family family, const ModelDeck& model)
      : reader_(folder), maps_(tensor_maps(family, model, experts_layout())) {
    const bool prefixed = family == Family::gpt2 && reader_.find(std::string(kGpt2Prefix) + "wte.weight") != nullptr;
    std::set<std::string> wanted;
    std::string faults;
    for (const TensorMap& map : maps_) {
      const std::string name = prefixed && map.theirs != "lm_head.weight" ? kGpt2Prefix + map.theirs : map.theirs;
      const bool seen = !wanted.insert(name).second;
      const FolderReader::Place* place = reader_.find(name);
      places_.push_back(place);
      if (seen) continue;
      if (place == nullptr) {
        faults += "\n  " + name + " is missing";
      } else if (place->tensor->shape != map.their_shape) {
        faults += "\n  " + name + " is " + shape_text(place->tensor->shape) + ", the config wants " +
                  shape_text(map.their_shape);
      } else if (!number_named(place->tensor->type->name)) {
        faults += "\n  " + name + " has the type " + place->tensor->type->name + "; read are F64, F32, BF16, F16";
      } else {
        types_.insert(*number_named(place->tensor->type->name));
      }
    }
    for (const FolderReader::Place& place : reader_.tensors()) {
      const std::string& name = place.tensor->name;
      const bool tied_head = model.tie_embeddings && name == "lm_head.weight";  // the embedding once more
      if (wanted.count(name) == 0 && !is_no_weight(family, name) && !tied_head)
        faults += "\n  " + name + " is not expected";
    }
    if (!faults.empty()) {
      fail_all(ExitCode::input,
               folder + ": weights and config.json (" + family_name(family) + ") do not fit:" + faults);
    }
  }

  const std::vector<TensorMap>& maps() const { return maps_; }
  const FolderReader::Place& place(std::size_t map) const { return *places_[map]; }
  Number type(std::size_t map) const { return *number_named(places_[map]->tensor->type->name); }
  const std::set<Number>& types() const { return types_; }

 private:
  ExpertLayout experts_layout() const {
    const std::vector<FolderReader::Place>& all = reader_.tensors();
    const bool stacked = std::any_of(all.begin(), all.end(), [](const FolderReader::Place& place) {
      return place.tensor->name.ends_with(kStackedExperts);
    });
    return stacked ? ExpertLayout::stacked : ExpertLayout::each;
  }

  FolderReader reader_;
  std::vector<TensorMap> maps_;
  std::vector<const FolderReader::Place*> places_;  // one a map
  std::set<Number> types_;
};

struct Stored {
  std::string folder;
  std::int64_t step = 0;
};

// A step_N.h5, or the newest committed step of a run's folder.
Stored find_checkpoint(const std::string& path) {
  std::error_code ignored;
  const fs::path at = path;
  if (!fs::is_directory(at, ignored)) {
    const std::optional<std::int64_t> step = checkpoint::step_named(at.filename().string(), ".h5");
    if (!step) fail_all(ExitCode::input, path + " is neither the folder of a run nor a step_N.h5");
    const std::string folder = at.parent_path().string();
    return {folder.empty() ? "." : folder, *step};
  }
  const std::string folder = fs::is_directory(at / "checkpoints", ignored) ? (at / "checkpoints").string() : path;
  const std::vector<std::int64_t> steps = checkpoint::committed_steps(folder);
  if (steps.empty()) fail_all(ExitCode::input, path + " holds no committed checkpoint");
  return {folder, steps.back()};
}

// A committed checkpoint, its checksums verified.
class Export {
 public:
  explicit Export(const std::string& path) : Export(find_checkpoint(path)) {}

  const Deck& deck() const { return deck_; }
  // What to write without a type that was asked for.
  Number type() const { return number_named(imported_type_).value_or(stored_); }

  // The bytes of one of theirs, from its parts.
  void write(const std::vector<const TensorMap*>& parts, Number type, safetensors::Writer& writer) {
    if (!parts.front()->transposed) {
      for (const TensorMap* map : parts) {
        stream(map->ours, map->shape, type, [&](std::span<const unsigned char> chunk) { writer.append(chunk); });
      }
      return;
    }
    const std::int64_t in = parts.front()->their_shape[0], all = parts.front()->their_shape[1];
    const std::size_t bytes = static_cast<std::size_t>(number_bytes(type));
    std::vector<unsigned char> theirs(static_cast<std::size_t>(in * all) * bytes), ours;
    for (const TensorMap* map : parts) {
      const std::int64_t out = map->shape[0];
      ours.clear();
      stream(map->ours, map->shape, type,
             [&](std::span<const unsigned char> chunk) { ours.insert(ours.end(), chunk.begin(), chunk.end()); });
      for (std::int64_t o = 0; o < out; ++o) {
        for (std::int64_t i = 0; i < in; ++i) {
          std::memcpy(theirs.data() + static_cast<std::size_t>(i * all + map->first + o) * bytes,
                      ours.data() + static_cast<std::size_t>(o * in + i) * bytes, bytes);
        }
      }
    }
    writer.append(theirs);
  }

  void stream(const std::string& ours, const std::vector<std::int64_t>& shape, Number type,
              const std::function<void(std::span<const unsigned char>)>& take) const {
    const auto found = datasets_.find("/params/" + ours);
    if (found == datasets_.end()) fail_all(ExitCode::storage, file_.path() + ": holds no /params/" + ours);
    const checkpoint::DatasetRecord& dataset = *found->second;
    if (dataset.shape != shape) {
      fail_all(ExitCode::storage, file_.path() + ": " + dataset.name + " is " + shape_text(dataset.shape) +
                                      ", its deck wants " + shape_text(shape));
    }
    const Number from = number_of(dataset.type);
    const std::int64_t elements = elements_of(shape), step = kChunkBytes / 8;
    std::vector<unsigned char> bytes, converted;
    for (std::int64_t first = 0; first < elements; first += step) {
      const std::int64_t count = std::min(step, elements - first);
      bytes.resize(static_cast<std::size_t>(count * number_bytes(from)));
      file_.read_at(dataset.offset + first * number_bytes(from), bytes);
      converted.resize(static_cast<std::size_t>(count * number_bytes(type)));
      convert(bytes, from, converted, type);
      take(std::span<const unsigned char>(converted));
    }
  }

 private:
  explicit Export(const Stored& stored)
      : record_(checkpoint::inspect_step(stored.folder, stored.step, true)),
        file_(checkpoint::StepFiles(stored.folder, stored.step).data) {
    for (const checkpoint::DatasetRecord& dataset : record_.datasets) datasets_.emplace(dataset.name, &dataset);
    const h5::File data = h5::File::open_serial(file_.path());
    for (const std::string& name : data.list("/state")) {
      if (name == std::string("/state/") + kTypeText) imported_type_ = data.read_text(name);
    }
    const ReadResult read = read_deck(data.read_text("/state/deck"), file_.path() + ":/state/deck");
    if (!read.errors.empty()) fail_all(ExitCode::input, numbered_list(read.errors));
    deck_ = read.deck;
    if (const auto table = datasets_.find("/params/embedding.token"); table != datasets_.end()) {
      stored_ = number_of(table->second->type);
    }
  }

  checkpoint::CommitRecord record_;
  InputFile file_;
  std::map<std::string, const checkpoint::DatasetRecord*> datasets_;
  Deck deck_;
  std::string imported_type_;
  Number stored_ = Number::f32;
};

// What tokenizers of Hugging Face folders consist of; they are copied as they are.
constexpr std::array kTokenizerFiles{"tokenizer.json",          "tokenizer_config.json", "vocab.json",     "merges.txt",
                                     "special_tokens_map.json", "added_tokens.json",     "tokenizer.model"};
constexpr std::array kTokenizers{"tokenizer.json", "vocab.json", "tokenizer.model"};  // one of these must be there

// Whether there was a tokenizer.
bool copy_tokenizer(const fs::path& from, const fs::path& to) {
  std::error_code error;
  const auto there = [&](const char* name) { return fs::is_regular_file(from / name, error); };
  if (std::none_of(kTokenizers.begin(), kTokenizers.end(), there)) return false;
  fs::create_directories(to, error);
  for (const char* name : kTokenizerFiles) {
    if (!there(name) || fs::equivalent(from / name, to / name, error)) continue;
    fs::copy_file(from / name, to / name, fs::copy_options::overwrite_existing, error);
    if (error) fail_all(ExitCode::storage, (to / name).string() + ": " + error.message());
  }
  return true;
}

// The first bytes of a plain file; nothing of what is none.
std::vector<unsigned char> first_bytes(const std::string& path, std::int64_t count) {
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return {};
  const InputFile file(path);
  std::vector<unsigned char> bytes(static_cast<std::size_t>(std::min(count, file.size())));
  file.read_at(0, bytes);
  return bytes;
}

ExchangeReport import_llmc(const Communicator& world, const std::string& source, const std::string& run_folder,
                           Precision precision, const std::string& version) {
  const InputFile file(source);
  const LlmcModel theirs = parse_llmc_model(first_bytes(source, kLlmcModelHead), file.size(), source);
  const std::vector<LlmcTensor> tensors = llmc_tensors(theirs.model);
  std::vector<Draft::Tensor> ours;
  for (const LlmcTensor& tensor : tensors) ours.push_back({tensor.ours, tensor.shape});
  Draft draft(run_folder, ours, precision);
  std::int64_t at = kLlmcModelHead;
  std::vector<unsigned char> bytes;
  const std::int64_t width = number_bytes(theirs.type), narrow = number_bytes(draft.number()), step = kChunkBytes / 8;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::int64_t elements = elements_of(tensors[i].shape);
    for (std::int64_t first = 0; first < elements; first += step) {
      const std::int64_t count = std::min(step, elements - first);
      bytes.resize(static_cast<std::size_t>(count * width));
      file.read_at(at + first * width, bytes);
      convert(bytes, theirs.type, {draft.data(i) + first * narrow, static_cast<std::size_t>(count * narrow)},
              draft.number());
    }
    at += elements * width;
    if (i == 0) at += (theirs.padded_vocab - theirs.model.vocab) * theirs.model.hidden * width;  // rows of zeros
  }
  DataDeck data;
  if (theirs.model.vocab == kGpt2Vocab) data.end_of_document = kGpt2Vocab - 1;
  const std::string path = draft.save(world, theirs.model, data, theirs.type, version);
  return {Family::gpt2, std::ssize(tensors), draft.elements(), path};
}

ExchangeReport export_llmc(const Export& from, const std::string& path, Number type) {
  const ModelDeck& model = from.deck().model;
  const std::vector<unsigned char> head = write_llmc_head(model, type);
  std::error_code ignored;
  if (fs::exists(path, ignored)) fail_all(ExitCode::input, path + " is there already; move it away first");
  NewFile file(path);
  file.append(head);
  const std::vector<LlmcTensor> tensors = llmc_tensors(model);
  ExchangeReport report{Family::gpt2, std::ssize(tensors), 0, path};
  for (const LlmcTensor& tensor : tensors) {
    from.stream(tensor.ours, tensor.shape, type, [&](std::span<const unsigned char> chunk) { file.append(chunk); });
    if (report.elements == 0) {  // the vocabulary is padded
      const std::int64_t rows = llmc_padded_vocab(model) - model.vocab;
      file.append(std::vector<unsigned char>(static_cast<std::size_t>(rows * model.hidden * number_bytes(type))));
    }
    report.elements += elements_of(tensor.shape);
  }
  file.finish();
  return report;
}

}  // namespace

bool is_foreign(const std::string& source) {
  std::error_code ignored;
  return fs::exists(fs::path(source) / "config.json", ignored) || is_llmc_model(first_bytes(source, 4));
}

ExchangeReport import_weights(const Communicator& world, const std::string& source, const std::string& run_folder,
                              Precision precision, const std::string& version) {
  FOURFOLD_ASSERT(world.size() == 1, "one rank imports");
  if (is_llmc_model(first_bytes(source, 4))) return import_llmc(world, source, run_folder, precision, version);
  const std::string config = (fs::path(source) / "config.json").string();
  const ForeignModel foreign = read_config(read_text_file(config, kLargestConfig), config);
  const Source tensors(source, foreign.family, foreign.model);
  const std::vector<TensorMap>& maps = tensors.maps();
  if (tensors.types().count(Number::f64) != 0 && precision != Precision::fp64) {
    fail_all(ExitCode::input, source + " holds numbers of 64 bits; --precision fp64 keeps them");
  }
  std::vector<Draft::Tensor> ours;
  for (const TensorMap& map : maps) ours.push_back({map.ours, map.shape});
  Draft draft(run_folder, ours, precision);
  for (std::size_t i = 0; i < maps.size(); ++i) {
    import_one(maps[i], tensors.place(i), tensors.type(i), draft.data(i), draft.number());
  }
  DataDeck data;
  data.end_of_document = foreign.end_of_document;
  if (copy_tokenizer(source, draft.tokenizer_folder())) data.tokenizer = draft.tokenizer_folder();
  std::optional<Number> type;
  if (tensors.types().size() == 1) type = *tensors.types().begin();
  const std::string path = draft.save(world, foreign.model, data, type, version);
  return {foreign.family, std::ssize(maps), draft.elements(), path};
}

ExchangeReport export_weights(const std::string& path, const std::string& output, const ExportOptions& options) {
  Export from(path);
  const Deck& deck = from.deck();
  const ModelDeck& model = deck.model;
  const Number number = options.type.value_or(from.type());
  if (options.to == WeightFormat::llmc) return export_llmc(from, output, number);
  const Family family = family_of(model);
  const std::vector<TensorMap> maps = tensor_maps(family, model, options.experts);
  std::map<std::string, std::vector<const TensorMap*>> parts;
  std::vector<safetensors::Entry> entries;
  for (const TensorMap& map : maps) {
    std::vector<const TensorMap*>& of = parts[map.theirs];
    if (of.empty()) entries.push_back({map.theirs, safetensors::find_type(number_name(number)), map.their_shape});
    of.push_back(&map);
  }
  ExchangeReport report{family, std::ssize(entries), 0, output};
  for (const TensorMap& map : maps) report.elements += elements_of(map.shape);
  safetensors::write_folder(output, entries, options.shard_bytes, {{"format", "pt"}},
                            [&](const safetensors::Entry& entry, safetensors::Writer& writer) {
                              from.write(parts.at(entry.name), number, writer);
                            });
  // The deck names it by its folder or by a file of that; bytes and auto name none.
  if (const fs::path tokenizer = deck.data.tokenizer; fs::exists(tokenizer)) {
    copy_tokenizer(fs::is_directory(tokenizer) ? tokenizer : tokenizer.parent_path(), output);
  }
  const std::int64_t end = deck.data.end_of_document;
  write_text((fs::path(output) / "config.json").string(), write_config(family, model, torch_name(number), end));
  write_text((fs::path(output) / "generation_config.json").string(), write_generation_config(end));
  return report;
}

}  // namespace fourfold::exchange
