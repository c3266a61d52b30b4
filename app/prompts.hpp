// The prompts of `fourfold generate`, and the text that comes of them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "data/tokenizer.hpp"
#include "deck/deck.hpp"
#include "infer/generate.hpp"

namespace fourfold {

// The run's tokenizer: data.tokenizer; where the deck leaves that to the program, what `convert weights` put beside the
// checkpoints, else bytes where the vocabulary is theirs. Null: none, the model has ids only.
std::unique_ptr<Tokenizer> run_tokenizer(const Deck& deck);

struct PromptSources {
  std::vector<std::string> texts;        // --prompt
  std::vector<std::string> ids;          // --ids: "3 1 4"
  std::string file;                      // --prompts: a text a line; *.jsonl: objects with "prompt" or "ids"
  std::optional<std::int64_t> begin_id;  // put before every text
};

// All of them in this order; without any the empty text. Each has at least one token: an empty text is the start of a
// document, the id that ends the one before (`end`). Errors (Error, input): texts where there is no tokenizer, files,
// ids that are not in [0, vocab).
std::vector<Ids> read_prompts(const PromptSources& sources, const Tokenizer* tokenizer, std::int64_t vocab,
                              std::optional<std::int32_t> end);

// What is printed of prompts and tokens, by one rank. One prompt: its text goes on as the tokens come (without a
// tokenizer: their ids). Several, or `json`: a line of JSON for each prompt, in their order.
class TextPrinter {
 public:
  TextPrinter(const std::vector<Ids>& prompts, const Tokenizer* tokenizer, std::optional<std::int32_t> end, bool json);
  // The next token of a prompt; `last`: none follows.
  void take(std::size_t prompt, std::int32_t token, bool last);
  void finish();  // after the last token of all

 private:
  struct Made {
    Ids ids;
    bool done = false;
  };
  std::string spelt(std::size_t prompt) const;  // prompt and what came after it
  std::string line_of(std::size_t prompt) const;
  void go_on(bool last);
  void print_lines();

  const std::vector<Ids>& prompts_;
  const Tokenizer* tokenizer_;
  std::optional<std::int32_t> end_;
  bool json_;
  std::vector<Made> made_;
  std::size_t printed_ = 0;  // bytes of the one text, or lines
};

}  // namespace fourfold
