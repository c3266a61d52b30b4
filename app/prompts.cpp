#include "prompts.hpp"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.hpp"
#include "base/files.hpp"
#include "base/strict_json.hpp"

namespace fourfold {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::int64_t kLargestFile = std::int64_t{1} << 30;

class Reader {
 public:
  Reader(const PromptSources& sources, const Tokenizer* tokenizer, std::int64_t vocab, std::optional<std::int32_t> end)
      : sources_(sources), tokenizer_(tokenizer), vocab_(vocab), end_(end) {}

  std::vector<Ids> read() {
    for (const std::string& text : sources_.texts) add_text(text, "--prompt");
    for (const std::string& list : sources_.ids) add_list(list);
    if (!sources_.file.empty()) add_file();
    if (prompts_.empty()) add_text("", "--prompt");
    return std::move(prompts_);
  }

 private:
  void add(Ids ids, const std::string& where) {
    for (const std::int32_t id : ids) {
      if (id < 0 || id >= vocab_) {
        fail_all(ExitCode::input,
                 where + ": id " + std::to_string(id) + " is not below model.vocab " + std::to_string(vocab_));
      }
    }
    prompts_.push_back(std::move(ids));
  }

  void add_text(std::string_view text, const std::string& where) {
    Ids ids;
    if (sources_.begin_id) ids.push_back(static_cast<std::int32_t>(*sources_.begin_id));
    if (!text.empty()) {
      if (tokenizer_ == nullptr) {
        fail_all(ExitCode::input, where + ": the run has no tokenizer for a vocabulary of " + std::to_string(vocab_) +
                                      "; name it as data.tokenizer, or give --ids");
      }
      const Ids of_text = tokenizer_->encode(text);
      ids.insert(ids.end(), of_text.begin(), of_text.end());
    }
    if (ids.empty()) {
      if (!end_) {
        fail_all(ExitCode::input,
                 where +
                     ": an empty prompt is the start of a document, and no id ends the one before it; give "
                     "data.end_of_document");
      }
      ids.push_back(*end_);
    }
    add(std::move(ids), where);
  }

  void add_list(const std::string& list) {
    Ids ids;
    const char* at = list.data();
    const char* end = at + list.size();
    while (true) {
      while (at < end && (*at == ' ' || *at == ',')) ++at;
      if (at == end) break;
      std::int32_t id = 0;
      const auto [next, error] = std::from_chars(at, end, id);
      if (error != std::errc() || next == at) {
        fail_all(ExitCode::input, "--ids: \"" + list + "\" is no list of ids; wanted: such as \"3 1 4\"");
      }
      ids.push_back(id);
      at = next;
    }
    if (ids.empty()) fail_all(ExitCode::input, "--ids: no id in \"" + list + "\"");
    add(std::move(ids), "--ids");
  }

  void add_file() {
    const std::string text = read_text_file(sources_.file, kLargestFile);
    const bool objects = sources_.file.ends_with(".jsonl");
    std::size_t offset = 0;
    for (std::int64_t number = 1; offset < text.size(); ++number) {
      const std::size_t end = std::min(text.find('\n', offset), text.size());
      std::string_view line = std::string_view(text).substr(offset, end - offset);
      if (line.ends_with('\r')) line.remove_suffix(1);
      const std::string where = sources_.file + ": line " + std::to_string(number);
      if (!objects) {
        add_text(line, where);
      } else if (!line.empty()) {
        add_object(parse_strict_json(line, sources_.file, offset), where);
      }
      offset = end + 1;
    }
    if (prompts_.empty()) fail_all(ExitCode::input, sources_.file + ": holds no prompt");
  }

  void add_object(const Json& object, const std::string& where) {
    if (object.is_object() && object.contains("prompt") && object.at("prompt").is_string()) {
      return add_text(object.at("prompt").get_ref<const std::string&>(), where);
    }
    Ids ids;
    if (object.is_object() && object.contains("ids") && object.at("ids").is_array()) {
      for (const Json& id : object.at("ids")) {
        if (!id.is_number_unsigned() || id.get<std::uint64_t>() >= static_cast<std::uint64_t>(vocab_)) {
          fail_all(ExitCode::input, where + ": " + id.dump() + " is no id below model.vocab " + std::to_string(vocab_));
        }
        ids.push_back(static_cast<std::int32_t>(id.get<std::uint64_t>()));
      }
    }
    if (ids.empty())
      fail_all(ExitCode::input, where + ": wanted: an object with the text \"prompt\" or the list \"ids\"");
    add(std::move(ids), where);
  }

  const PromptSources& sources_;
  const Tokenizer* tokenizer_;
  std::int64_t vocab_;
  std::optional<std::int32_t> end_;
  std::vector<Ids> prompts_;
};

// Bytes of `text` that later tokens leave as they are: without a character that is not complete yet, or that a decoder
// replaced because of that.
std::size_t settled(std::string_view text) {
  constexpr std::string_view kReplacement = "\xEF\xBF\xBD";
  while (text.ends_with(kReplacement)) text.remove_suffix(kReplacement.size());
  for (std::size_t back = 1; back <= std::min<std::size_t>(3, text.size()); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xC0) == 0x80) continue;  // inside a character
    const std::size_t length = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : byte >= 0xC0 ? 2 : 1;
    return length > back ? text.size() - back : text.size();
  }
  return text.size();
}

void print(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

// The text of ids; those that the tokenizer does not have (padding of the model's vocabulary) spell nothing.
std::string spell(const Tokenizer& tokenizer, Ids ids) {
  std::erase_if(ids, [&](std::int32_t id) { return !tokenizer.knows(id); });
  return tokenizer.decode(ids);
}

}  // namespace

std::unique_ptr<Tokenizer> run_tokenizer(const Deck& deck) {
  if (deck.data.tokenizer != "auto") return make_tokenizer(deck.data.tokenizer);
  const std::string beside = deck.run.folder + "/tokenizer";
  std::error_code ignored;
  if (std::filesystem::is_directory(beside, ignored)) return make_tokenizer(beside);
  return deck.model.vocab == kByteVocab ? make_tokenizer("bytes") : nullptr;
}

std::vector<Ids> read_prompts(const PromptSources& sources, const Tokenizer* tokenizer, std::int64_t vocab,
                              std::optional<std::int32_t> end) {
  return Reader(sources, tokenizer, vocab, end).read();
}

TextPrinter::TextPrinter(const std::vector<Ids>& prompts, const Tokenizer* tokenizer, std::optional<std::int32_t> end,
                         bool json)
    : prompts_(prompts), tokenizer_(tokenizer), end_(end), json_(json || prompts.size() > 1), made_(prompts.size()) {
  if (!json_) go_on(false);
}

void TextPrinter::take(std::size_t prompt, std::int32_t token, bool last) {
  made_[prompt].ids.push_back(token);
  made_[prompt].done = last;
  if (!json_) return go_on(last);
  print_lines();
}

void TextPrinter::finish() {
  for (Made& made : made_) made.done = true;
  if (json_) return print_lines();
  go_on(true);
  print("\n");
}

std::string TextPrinter::spelt(std::size_t prompt) const {
  Ids ids = prompts_[prompt];
  if (end_ && ids.front() == *end_) ids.erase(ids.begin());  // the end of the document before
  ids.insert(ids.end(), made_[prompt].ids.begin(), made_[prompt].ids.end());
  if (end_ && !ids.empty() && ids.back() == *end_) ids.pop_back();
  return spell(*tokenizer_, std::move(ids));
}

void TextPrinter::go_on(bool last) {
  std::string text;
  if (tokenizer_ != nullptr) {
    text = spelt(0);
  } else {
    for (const Ids* ids : {&prompts_[0], static_cast<const Ids*>(&made_[0].ids)}) {
      for (const std::int32_t id : *ids) text += (text.empty() ? "" : " ") + std::to_string(id);
    }
  }
  const std::size_t until = last ? text.size() : settled(text);
  if (until <= printed_) return;
  print(text.substr(printed_, until - printed_));
  printed_ = until;
}

std::string TextPrinter::line_of(std::size_t prompt) const {
  Json line;
  const Ids& ids = made_[prompt].ids;
  line["index"] = prompt;
  if (tokenizer_ != nullptr) line["text"] = spelt(prompt);
  line["prompt_ids"] = prompts_[prompt];
  line["ids"] = ids;
  line["end"] = end_ && !ids.empty() && ids.back() == *end_;
  return line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

void TextPrinter::print_lines() {
  for (; printed_ < made_.size() && made_[printed_].done; ++printed_) print(line_of(printed_));
}

}  // namespace fourfold
