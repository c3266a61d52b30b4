// The commands of the program, one file each. To add one: declare it here, add it to the table in main.cpp and its file
// to CMakeLists.txt.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace fourfold {

// Adds the command's arguments and options to its part of the command line, and returns what to run once that is
// parsed: it returns the process's exit code or throws Error.
using Run = std::function<int()>;

Run check_command(CLI::App& line);
Run train_command(CLI::App& line);
Run eval_command(CLI::App& line);
Run generate_command(CLI::App& line);
Run convert_command(CLI::App& line);
Run inspect_command(CLI::App& line);
Run study_command(CLI::App& line);
Run report_command(CLI::App& line);
Run selftest_command(CLI::App& line);

// The arguments that every command with a deck has: DECK and key.path=value.
struct DeckArguments {
  std::string file;
  std::vector<std::string> overrides;
};
void add_deck_arguments(CLI::App& line, DeckArguments& arguments);

// For an option's check(): what is wrong with a number that must be 0 or more ("" if nothing). CLI's own lets nan pass.
std::string not_negative(const std::string& text);
std::string above_zero_to_one(const std::string& text);
// The same of an integer.
std::function<std::string(const std::string&)> in_range(std::int64_t least, std::int64_t most);

// What is wrong with a word that is none of the names: the legal ones, and the nearest.
std::string not_one_of(const std::string& text, const std::vector<std::string>& names);

}  // namespace fourfold
