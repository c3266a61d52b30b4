#include "data/convert.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "base/error.hpp"
#include "base/strict_json.hpp"
#include "data/file_list.hpp"
#include "data/flat_tokens.hpp"
#include "data/text_tokens.hpp"
#include "data/token_files.hpp"
#include "data/token_writer.hpp"
#include "data/tokenizer.hpp"

namespace fourfold {

namespace {

using Ids = std::vector<std::int32_t>;

// One document of an input, without its end.
struct Document {
  std::vector<Ids> sequences;
  bool append_end = false;  // where the output ends documents
};
using Take = std::function<void(const Document&)>;

// Files of that stem that are there: STEM_000000.bin and so on.
std::vector<std::string> shards_of(const std::string& stem) {
  namespace fs = std::filesystem;
  const std::string begin = fs::path(stem).filename().string() + "_", end = ".bin";
  fs::path folder = fs::path(stem).parent_path();
  if (folder.empty()) folder = ".";
  std::vector<std::string> shards;
  std::error_code ignored;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.size() != begin.size() + 6 + end.size() || !name.starts_with(begin) || !name.ends_with(end)) continue;
    if (name.substr(begin.size(), 6).find_first_not_of("0123456789") == std::string::npos) {
      shards.push_back((fs::path(stem).parent_path() / name).string());
    }
  }
  std::sort(shards.begin(), shards.end());
  return shards;
}

// Documents as text: STEM.txt or STEM.jsonl.
class TextWriter : public TokenWriter {
 public:
  TextWriter(const std::string& path, const ConvertOptions& options, const Tokenizer& tokenizer)
      : options_(options), tokenizer_(tokenizer), file_(new_file(path)) {}

  void add_sequence(std::span<const std::int32_t> ids) override {
    for (const std::int32_t id : ids) {
      if (!tokenizer_.knows(id)) refuse("the tokenizer " + options_.tokenizer + " has no id " + std::to_string(id));
    }
    ids_.insert(ids_.end(), ids.begin(), ids.end());
  }
  void end_document() override {
    std::string text = tokenizer_.decode(ids_);
    ids_.clear();
    if (options_.documents == DocumentsOf::lines) {
      if (text.find('\n') != std::string::npos) {
        refuse("holds a line break, and --documents lines gives it one line; jsonl keeps it");
      }
      text += '\n';
    } else if (options_.documents == DocumentsOf::jsonl) {
      try {
        text = nlohmann::ordered_json{{options_.json_key, text}}.dump() + "\n";
      } catch (const nlohmann::json::exception&) {
        refuse("is not UTF-8, as JSON must be; --documents files writes its bytes");
      }
    }
    file_.append(std::string_view(text));
    ++document_;
  }
  void complete() override { file_.complete(); }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    fail_all(ExitCode::input, file_.path() + ": document " + std::to_string(document_) + ": " + what);
  }

  const ConvertOptions& options_;
  const Tokenizer& tokenizer_;
  NewFile& file_;
  Ids ids_;
  std::int64_t document_ = 0;
};

class Conversion {
 public:
  explicit Conversion(const ConvertOptions& options) : options_(options) {}

  ConvertReport run() {
    inputs_ = open_token_parts(expand_files(options_.inputs, "FILES"), options_.raw, "FILES");
    for (const std::unique_ptr<TokenSource>& input : inputs_) {
      if (const auto* flat = dynamic_cast<const FlatTokens*>(input.get())) {
        tokens_in_ += flat->size();
        widest_ = std::max(widest_, flat->largest_id());
      } else {
        has_text_ = true;
      }
    }
    if (has_text_ && to_text()) fail_all(ExitCode::input, "--to text wants token files; one of the FILES is text");
    if (has_text_ || to_text()) tokenizer_ = make_tokenizer(options_.tokenizer);
    end_ = options_.end_of_document;
    if (!end_ && tokenizer_) end_ = tokenizer_->end_of_document();
    if (options_.parts > 1 && (has_text_ || options_.to != TokenFormat::megatron)) {
      fail_all(ExitCode::input, "--parts splits token files into Megatron pairs; --shard-tokens sizes llm.c's files");
    }
    open_part();
    read([this](const Document& document) { write(document); });
    writers_.back()->complete();
    if (part_ + 1 < options_.parts) {
      fail_all(ExitCode::input, "the documents fill only " + std::to_string(part_ + 1) + " of " +
                                    std::to_string(options_.parts) + " parts; ask for fewer --parts");
    }
    for (const std::unique_ptr<TokenWriter>& writer : writers_) {
      writer->publish();
      for (const std::unique_ptr<NewFile>& file : writer->files()) report_.files.push_back(file->path());
    }
    return report_;
  }

 private:
  bool to_megatron() const { return options_.to == TokenFormat::megatron; }
  bool to_text() const { return options_.to == TokenFormat::text; }
  std::string text_path() const {
    return options_.stem + (options_.documents == DocumentsOf::jsonl ? ".jsonl" : ".txt");
  }

  std::int32_t end_id(const std::string& why) const {
    if (!end_) fail_all(ExitCode::input, why + " needs --end-of-document ID: 50256 of GPT-2, 128000 of Llama 3");
    return *end_;
  }

  // The vocabulary that the output's type must hold.
  std::int64_t vocab() const {
    if (options_.vocab) return *options_.vocab;
    std::int64_t size = end_ ? std::int64_t{*end_} + 1 : 1;
    if (tokenizer_) size = std::max(size, tokenizer_->vocab());
    // Token files of 16 bits stay so, whatever of those 65,536 ids they use.
    if (tokens_in_ > 0) size = std::max(size, std::int64_t{widest_} + 1);
    return size;
  }

  TokenType type() const {
    if (to_megatron()) {
      const bool all_tokens = !has_text_ && !options_.vocab;
      return all_tokens && widest_ <= largest_of(TokenType::u16) ? TokenType::u16 : megatron_type(vocab());
    }
    return vocab() <= 65536 ? TokenType::u16 : TokenType::u32;
  }

  void open_part() {
    std::string stem = options_.stem;
    if (options_.parts > 1) {
      stem += fmt::format("-{:05}-of-{:05}", part_ + 1, options_.parts);
    }
    // Any shard of llm.c's, for later ones of an earlier run would be read with those of this.
    const std::vector<std::string> names = to_text()       ? std::vector<std::string>{text_path()}
                                           : to_megatron() ? std::vector<std::string>{stem + ".bin", stem + ".idx"}
                                                           : shards_of(stem);
    for (const std::string& name : names) {
      std::error_code ignored;
      if (std::filesystem::exists(name, ignored))
        fail_all(ExitCode::input, name + " is there already; move it away first");
    }
    if (to_text()) {
      writers_.push_back(std::make_unique<TextWriter>(text_path(), options_, *tokenizer_));
    } else if (to_megatron()) {
      writers_.push_back(std::make_unique<MegatronWriter>(stem, type()));
    } else {
      writers_.push_back(std::make_unique<LlmcWriter>(stem, type(), end_id("llm.c's format"), options_.shard_tokens));
    }
  }

  void write(const Document& document) {
    std::int64_t tokens = 0;
    for (const Ids& ids : document.sequences) tokens += static_cast<std::int64_t>(ids.size());
    // A document goes to the part that its first token is in, but no part is left empty.
    if (part_ + 1 < options_.parts && report_.tokens * options_.parts >= (part_ + 1) * tokens_in_) {
      writers_.back()->complete();
      ++part_;
      open_part();
    }
    const bool end = to_megatron() && document.append_end;
    for (std::size_t i = 0; i < document.sequences.size(); ++i) {
      Ids ids = document.sequences[i];
      if (end && i + 1 == document.sequences.size()) ids.push_back(end_id("an end of documents"));
      for (const std::int32_t id : ids) {
        if (options_.vocab && id >= *options_.vocab) {
          fail_all(ExitCode::input, "document " + std::to_string(report_.documents) + ": id " + std::to_string(id) +
                                        " is not below --vocab " + std::to_string(*options_.vocab));
        }
      }
      writers_.back()->add_sequence(ids);
    }
    writers_.back()->end_document();
    ++report_.documents;
    report_.tokens += tokens + (end || options_.to == TokenFormat::llmc ? 1 : 0);
  }

  void read(const Take& take) {
    for (std::size_t i = 0; i < inputs_.size();) {
      const auto* flat = dynamic_cast<const FlatTokens*>(inputs_[i].get());
      if (flat == nullptr) {
        read_text(dynamic_cast<const TextTokens&>(*inputs_[i]), take);
        ++i;
      } else if (flat->index() != nullptr) {
        read_megatron(*flat, take);
        ++i;
      } else {
        // Documents of llm.c and of bare ids may go on in the next file.
        std::vector<const FlatTokens*> run;
        const std::string kind = flat->kind();
        for (; i < inputs_.size(); ++i) {
          const auto* next = dynamic_cast<const FlatTokens*>(inputs_[i].get());
          if (next == nullptr || next->index() != nullptr || next->kind() != kind) break;
          run.push_back(next);
        }
        read_stream(run, kind == "llm.c", take);
      }
    }
  }

  void take_text(std::string_view text, const Take& take) {
    report_.text_bytes += static_cast<std::int64_t>(text.size());
    take({{tokenizer_->encode(text)}, options_.append_end});
  }

  void read_text(const TextTokens& file, const Take& take) {
    std::string_view text(reinterpret_cast<const char*>(file.text().data()), file.text().size());
    if (options_.documents == DocumentsOf::files) return take_text(text, take);
    std::size_t offset = 0;
    while (!text.empty()) {
      const std::size_t end = std::min(text.find('\n'), text.size());
      std::string_view line = text.substr(0, end);
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (!line.empty() && options_.documents == DocumentsOf::lines) {
        take_text(line, take);
      } else if (!line.empty()) {
        const nlohmann::ordered_json json = parse_strict_json(line, file.path(), offset);
        if (!json.is_object() || !json.contains(options_.json_key) || !json.at(options_.json_key).is_string()) {
          fail_all(ExitCode::input, file.path() + ": byte " + std::to_string(offset) + ": the line has no text \"" +
                                        options_.json_key + "\"");
        }
        take_text(json.at(options_.json_key).get_ref<const std::string&>(), take);
      }
      offset += std::min(end + 1, text.size());
      text.remove_prefix(std::min(end + 1, text.size()));
    }
  }

  void read_megatron(const FlatTokens& file, const Take& take) {
    const MegatronIndex& index = *file.index();
    std::int64_t token = 0;
    for (std::int64_t d = 0; d < index.documents(); ++d) {
      Document document;
      for (std::int64_t s = index.document(d); s < index.document(d + 1); ++s) {
        Ids ids(static_cast<std::size_t>(index.length(s)));
        file.read(token, ids);
        token += index.length(s);
        document.sequences.push_back(std::move(ids));
      }
      if (options_.to == TokenFormat::llmc || (to_text() && end_)) {
        const std::int32_t end = end_id("llm.c's format");
        if (!document.sequences.empty() && !document.sequences.back().empty() &&
            document.sequences.back().back() == end) {
          document.sequences.back().pop_back();
        }
      }
      take(document);
    }
  }

  // `begins`: the id begins documents (llm.c); otherwise it ends them.
  void read_stream(const std::vector<const FlatTokens*>& files, bool begins, const Take& take) {
    const std::int32_t end = end_id("a stream of tokens");
    Document document{{{}}, true};
    bool open = false;
    const auto close = [&] {
      take(document);
      document.sequences = {{}};
      open = false;
    };
    Ids chunk(std::size_t{1} << 16);
    for (const FlatTokens* file : files) {
      for (std::int64_t at = 0; at < file->size();) {
        const std::size_t count = static_cast<std::size_t>(
            std::min<std::int64_t>(file->size() - at, static_cast<std::int64_t>(chunk.size())));
        file->read(at, std::span(chunk).first(count));
        for (std::size_t i = 0; i < count; ++i) {
          if (chunk[i] != end) {
            document.sequences[0].push_back(chunk[i]);
            open = true;
          } else if (begins) {
            if (open) close();
            open = true;
          } else {
            close();
          }
        }
        at += static_cast<std::int64_t>(count);
      }
    }
    if (open) close();
  }

  const ConvertOptions& options_;
  std::vector<std::unique_ptr<TokenSource>> inputs_;
  std::int64_t tokens_in_ = 0;  // of the inputs that are tokens
  std::int32_t widest_ = 0;     // largest id that one of them can hold
  bool has_text_ = false;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::optional<std::int32_t> end_;
  std::vector<std::unique_ptr<TokenWriter>> writers_;  // one a part
  std::int64_t part_ = 0;
  ConvertReport report_;
};

}  // namespace

ConvertReport convert_data(const ConvertOptions& options) {
  return Conversion(options).run();
}

}  // namespace fourfold
