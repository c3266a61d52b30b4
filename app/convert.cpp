// fourfold convert data ...: text to token files, token files to others. Without MPI.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>
#include <memory>
#include <string>

#include "base/error.hpp"
#include "base/timer.hpp"
#include "commands.hpp"
#include "data/convert.hpp"
#include "deck_file.hpp"

namespace fourfold {
namespace {

void add_data(CLI::App& line, ConvertOptions& options) {
  line.add_option("FILES", options.inputs, "text or token files (Megatron, llm.c); paths and globs")->required();
  line.add_option("--to", options.to, "megatron or llmc")
      ->required()
      ->transform(CLI::Transformer(
          std::map<std::string, TokenFormat>{{"megatron", TokenFormat::megatron}, {"llmc", TokenFormat::llmc}}));
  line.add_option("--output", options.stem, "STEM of STEM.bin and STEM.idx, or of STEM_000000.bin and so on")
      ->required();
  line.add_option(
      "--tokenizer", options.tokenizer,
      "of text: bytes; a tokenizer.json or vocab.json (merges.txt beside it) of byte-level BPE; a *.model of "
      "SentencePiece; a folder that holds one");
  line.add_option("--documents", options.documents,
                  "a text file is one document (files), one a line (lines), or JSON (jsonl)")
      ->transform(CLI::Transformer(std::map<std::string, DocumentsOf>{
          {"files", DocumentsOf::files}, {"lines", DocumentsOf::lines}, {"jsonl", DocumentsOf::jsonl}}));
  line.add_option("--json-key", options.json_key, "of jsonl: where the text is");
  line.add_option("--end-of-document", options.end_of_document,
                  "id that ends a document (Megatron) or begins it (llm.c); without it the tokenizer's")
      ->check(CLI::Range(0, 1 << 24));
  line.add_flag("!--no-end", options.append_end, "text to Megatron: no id after a document");
  line.add_option("--vocab", options.vocab, "ids are below it; u16 below 65,500, else 32 bits")
      ->check(CLI::Range(1, 1 << 24));
  line.add_option("--raw", options.raw, "what files without a known header are: text, u16 or u32")
      ->transform(CLI::Transformer(
          std::map<std::string, RawKind>{{"text", RawKind::text}, {"u16", RawKind::u16}, {"u32", RawKind::u32}}));
  line.add_option("--shard-tokens", options.shard_tokens, "most tokens of a llm.c file")
      ->check(CLI::Range(1, 2147483647));
  line.add_option("--parts", options.parts, "token files to so many Megatron pairs, STEM-00001-of-00004 and so on")
      ->check(CLI::Range(1, 99999));
}

int convert_data_files(const ConvertOptions& options) {
  if (is_further_copy()) return static_cast<int>(ExitCode::done);
  const Stopwatch watch;
  const ConvertReport report = convert_data(options);
  std::printf("%s\n", fmt::format("{} documents, {} tokens{} in {:.1f} s: {}", report.documents, report.tokens,
                                  report.text_bytes > 0 ? fmt::format(" of {} bytes of text", report.text_bytes) : "",
                                  watch.seconds(), fmt::join(report.files, ", "))
                          .c_str());
  return static_cast<int>(ExitCode::done);
}

}  // namespace

Run convert_command(CLI::App& line) {
  line.require_subcommand(1);
  CLI::App* data = line.add_subcommand("data", "text or token files to token files of Megatron or llm.c");
  const auto options = std::make_shared<ConvertOptions>();
  add_data(*data, *options);
  return [options] { return convert_data_files(*options); };
}

}  // namespace fourfold
