// fourfold generate DECK --prompt TEXT: text from a checkpoint, as it comes.
#include <CLI/CLI.hpp>

#include <cstdio>
#include <memory>
#include <string>

#include "base/error.hpp"
#include "commands.hpp"
#include "data/bytes.hpp"
#include "infer/generate.hpp"
#include "job.hpp"
#include "model/precision.hpp"
#include "train/restart.hpp"

namespace fourfold {
namespace {

struct Arguments {
  DeckArguments deck;
  std::string checkpoint;
  std::string prompt;
  std::int64_t tokens = 256;
  SamplingOptions sampling;
};

template <class T>
ExitCode generate(const Deck& deck, const GridComms& comms, Pool& pool, const Arguments& arguments) {
  if (takes_rows(deck.model.kind) || deck.model.vocab != kByteVocab) {
    fail_all(ExitCode::input, "generate takes models of bytes (model.vocab: " + std::to_string(kByteVocab) + ")");
  }
  if (deck.parallel.stages > 1) {
    fail_all(ExitCode::input, "generate runs the model in one stage; add parallel.stages=1 (any checkpoint fits)");
  }
  Model<T> model(deck, comms, pool);
  load_parameters(model, deck, comms, arguments.checkpoint);
  const bool prints = comms.world().rank() == 0;
  const auto print = [&](const std::string& text) {
    if (!prints) return;
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  };
  // Nothing to go on from is the start of a document.
  std::vector<std::int32_t> prompt = encode_bytes(arguments.prompt);
  if (prompt.empty()) prompt.push_back(kEndOfDocument);
  print(arguments.prompt);
  generate_tokens(model, comms, pool, prompt, arguments.tokens, arguments.sampling, [&](std::int32_t token) {
    print(decode_bytes({&token, 1}));
    return token != kEndOfDocument;
  });
  print("\n");
  return ExitCode::done;
}

}  // namespace

Run generate_command(CLI::App& line) {
  const auto arguments = std::make_shared<Arguments>();
  add_deck_arguments(line, arguments->deck);
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  line.add_option("--prompt", arguments->prompt, "the text to go on from; empty: the start of a document");
  line.add_option("--tokens", arguments->tokens, "at most so many new tokens; the end of the document ends the text")
      ->check(CLI::Range(std::int64_t{0}, kMost))
      ->capture_default_str();
  line.add_option("--temperature", arguments->sampling.temperature, "0: always the likeliest token")
      ->check(not_negative)
      ->capture_default_str();
  line.add_option("--top-k", arguments->sampling.top_k, "choose among the k likeliest tokens; 0: among all")
      ->check(CLI::Range(std::int64_t{0}, kMost))
      ->capture_default_str();
  line.add_option("--seed", arguments->sampling.seed, "of the draws")->capture_default_str();
  line.add_option("--checkpoint", arguments->checkpoint,
                  "a committed step_N.h5; without it the newest of the run's folder");
  return [arguments]() -> int {
    return run_job(arguments->deck, Purpose::use, [&](const Deck& deck, const GridComms& comms, Pool& pool) {
      return in_precision(deck.precision, [&]<class T>() { return generate<T>(deck, comms, pool, *arguments); });
    });
  };
}

}  // namespace fourfold
