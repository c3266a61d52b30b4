// fourfold generate DECK --prompt TEXT ...: text from a checkpoint, on any grid and pipeline.
#include <CLI/CLI.hpp>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "comm/agree.hpp"
#include "comm/collectives.hpp"
#include "comm/launch.hpp"
#include "commands.hpp"
#include "infer/generate.hpp"
#include "job.hpp"
#include "model/precision.hpp"
#include "prompts.hpp"
#include "train/pipeline.hpp"
#include "train/restart.hpp"

namespace fourfold {
namespace {

struct Arguments {
  DeckArguments deck;
  std::string checkpoint;
  PromptSources prompts;
  bool json = false;
  GenerateOptions options;
};

// What rank 0 reads and all ranks go on from.
struct Text {
  std::unique_ptr<Tokenizer> tokenizer;  // on rank 0
  std::vector<Ids> prompts;
  std::optional<std::int32_t> end;
};

Text read_text(const Deck& deck, const Communicator& world, const PromptSources& sources) {
  Text text;
  std::string problem;
  Ids all;  // the end (-1: none), and each prompt behind its length
  if (world.rank() == 0) {
    try {
      text.tokenizer = run_tokenizer(deck);
      std::int64_t end = deck.data.end_of_document;
      if (end < 0 && text.tokenizer) end = text.tokenizer->end_of_document().value_or(-1);
      if (end >= 0 && end < deck.model.vocab) text.end = static_cast<std::int32_t>(end);
      all.push_back(text.end.value_or(-1));
      for (const Ids& prompt : read_prompts(sources, text.tokenizer.get(), deck.model.vocab, text.end)) {
        all.push_back(static_cast<std::int32_t>(prompt.size()));
        all.insert(all.end(), prompt.begin(), prompt.end());
      }
    } catch (const Error& error) {
      problem = error.what();
    }
  }
  problem = broadcast_string(world, problem);
  if (!problem.empty()) fail_all(ExitCode::input, problem);
  std::int64_t size = std::ssize(all);
  broadcast<std::int64_t>(world, {&size, 1}, 0, Phase::setup);
  all.resize(static_cast<std::size_t>(size));
  broadcast<std::int32_t>(world, all, 0, Phase::setup);
  if (all[0] >= 0) text.end = all[0];
  for (auto at = all.begin() + 1; at != all.end(); at += 1 + *at) text.prompts.emplace_back(at + 1, at + 1 + *at);
  return text;
}

template <class T>
ExitCode generate(const Deck& deck, const GridComms& comms, Pool& pool, const Arguments& arguments) {
  if (takes_rows(deck.model.kind)) {
    fail_all(ExitCode::input, "generate takes models of tokens; model.kind is mlp or residual");
  }
  const Text text = read_text(deck, comms.world(), arguments.prompts);
  Model<T> model(deck, comms, pool, plan_pipeline(deck).part_of(comms.here().stage));
  set_progress(0, "restart");
  const checkpoint::Committed source = load_parameters(model, deck, comms, arguments.checkpoint);
  std::optional<TextPrinter> printer;
  if (comms.world().rank() == 0) printer.emplace(text.prompts, text.tokenizer.get(), text.end, arguments.json);
  GenerateOptions options = arguments.options;
  options.at_once = deck.batch.global / deck.batch.micro_batches;
  std::vector<std::int64_t> made(text.prompts.size());
  set_progress(source.step, "generation");
  generate_tokens(model, comms, pool, text.prompts, options, [&](std::size_t prompt, std::int32_t token) {
    set_progress(source.step, "generation");
    const bool ends = text.end && token == *text.end;
    const bool last = ends || ++made[prompt] == options.tokens;
    if (printer) printer->take(prompt, token, last);
    return !ends;
  });
  if (printer) printer->finish();
  return ExitCode::done;
}

}  // namespace

Run generate_command(CLI::App& line) {
  const auto arguments = std::make_shared<Arguments>();
  add_deck_arguments(line, arguments->deck);
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  const auto repeated = [&line](const char* name, std::vector<std::string>& values, const char* text) {
    line.add_option(name, values, text)->type_size(1)->allow_extra_args(false);
  };
  repeated("--prompt", arguments->prompts.texts,
           "a text to go on from, as often as wanted; empty, or none: the start of a document");
  repeated("--ids", arguments->prompts.ids, "a prompt as token ids, such as \"3 1 4\"");
  line.add_option("--prompts", arguments->prompts.file,
                  "a file of prompts: a line each, or *.jsonl: objects with \"prompt\" (text) or \"ids\"");
  line.add_option("--begin", arguments->prompts.begin_id, "id put before every text: the begin of text of Llama")
      ->check(in_range(0, 1 << 30));
  line.add_flag("--json", arguments->json, "a line of JSON for each prompt, as several prompts always get");
  line.add_option("--tokens", arguments->options.tokens,
                  "at most so many new tokens of a prompt; the end of the document ends the text")
      ->check(in_range(std::int64_t{0}, kMost))
      ->capture_default_str();
  SamplingOptions& sampling = arguments->options.sampling;
  line.add_option("--temperature", sampling.temperature, "0: always the likeliest token")
      ->check(not_negative)
      ->capture_default_str();
  line.add_option("--top-k", sampling.top_k, "choose among the k likeliest tokens; 0: among all")
      ->check(in_range(std::int64_t{0}, kMost))
      ->capture_default_str();
  line.add_option("--top-p", sampling.top_p, "and among the fewest likeliest whose probabilities reach p; 1: all")
      ->check(above_zero_to_one)
      ->capture_default_str();
  line.add_option("--seed", sampling.seed, "of the draws")->capture_default_str();
  line.add_option("--checkpoint", arguments->checkpoint,
                  "a committed step_N.h5; without it the newest of the run's folder");
  return [arguments]() -> int {
    return run_job(arguments->deck, Purpose::use, [&](const Deck& deck, const GridComms& comms, Pool& pool) {
      return in_precision(deck.precision, [&]<class T>() { return generate<T>(deck, comms, pool, *arguments); });
    });
  };
}

}  // namespace fourfold
