#include "deck_file.hpp"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/error.hpp"
#include "comm/launcher_check.hpp"
#include "pipeline.hpp"

namespace fourfold {

LoadedText load_text(const std::string& file) {
  std::error_code ignored;
  if (std::filesystem::is_directory(file, ignored)) return {"", "it is a folder"};
  errno = 0;
  std::ifstream stream(file, std::ios::binary);
  std::ostringstream text;
  if (stream) text << stream.rdbuf();
  if (!stream.is_open() || stream.bad()) return {"", std::strerror(errno)};
  return {text.str(), ""};
}

DeckText read_deck_file(const std::string& file) {
  const LoadedText loaded = load_text(file);
  if (!loaded.problem.empty()) fail_all(ExitCode::input, "cannot read the deck " + file + ": " + loaded.problem);
  return DeckText{file, loaded.text};
}

std::optional<Deck> checked_deck(const DeckText& deck, const std::vector<std::string>& overrides,
                                 std::optional<std::int64_t> ranks, bool speaks, const LoadText& load) {
  ReadResult result = read_deck(deck.text, deck.file, overrides, ranks, load);
  if (result.errors.empty()) result.errors = schedule_list_faults(result, deck.file);
  if (result.errors.empty()) return result.deck;
  if (speaks) std::fputs(numbered_list(result.errors).c_str(), stderr);
  return std::nullopt;
}

bool is_further_copy() {
  const std::optional<LauncherClaim> claim = launcher_claim([](const char* name) { return std::getenv(name); });
  return claim && claim->rank != "0" && claim->rank != "?";
}

}  // namespace fourfold
