#include "data/synthetic.hpp"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "base/error.hpp"
#include "base/random.hpp"
#include "deck/derive.hpp"

namespace fourfold {

namespace {

std::int64_t draw_below(const RandomStream& stream, std::int64_t index, std::int64_t limit) {
  return static_cast<std::int64_t>(stream.bits(static_cast<std::uint64_t>(index)) % static_cast<std::uint64_t>(limit));
}

class SyntheticSamples : public Samples {
 public:
  SyntheticSamples(Range range, std::int64_t tokens) : range_(range), tokens_(tokens) {}
  std::int64_t count() const override { return range_.size(); }
  std::int64_t tokens() const override { return tokens_; }
  bool is_text() const override { return false; }
  std::int64_t bytes(std::int64_t, std::int64_t) const override { return 0; }

 protected:
  std::int64_t number(std::int64_t index) const { return range_.begin + index; }

 private:
  Range range_;
  std::int64_t tokens_;
};

class RandomIds : public SyntheticSamples {
 public:
  RandomIds(const Deck& deck, Range range)
      : SyntheticSamples(range, std::max<std::int64_t>(1, deck.model.sequence)),
        stream_(random_stream(deck.run.seed, "data/synthetic/ids")),
        vocab_(deck.model.vocab) {}

  void append(std::int64_t index, Batch& batch) const override {
    const std::int64_t first = number(index) * (tokens() + 1);
    for (std::int64_t t = 0; t < tokens(); ++t) {
      batch.ids.push_back(static_cast<std::int32_t>(draw_below(stream_, first + t, vocab_)));
      batch.targets.push_back(static_cast<std::int32_t>(draw_below(stream_, first + t + 1, vocab_)));
    }
    ++batch.sequences;
  }

 private:
  RandomStream stream_;
  std::int64_t vocab_;
};

class DyadicRows : public SyntheticSamples {
 public:
  DyadicRows(const Deck& deck, Range range)
      : SyntheticSamples(range, 1),
        inputs_(random_stream(deck.run.seed, "data/synthetic/inputs")),
        outputs_(random_stream(deck.run.seed, "data/synthetic/outputs")),
        in_(input_width(deck.model)),
        out_(output_width(deck.model)),
        classes_(deck.model.loss == LossKind::cross_entropy) {}

  void append(std::int64_t index, Batch& batch) const override {
    const std::int64_t n = number(index);
    batch.input_width = in_;
    for (std::int64_t j = 0; j < in_; ++j) batch.inputs.push_back(third(inputs_, n * in_ + j));
    if (classes_) {
      batch.targets.push_back(static_cast<std::int32_t>(draw_below(outputs_, n, out_)));
    } else {
      batch.value_width = out_;
      for (std::int64_t j = 0; j < out_; ++j) batch.values.push_back(third(outputs_, n * out_ + j));
    }
    ++batch.sequences;
  }

 private:
  static double third(const RandomStream& stream, std::int64_t index) {
    return static_cast<double>(draw_below(stream, index, 3) - 1);
  }
  RandomStream inputs_, outputs_;
  std::int64_t in_, out_;
  bool classes_;
};

class TeacherRows : public SyntheticSamples {
 public:
  TeacherRows(const Deck& deck, Range range)
      : SyntheticSamples(range, 1),
        inputs_(random_stream(deck.run.seed, "data/synthetic/inputs")),
        in_(input_width(deck.model)),
        out_(output_width(deck.model)),
        classes_(deck.model.loss == LossKind::cross_entropy),
        first_(matrix(deck.run.seed, "data/teacher/first", kHidden, in_)),
        second_(matrix(deck.run.seed, "data/teacher/second", out_, kHidden)) {}

  void append(std::int64_t index, Batch& batch) const override {
    const std::int64_t n = number(index);
    batch.input_width = in_;
    const std::size_t begin = batch.inputs.size();
    for (std::int64_t j = 0; j < in_; ++j) {
      batch.inputs.push_back(normal(inputs_, static_cast<std::uint64_t>(n * in_ + j)));
    }
    double hidden[kHidden];
    for (std::int64_t h = 0; h < kHidden; ++h) hidden[h] = std::tanh(dot(first_, h, batch.inputs.data() + begin, in_));
    std::int64_t largest = 0;
    double largest_output = 0.0;
    for (std::int64_t o = 0; o < out_; ++o) {
      const double output = dot(second_, o, hidden, kHidden);
      if (!classes_) batch.values.push_back(output);
      if (o == 0 || output > largest_output) {  // ties to the lower class
        largest = o;
        largest_output = output;
      }
    }
    if (classes_) {
      batch.targets.push_back(static_cast<std::int32_t>(largest));
    } else {
      batch.value_width = out_;
    }
    ++batch.sequences;
  }

 private:
  static constexpr std::int64_t kHidden = 32;

  // rows x cols, normal with variance 1 / cols.
  static std::vector<double> matrix(std::uint64_t seed, const char* purpose, std::int64_t rows, std::int64_t cols) {
    const RandomStream stream = random_stream(seed, purpose);
    std::vector<double> values(static_cast<std::size_t>(rows * cols));
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = normal(stream, i) / std::sqrt(static_cast<double>(cols));
    return values;
  }
  static double dot(const std::vector<double>& values, std::int64_t row, const double* x, std::int64_t cols) {
    double sum = 0.0;
    for (std::int64_t j = 0; j < cols; ++j) sum += values[static_cast<std::size_t>(row * cols + j)] * x[j];
    return sum;
  }

  RandomStream inputs_;
  std::int64_t in_, out_;
  bool classes_;
  std::vector<double> first_, second_;
};

}  // namespace

std::unique_ptr<Samples> make_synthetic(const Deck& deck, Range range) {
  const bool teacher = deck.data.synthetic == SyntheticKind::teacher;
  if (!takes_rows(deck.model.kind)) {
    if (teacher)
      fail_all(ExitCode::input, "data.synthetic: teacher needs model.kind mlp or residual; token models take dyadic");
    return std::make_unique<RandomIds>(deck, range);
  }
  if (teacher) return std::make_unique<TeacherRows>(deck, range);
  return std::make_unique<DyadicRows>(deck, range);
}

}  // namespace fourfold
