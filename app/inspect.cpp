// fourfold inspect PATH: the checkpoints of a run, whether they are intact, and where two runs part. Without MPI.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "checkpoint/inspect.hpp"
#include "commands.hpp"
#include "deck_file.hpp"

namespace fourfold {
namespace {

namespace fs = std::filesystem;
using checkpoint::TensorDifference;

struct Arguments {
  std::string path;
  std::optional<std::string> other;
  std::optional<double> tolerance;  // without: by the stored type
  bool verify = false;
};

constexpr std::size_t kMostLines = 10;

// A run's folder has its states in record/ (debug.record) and checkpoints/; any other folder is taken as it is.
std::vector<std::string> state_folders(const std::string& path) {
  std::vector<std::string> folders;
  const auto is_folder = [](const fs::path& at) {
    std::error_code ignored;  // a link that leads nowhere or to itself is no folder
    return fs::is_directory(at, ignored);
  };
  for (const char* inside : {"record", "checkpoints"}) {
    const fs::path folder = fs::path(path) / inside;
    if (is_folder(folder)) folders.push_back(folder.string());
  }
  if (!folders.empty()) return folders;
  // An empty folder is one without checkpoints yet, whatever is in them is one with; any other is a mistake.
  bool fits = is_folder(path) && (fs::is_empty(path) || fs::exists(fs::path(path) / "metrics.jsonl"));
  if (is_folder(path)) {
    for (const fs::directory_entry& file : fs::directory_iterator(path)) {
      fits = fits || file.path().filename().string().starts_with("step_");
    }
  }
  if (!fits) {
    fail_all(ExitCode::input, path +
                                  " is neither the folder of a run nor one of checkpoints (step_N.h5 and "
                                  "step_N.commit); a run's folder is named by its deck's run.folder");
  }
  return {path};
}

// One checkpoint: a line a tensor. With --verify also what is in their values.
ExitCode list_tensors(const Arguments& arguments, const checkpoint::StepPlace& place) {
  const checkpoint::CommitRecord record = checkpoint::inspect_step(place.folder, place.step, arguments.verify);
  std::printf("%s: step %lld of run %s, %zu tensors, %lld bytes%s\n", arguments.path.c_str(),
              static_cast<long long>(record.step), record.run.c_str(), record.datasets.size(),
              static_cast<long long>(record.bytes),
              arguments.verify ? ", all bytes read and compared with their checksums" : "");
  std::int64_t non_finite = 0, denormal = 0;
  for (const checkpoint::DatasetRecord& dataset : record.datasets) {
    std::string shape;
    for (const std::int64_t extent : dataset.shape) shape += (shape.empty() ? "" : " x ") + std::to_string(extent);
    std::string line = fmt::format("{:<60} {:<5} {:<20}", dataset.name, h5::element_name(dataset.type), shape);
    if (arguments.verify) {
      const checkpoint::Census census = checkpoint::census(place, dataset);
      non_finite += census.non_finite;
      denormal += census.denormal;
      line += fmt::format(" largest {:.3e}", census.largest);
      if (census.non_finite > 0) line += fmt::format(", {} not finite", census.non_finite);
      if (census.denormal > 0) line += fmt::format(", {} denormal", census.denormal);
    }
    std::printf("%s\n", line.c_str());
  }
  if (arguments.verify) {
    std::printf("%lld values are not finite, %lld are denormal\n", static_cast<long long>(non_finite),
                static_cast<long long>(denormal));
  }
  return ExitCode::done;
}

// A run may write meanwhile: a step that its `keep` removes between two looks is no damage.
std::optional<std::string> damage(const Arguments& arguments, const checkpoint::StepPlace& place,
                                  checkpoint::CommitRecord& record) {
  try {
    record = checkpoint::inspect_step(place.folder, place.step, arguments.verify);
    return std::nullopt;
  } catch (const Error& error) {
    return error.what();
  }
}

ExitCode list(const Arguments& arguments) {
  if (const auto place = checkpoint::place_of(arguments.path)) return list_tensors(arguments, *place);
  ExitCode code = ExitCode::done;
  for (const std::string& folder : state_folders(arguments.path)) {
    const std::vector<std::int64_t> steps = checkpoint::committed_steps(folder);
    std::printf("%s: %zu committed steps%s\n", folder.c_str(), steps.size(),
                arguments.verify ? ", all bytes read and compared with their checksums" : "");
    for (const std::int64_t step : checkpoint::uncommitted_steps(folder)) {
      std::printf("%10lld  not committed: a save that goes on, or was interrupted\n", static_cast<long long>(step));
    }
    if (steps.empty()) continue;
    std::printf("%10s  %8s  %16s  %16s  %s\n", "step", "tensors", "elements", "bytes", "run");
    for (const std::int64_t step : steps) {
      const checkpoint::StepPlace place{folder, step};
      checkpoint::CommitRecord record;
      const std::optional<std::string> fault = damage(arguments, place, record);
      const std::string rejected = checkpoint::rejection(place);
      if (fault && rejected == "it is not committed") continue;
      if (fault) {
        std::printf("%10lld  damaged: %s\n", static_cast<long long>(step), fault->c_str());
        code = ExitCode::storage;
        continue;
      }
      std::int64_t elements = 0;
      for (const checkpoint::DatasetRecord& dataset : record.datasets) {
        elements += dataset.bytes / h5::element_bytes(dataset.type);
      }
      std::printf("%10lld  %8zu  %16lld  %16lld  %s\n", static_cast<long long>(step), record.datasets.size(),
                  static_cast<long long>(elements), static_cast<long long>(record.bytes), record.run.c_str());
      if (!rejected.empty()) std::printf("%10s  a restart passes it over: %s\n", "", rejected.c_str());
    }
  }
  return code;
}

struct StepLine {
  double loss = 0, grad_norm = 0;
};

// The last line of each step of metrics.jsonl; empty where there is no such file.
std::map<std::int64_t, StepLine> metrics_of(const std::string& path) {
  std::map<std::int64_t, StepLine> steps;
  std::ifstream file((fs::path(path) / "metrics.jsonl").string());
  for (std::string line; std::getline(file, line);) {
    const nlohmann::json entry = nlohmann::json::parse(line, nullptr, false);
    const auto number = [&](const char* key) { return entry.contains(key) && entry.at(key).is_number(); };
    if (!entry.is_object() || entry.contains("event")) continue;
    if (!number("step") || !number("loss") || !number("grad_norm")) continue;
    steps[entry.at("step").get<std::int64_t>()] = {entry.at("loss").get<double>(), entry.at("grad_norm").get<double>()};
  }
  return steps;
}

double relative(double a, double b) {
  if (a == b) return 0;
  const double distance = std::abs(a - b) / std::abs(a);
  return std::isnan(distance) ? INFINITY : distance;
}

// What differs most at a step, and all that is beyond the bound.
struct Comparison {
  double worst = 0;
  std::string worst_name;
  std::vector<std::string> beyond;  // lines, in the order in which a step makes the tensors, worst first in each kind
};

void add(Comparison& comparison, const std::string& name, double difference, double tolerance) {
  if (difference > comparison.worst || comparison.worst_name.empty()) {
    comparison.worst = difference;
    comparison.worst_name = name;
  }
  if (difference > tolerance) comparison.beyond.push_back(fmt::format("{:<60} {:.3e}", name, difference));
}

using Steps = std::map<std::int64_t, Comparison>;

void compare_metrics(const Arguments& arguments, Steps& steps, double tolerance) {
  const auto a = metrics_of(arguments.path), b = metrics_of(*arguments.other);
  for (const auto& [step, line] : a) {
    const auto found = b.find(step);
    if (found == b.end()) continue;
    add(steps[step], "loss", relative(line.loss, found->second.loss), tolerance);
    add(steps[step], "grad_norm", relative(line.grad_norm, found->second.grad_norm), tolerance);
  }
}

void compare_states(const std::string& folder_a, const std::string& folder_b, Steps& steps, double tolerance) {
  const std::vector<std::int64_t> in_b = checkpoint::committed_steps(folder_b);
  for (const std::int64_t step : checkpoint::committed_steps(folder_a)) {
    if (!std::binary_search(in_b.begin(), in_b.end(), step)) continue;
    std::vector<TensorDifference> tensors = checkpoint::compare_steps(folder_a, folder_b, step);
    const auto kind = [](const std::string& name) { return name.substr(0, name.find('/', 1)); };
    for (auto begin = tensors.begin(); begin != tensors.end();) {
      const auto end = std::find_if(begin, tensors.end(),
                                    [&](const auto& tensor) { return kind(tensor.name) != kind(begin->name); });
      std::stable_sort(begin, end, [](const auto& x, const auto& y) { return x.relative() > y.relative(); });
      begin = end;
    }
    for (const TensorDifference& tensor : tensors) add(steps[step], tensor.name, tensor.relative(), tolerance);
  }
}

// The bound between two grids, by the type of the weights. bf16: a rounding is off by 2^-9 at most, and a step chains
// tens of them, which partly cancel.
double bound_of(h5::ElementType weights) {
  if (weights == h5::ElementType::fp64) return 1e-11;
  return weights == h5::ElementType::bf16 ? 0x1p-5 : 1e-5;
}

double tolerance_of(const Arguments& arguments) {
  if (arguments.tolerance) return *arguments.tolerance;
  for (const std::string& folder : state_folders(arguments.path)) {
    for (const std::int64_t step : checkpoint::committed_steps(folder)) {
      for (const checkpoint::DatasetRecord& dataset : checkpoint::inspect_step(folder, step, false).datasets) {
        if (dataset.name.starts_with("/params/")) return bound_of(dataset.type);
      }
    }
  }
  return bound_of(h5::ElementType::fp32);
}

// Two files, of any steps: every tensor that differs at all.
ExitCode compare_files(const Arguments& arguments, const checkpoint::StepPlace& a, const checkpoint::StepPlace& b) {
  const checkpoint::StateDifferences differences = checkpoint::compare_states(a, b);
  for (const std::string& line : differences.unlike) std::printf("%s\n", line.c_str());
  const double tolerance = arguments.tolerance.value_or(0);
  std::size_t beyond = 0;
  for (const TensorDifference& tensor : differences.tensors) {
    if (tensor.distance == 0) continue;
    if (beyond == 0) std::printf("%-60s %12s  %s\n", "tensor", "largest", "over the largest of its kind");
    std::printf("%-60s %12.3e  %.3e\n", tensor.name.c_str(), tensor.distance, tensor.relative());
    if (tensor.relative() > tolerance) ++beyond;
  }
  std::printf("%zu tensors of both, %zu beyond %.1e; %zu in one alone or of other shapes or types\n",
              differences.tensors.size(), beyond, tolerance, differences.unlike.size());
  return beyond == 0 && differences.unlike.empty() ? ExitCode::done : ExitCode::error;
}

ExitCode compare(const Arguments& arguments) {
  const auto file_a = checkpoint::place_of(arguments.path), file_b = checkpoint::place_of(*arguments.other);
  if (file_a && file_b) return compare_files(arguments, *file_a, *file_b);
  const double tolerance = tolerance_of(arguments);
  Steps steps;
  std::vector<std::string> folders_a = state_folders(arguments.path), folders_b = state_folders(*arguments.other);
  for (const std::string& a : folders_a) {
    for (const std::string& b : folders_b) {
      const bool alone = folders_a.size() == 1 && folders_b.size() == 1;
      if (alone || fs::path(a).filename() == fs::path(b).filename()) compare_states(a, b, steps, tolerance);
    }
  }
  compare_metrics(arguments, steps, tolerance);
  if (steps.empty()) {
    fail_all(ExitCode::input, arguments.path + " and " + *arguments.other +
                                  " have no step in common; debug.record: 1 in both decks keeps every step of a run");
  }
  std::printf("%10s  %12s  %s\n", "step", "largest", "of");
  for (const auto& [step, comparison] : steps) {
    std::printf("%10lld  %12.3e  %s\n", static_cast<long long>(step), comparison.worst, comparison.worst_name.c_str());
    if (comparison.beyond.empty()) continue;
    std::printf("the runs part at step %lld: beyond %.1e of the largest magnitude of their kind are\n",
                static_cast<long long>(step), tolerance);
    for (std::size_t i = 0; i < comparison.beyond.size() && i < kMostLines; ++i) {
      std::printf("  %s\n", comparison.beyond[i].c_str());
    }
    if (comparison.beyond.size() > kMostLines) std::printf("  and %zu more\n", comparison.beyond.size() - kMostLines);
    return ExitCode::error;
  }
  std::printf("equal within %.1e on all %zu common steps\n", tolerance, steps.size());
  return ExitCode::done;
}

}  // namespace

Run inspect_command(CLI::App& line) {
  const auto arguments = std::make_shared<Arguments>();
  line.add_option("PATH", arguments->path, "the folder of a run, one with step_N.h5 files, or such a file")->required();
  CLI::Option* verify =
      line.add_flag("--verify", arguments->verify, "read all bytes and compare them with their checksums");
  line.add_option("--compare", arguments->other,
                  "another such folder: the first step and tensor beyond the bound; another such file: all that "
                  "differs; exit code 1 where there is something")
      ->excludes(verify);
  line.add_option("--tolerance", arguments->tolerance,
                  "largest |a - b| over the largest magnitude of the kind (gradients, weights, moments); "
                  "without it 1e-11 for fp64, 1e-5 for fp32, 0.031 for bf16 (of two files 0); 0: bit for bit")
      ->check(not_negative);
  return [arguments]() -> int {
    if (is_further_copy()) return static_cast<int>(ExitCode::done);
    if (arguments->other) return static_cast<int>(compare(*arguments));
    return static_cast<int>(list(*arguments));
  };
}

}  // namespace fourfold
