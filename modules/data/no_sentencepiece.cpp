#include "base/error.hpp"
#include "data/tokenizer.hpp"

namespace fourfold {

std::unique_ptr<Tokenizer> open_sentencepiece(const std::string& path) {
  fail_all(ExitCode::input, path +
                                ": this fourfold was built without SentencePiece; install libsentencepiece-dev and "
                                "configure again");
}

}  // namespace fourfold
