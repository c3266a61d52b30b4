// fourfold convert data ...: text to token files, token files to others. fourfold convert weights ...: Hugging Face
// folders to checkpoints and back. On one process.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/timer.hpp"
#include "comm/launch.hpp"
#include "commands.hpp"
#include "data/convert.hpp"
#include "deck_file.hpp"
#include "exchange/weights.hpp"

namespace fourfold {
namespace {

// A word of `values`, which CLI then turns into its value.
template <class Value>
CLI::Validator one_of(const std::map<std::string, Value>& values) {
  std::vector<std::string> names;
  for (const auto& [name, value] : values) names.push_back(name);
  const auto replace = [values, names](std::string& text) {
    const std::string fault = not_one_of(text, names);
    if (fault.empty()) text = std::to_string(static_cast<int>(values.at(text)));
    return fault;
  };
  return {replace, fmt::format("{{{}}}", fmt::join(names, ",")), "one of"};
}

void add_data(CLI::App& line, ConvertOptions& options) {
  line.add_option("FILES", options.inputs, "text or token files (Megatron, llm.c); paths and globs")->required();
  line.add_option("--to", options.to, "megatron, llmc or, from tokens back, text")
      ->required()
      ->transform(one_of(std::map<std::string, TokenFormat>{
          {"megatron", TokenFormat::megatron}, {"llmc", TokenFormat::llmc}, {"text", TokenFormat::text}}));
  line.add_option("--output", options.stem,
                  "STEM of STEM.bin and STEM.idx, of STEM_000000.bin and so on, of STEM.txt or STEM.jsonl")
      ->required();
  line.add_option(
      "--tokenizer", options.tokenizer,
      "of text: bytes; a tokenizer.json or vocab.json (merges.txt beside it) of byte-level BPE; a *.model of "
      "SentencePiece; a folder that holds one");
  line.add_option("--documents", options.documents,
                  "a text file is one document (files), one a line (lines), or JSON (jsonl)")
      ->transform(one_of(std::map<std::string, DocumentsOf>{
          {"files", DocumentsOf::files}, {"lines", DocumentsOf::lines}, {"jsonl", DocumentsOf::jsonl}}));
  line.add_option("--json-key", options.json_key, "of jsonl: where the text is");
  line.add_option("--end-of-document", options.end_of_document,
                  "id that ends a document (Megatron) or begins it (llm.c); without it the tokenizer's")
      ->check(in_range(0, 1 << 24));
  line.add_flag("!--no-end", options.append_end, "text to Megatron: no id after a document");
  line.add_option("--vocab", options.vocab, "ids are below it; u16 below 65,500, else 32 bits")
      ->check(in_range(1, 1 << 24));
  line.add_option("--raw", options.raw, "what files without a known header are: text, u16 or u32")
      ->transform(one_of(
          std::map<std::string, RawKind>{{"text", RawKind::text}, {"u16", RawKind::u16}, {"u32", RawKind::u32}}));
  line.add_option("--shard-tokens", options.shard_tokens, "most tokens of a llm.c file")
      ->check(in_range(1, 2147483647));
  line.add_option("--parts", options.parts, "token files to so many Megatron pairs, STEM-00001-of-00004 and so on")
      ->check(in_range(1, 99999));
}

int convert_data_files(const ConvertOptions& options) {
  if (is_further_copy()) return static_cast<int>(ExitCode::done);
  set_log_rank(0);
  const Stopwatch watch;
  const ConvertReport report = convert_data(options);
  std::printf("%s\n", fmt::format("{} documents, {} tokens{} in {:.1f} s: {}", report.documents, report.tokens,
                                  report.text_bytes > 0 ? fmt::format(" of {} bytes of text", report.text_bytes) : "",
                                  watch.seconds(), fmt::join(report.files, ", "))
                          .c_str());
  return static_cast<int>(ExitCode::done);
}

struct WeightOptions {
  std::string source, output;
  Precision precision = Precision::fp32;
  std::string type;
  exchange::ExportOptions out;
};

void add_weights(CLI::App& line, WeightOptions& options) {
  line.add_option("SOURCE", options.source,
                  "a Hugging Face folder (config.json and safetensors) or a model file of llm.c; or a checkpoint: "
                  "step_N.h5 or a run's folder")
      ->required();
  line.add_option("--output", options.output,
                  "the run's folder to make of foreign weights, or the folder (llm.c: the file) to export to")
      ->required();
  line.add_option("--to", options.out.to, "of an export: huggingface or llmc")
      ->transform(one_of(std::map<std::string, exchange::WeightFormat>{
          {"huggingface", exchange::WeightFormat::huggingface}, {"llmc", exchange::WeightFormat::llmc}}));
  line.add_option("--precision", options.precision, "of the checkpoint that is made: fp32, bf16 or fp64")
      ->transform(one_of(std::map<std::string, Precision>{
          {"fp32", Precision::fp32}, {"bf16", Precision::bf16}, {"fp64", Precision::fp64}}));
  line.add_option("--type", options.type,
                  "of exported numbers: F32, BF16, F16 or F64; without it what was imported, else what is stored")
      ->check([](const std::string& text) {
        return not_one_of(text, {"F32", "BF16", "F16", "F64"});
      });
  line.add_option("--experts", options.out.experts,
                  "of an export: each (matrices of each expert by themselves, which every reader knows) or stacked")
      ->transform(one_of(std::map<std::string, exchange::ExpertLayout>{{"each", exchange::ExpertLayout::each},
                                                                       {"stacked", exchange::ExpertLayout::stacked}}));
  line.add_option("--shard-bytes", options.out.shard_bytes, "of tensor data in an exported file, at most")
      ->check(in_range(std::int64_t{1}, std::int64_t{1} << 50));
}

void print(const exchange::ExchangeReport& report) {
  std::printf("%s: %lld tensors, %lld parameters: %s\n", exchange::family_name(report.family),
              static_cast<long long>(report.tensors), static_cast<long long>(report.elements), report.path.c_str());
}

int convert_weights(const WeightOptions& options) {
  if (!exchange::is_foreign(options.source)) {
    if (is_further_copy()) return static_cast<int>(ExitCode::done);
    exchange::ExportOptions out = options.out;
    out.type = exchange::number_named(options.type);
    print(exchange::export_weights(options.source, options.output, out));
    return static_cast<int>(ExitCode::done);
  }
  int argc = 1;
  char name[] = "fourfold";
  char* words[] = {name, nullptr};
  char** argv = words;
  const Launch launch(&argc, &argv);  // parallel HDF5 wants MPI
  return run_guarded(launch, [&]() -> int {
    if (launch.world().size() > 1) fail_all(ExitCode::input, "fourfold convert weights runs on one rank");
    print(
        exchange::import_weights(launch.world(), options.source, options.output, options.precision, FOURFOLD_VERSION));
    return static_cast<int>(ExitCode::done);
  });
}

}  // namespace

Run convert_command(CLI::App& line) {
  line.require_subcommand(1);
  CLI::App* data = line.add_subcommand("data", "text or token files to token files of Megatron or llm.c");
  const auto options = std::make_shared<ConvertOptions>();
  add_data(*data, *options);
  CLI::App* weights = line.add_subcommand("weights", "a Hugging Face folder to a checkpoint, or a checkpoint to one");
  const auto weight_options = std::make_shared<WeightOptions>();
  add_weights(*weights, *weight_options);
  return [data, options, weight_options] {
    return data->parsed() ? convert_data_files(*options) : convert_weights(*weight_options);
  };
}

}  // namespace fourfold
