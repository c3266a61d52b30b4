// tokenizer.json, and vocab.json with merges.txt.
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/log.hpp"
#include "base/strict_json.hpp"
#include "data/byte_bpe.hpp"

namespace fourfold {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kLargestFile = std::int64_t{1} << 28;

[[noreturn]] void refuse(const std::string& path, const std::string& what) {
  fail_all(ExitCode::input, path + ": " + what);
}

Json read_json(const std::string& path) {
  return parse_strict_json(read_text_file(path, kLargestFile), path);
}

std::string text_of(const Json& value, const char* name) {
  return value.contains(name) && value.at(name).is_string() ? value.at(name).get<std::string>() : "";
}

std::string type_of(const Json& value) {
  return text_of(value, "type");
}

bool flag(const Json& value, const char* name, bool otherwise) {
  return value.contains(name) && value.at(name).is_boolean() ? value.at(name).get<bool>() : otherwise;
}

std::int32_t id_of(const Json& value, const std::string& path, const std::string& token) {
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > std::numeric_limits<std::int32_t>::max()) {
    refuse(path, "token " + token + " must have an id of 0 or more, not " + value.dump());
  }
  return static_cast<std::int32_t>(value.get<std::uint64_t>());
}

std::map<std::string, std::int32_t> read_vocab(const Json& json, const std::string& path) {
  if (!json.is_object() || json.empty()) refuse(path, "the vocabulary must be an object of ids");
  std::map<std::string, std::int32_t> vocab;
  for (const auto& [token, id] : json.items()) vocab.emplace(token, id_of(id, path, token));
  return vocab;
}

// "Ġ t": two tokens with a space between.
std::pair<std::string, std::string> split_merge(const std::string& line, const std::string& path) {
  const std::size_t space = line.find(' ');
  if (space == 0 || space == std::string::npos || line.find(' ', space + 1) != std::string::npos ||
      space + 1 == line.size()) {
    refuse(path, "a merge must be two tokens with a space between, not \"" + line + "\"");
  }
  return {line.substr(0, space), line.substr(space + 1)};
}

void read_words(const Json& step, const std::string& path, BpeTables& tables) {
  const std::string type = type_of(step);
  if (type == "Sequence" && step.contains("pretokenizers") && step.at("pretokenizers").is_array()) {
    for (const Json& part : step.at("pretokenizers")) read_words(part, path, tables);
  } else if (type == "ByteLevel") {
    tables.prefix_space = flag(step, "add_prefix_space", true);
    if (tables.prefix_space && !tables.pattern.empty()) {
      refuse(path, "pre_tokenizer: add_prefix_space behind a Split, before each of its words, is not built");
    }
    if (flag(step, "use_regex", true)) {
      if (!tables.pattern.empty()) refuse(path, "pre_tokenizer: cuts words twice, which is not built");
      tables.pattern = kGpt2Pattern;
    }
  } else if (type == "Split") {
    const bool regex = step.contains("pattern") && step.at("pattern").is_object() &&
                       step.at("pattern").contains("Regex") && step.at("pattern").at("Regex").is_string();
    if (!regex || text_of(step, "behavior") != "Isolated" || flag(step, "invert", false) || !tables.pattern.empty()) {
      refuse(path, "pre_tokenizer: only one Split, by a Regex, Isolated, is built");
    }
    tables.pattern = step.at("pattern").at("Regex").get<std::string>();
  } else {
    refuse(path, "pre_tokenizer " + (type.empty() ? step.dump() : type) + " is not built; built: ByteLevel, Split");
  }
}

}  // namespace

BpeTables read_tokenizer_json(const std::string& path) {
  return parse_tokenizer_json(read_text_file(path, kLargestFile), path);
}

BpeTables parse_tokenizer_json(const std::string& text, const std::string& path) {
  const Json json = parse_strict_json(text, path);
  const Json model = json.is_object() && json.contains("model") ? json.at("model") : Json();
  if (type_of(model) != "BPE")
    refuse(path, "model.type must be BPE, not " + (model.is_null() ? "missing" : type_of(model)));
  BpeTables tables;
  if (json.contains("pre_tokenizer")) read_words(json.at("pre_tokenizer"), path, tables);
  if (json.contains("normalizer") && !json.at("normalizer").is_null()) {
    const std::string type = type_of(json.at("normalizer"));
    // NFC leaves alone what is in it already, as nearly all text is.
    if (type != "NFC")
      refuse(path, "normalizer " + type + " is not built; built: none, and NFC for text that is in it");
    log_warn(
        path +
        ": its normalizer NFC is not applied: text that is not in NFC (`uconv -x nfc` makes it so) gets other ids");
  }
  if (tables.pattern.empty())
    refuse(path, "pre_tokenizer: byte-level BPE needs a pattern of words (ByteLevel or Split)");
  if (flag(model, "byte_fallback", false)) refuse(path, "model.byte_fallback is not byte-level BPE");
  for (const char* name : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!text_of(model, name).empty()) refuse(path, std::string("model.") + name + " is not built");
  }
  if (model.contains("dropout") && !model.at("dropout").is_null()) refuse(path, "model.dropout is not built");
  if (!model.contains("vocab") || !model.contains("merges") || !model.at("merges").is_array()) {
    refuse(path, "model.vocab and model.merges must be there");
  }
  tables.vocab = read_vocab(model.at("vocab"), path);
  tables.whole_words = flag(model, "ignore_merges", false);
  for (const Json& merge : model.at("merges")) {
    if (merge.is_string()) {
      tables.merges.push_back(split_merge(merge.get<std::string>(), path));
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      tables.merges.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
    } else {
      refuse(path, "a merge must be two tokens, not " + merge.dump());
    }
  }
  if (json.contains("added_tokens") && json.at("added_tokens").is_array()) {
    for (const Json& token : json.at("added_tokens")) {
      if (!token.is_object() || !token.contains("content") || !token.at("content").is_string() ||
          !token.contains("id")) {
        refuse(path, "an added token must have content and id, not " + token.dump());
      }
      const std::string content = token.at("content").get<std::string>();
      for (const char* name : {"lstrip", "rstrip", "single_word"}) {
        if (flag(token, name, false)) refuse(path, "added token " + content + ": " + name + " is not built");
      }
      tables.special.emplace(content, id_of(token.at("id"), path, content));
    }
  }
  return tables;
}

BpeTables read_vocab_and_merges(const std::string& vocab, const std::string& merges) {
  BpeTables tables;
  tables.pattern = kGpt2Pattern;
  tables.vocab = read_vocab(read_json(vocab), vocab);
  std::istringstream lines(read_text_file(merges, kLargestFile));
  bool first = true;
  for (std::string line; std::getline(lines, line); first = false) {
    if (line.ends_with('\r')) line.pop_back();
    if (line.empty() || (first && line.starts_with("#version"))) continue;
    tables.merges.push_back(split_merge(line, merges));
  }
  // The one token of GPT-2 that merges do not make.
  if (const auto end = tables.vocab.find("<|endoftext|>"); end != tables.vocab.end()) tables.special.insert(*end);
  return tables;
}

}  // namespace fourfold
