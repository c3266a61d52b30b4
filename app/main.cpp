// fourfold COMMAND DECK [key.path=value ...]
//
//   1. the command line   each command adds its own arguments
//   2. the command        its own file: check.cpp, train.cpp, eval.cpp, ...
//   3. the exit code      README, "Exit codes"
#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <system_error>
#include <vector>

#include "base/error.hpp"
#include "commands.hpp"
#include "deck/names.hpp"
#include "deck_file.hpp"

namespace fourfold {
namespace {

struct Command {
  const char* name;
  const char* summary;
  Run (*prepare)(CLI::App& line);
};

constexpr Command kCommands[] = {
    {"check", "every fault of a deck at once, or the resolved deck and what it costs; no MPI", check_command},
    {"train", "trains, evaluates, checkpoints; goes on from the newest checkpoint of run.folder", train_command},
    {"eval", "the validation loss of a checkpoint, on any number of ranks", eval_command},
    {"generate", "text from a checkpoint", generate_command},
    {"convert", "texts, token files and weights to those of other programs and back; no MPI", convert_command},
    {"inspect", "lists, verifies and compares the checkpoints of runs; no MPI", inspect_command},
    {"study", "the runs that a deck's study block asks for: scaling, strategies, sweeps; goes on where it was",
     study_command},
    {"report", "tables and plots of a study; no MPI", report_command},
    {"selftest", "is this allocation fit to run? ranks, MPI, cores, devices, every axis, files; in seconds",
     selftest_command},
};

int refuse(ExitCode code, const std::string& message) {
  if (is_further_copy()) return static_cast<int>(ExitCode::done);
  std::fputs(("fourfold: error: " + message + "\n").c_str(), stderr);
  return static_cast<int>(code);
}

int unknown_command(const std::string& name) {
  std::vector<std::string> names;
  for (const Command& command : kCommands) names.emplace_back(command.name);
  const std::string nearest = nearest_name(name, names);
  return refuse(ExitCode::input, (name.empty() ? "a command is missing" : "unknown command " + name) +
                                     (nearest.empty() ? "" : "; nearest: " + nearest) + "; commands: " + join(names) +
                                     "; fourfold --help says more");
}

}  // namespace

void add_deck_arguments(CLI::App& line, DeckArguments& arguments) {
  line.add_option("DECK", arguments.file, "the deck, a YAML file");
  line.add_option("KEY.PATH=VALUE", arguments.overrides, "in place of what the deck says; the value is YAML");
}

namespace {

// The whole text as a number; nan where it is none.
double number_of(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  return end != text.c_str() && *end == '\0' && std::isfinite(value) ? value : std::nan("");
}

}  // namespace

std::string not_negative(const std::string& text) {
  return number_of(text) >= 0 ? "" : text + " is not legal; wanted: a number, 0 or more";
}

std::string above_zero_to_one(const std::string& text) {
  const double value = number_of(text);
  if (value > 0 && value <= 1) return "";
  return text + " is not legal; wanted: a number above 0, up to 1" + (value > 1 ? "; nearest: 1" : "");
}

std::function<std::string(const std::string&)> in_range(std::int64_t least, std::int64_t most) {
  return [least, most](const std::string& text) -> std::string {
    std::int64_t value = 0;
    const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), value);
    const bool whole = fault == std::errc() && end == text.data() + text.size();
    if (whole && value >= least && value <= most) return "";
    return text + " is not legal; wanted: an integer, " + std::to_string(least) + " to " + std::to_string(most) +
           (whole ? "; nearest: " + std::to_string(value < least ? least : most) : "");
  };
}

std::string not_one_of(const std::string& text, const std::vector<std::string>& names) {
  if (std::find(names.begin(), names.end(), text) != names.end()) return "";
  const std::string nearest = nearest_name(text, names);
  return text + " is not legal; wanted: one of " + join(names) + (nearest.empty() ? "" : "; nearest: " + nearest);
}

int run(int argc, char** argv) {
  // 1. The command line.
  CLI::App line("Trains dense and mixture-of-experts networks on four-dimensional grids of processes.", "fourfold");
  line.set_version_flag("--version", FOURFOLD_VERSION);
  line.require_subcommand(1);
  const std::string name = argc > 1 ? argv[1] : "";
  Run command;
  for (const Command& known : kCommands) {
    CLI::App* part = line.add_subcommand(known.name, known.summary);
    Run prepared = known.prepare(*part);
    if (name == known.name) command = prepared;
  }
  if (!command && (name.empty() || name[0] != '-')) return unknown_command(name);
  try {
    line.parse(argc, argv);
  } catch (const CLI::ParseError& stopped) {
    if (stopped.get_exit_code() != 0) return refuse(ExitCode::input, stopped.what());
    return is_further_copy() ? 0 : line.exit(stopped);  // --help, --version
  }

  // 2. The command.
  try {
    return command();
  } catch (const Error& error) {
    return refuse(error.code(), error.what());
  }
}

}  // namespace fourfold

// 3. The exit code.
int main(int argc, char** argv) {
  try {
    return fourfold::run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fourfold: error: %s\n", error.what());
    return static_cast<int>(fourfold::ExitCode::error);
  }
}
