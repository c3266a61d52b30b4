#include "infer/generate.hpp"

#include <algorithm>

#include "base/error.hpp"
#include "comm/collectives.hpp"

namespace fourfold {

namespace {

// One sequence through the model: its past, and the logits of what comes next.
template <class T>
class Context {
 public:
  Context(Model<T>& model, Pool& pool, Index window) : model_(model), pool_(pool), window_(window) {}

  void restart() {
    caches_ = model_.make_caches(window_);
    length_ = 0;
  }
  Index length() const { return length_; }

  // The tokens follow what was there. Returns the last one's logits, V.
  std::vector<double> extend(std::span<const std::int32_t> tokens) {
    MicroBatch<T> batch;
    batch.sequences = 1;
    batch.tokens = static_cast<Index>(tokens.size());
    batch.ids = Tensor<std::int32_t>(pool_, MemoryTag::buffers, batch.tokens, 1);
    const auto mirror = Kokkos::create_mirror_view(batch.ids.vector());
    std::copy(tokens.begin(), tokens.end(), mirror.data());
    Kokkos::deep_copy(batch.ids.vector(), mirror);
    Pass<T> pass;
    pass.batch = &batch;
    pass.caches = &caches_;
    const Tensor<T> logits = model_.logits(pass, 1);
    length_ += batch.tokens;
    const auto host = Kokkos::create_mirror_view(logits.vector());
    Kokkos::deep_copy(host, logits.vector());
    return std::vector<double>(host.data(), host.data() + host.extent(0));
  }

 private:
  Model<T>& model_;
  Pool& pool_;
  Index window_;
  Index length_ = 0;
  std::vector<AttentionCache<T>> caches_;
};

}  // namespace

template <class T>
std::vector<std::int32_t> generate_tokens(Model<T>& model, const GridComms& comms, Pool& pool,
                                          const std::vector<std::int32_t>& prompt, std::int64_t tokens,
                                          const SamplingOptions& options,
                                          const std::function<bool(std::int32_t)>& on_token) {
  FOURFOLD_ASSERT(!prompt.empty(), "there is a token to go on from");
  const Index window = std::max<Index>(1, model.deck().model.sequence);
  Context<T> context(model, pool, window);
  context.restart();
  std::vector<std::int32_t> text = prompt;
  std::size_t fed = 0;  // tokens of `text` that are in the context
  std::vector<std::int32_t> made;
  for (std::int64_t index = 0; index < tokens; ++index) {
    if (context.length() + static_cast<Index>(text.size() - fed) > window) {
      context.restart();
      fed = text.size() - static_cast<std::size_t>(std::max<Index>(1, window / 2));
    }
    const std::vector<double> logits = context.extend(std::span(text).subspan(fed));
    fed = text.size();
    std::int32_t token = sample_token(logits, options, index);
    broadcast<std::int32_t>(comms.world(), {&token, 1}, 0, Phase::control);
    text.push_back(token);
    made.push_back(token);
    if (!on_token(token)) break;
  }
  return made;
}

template std::vector<std::int32_t> generate_tokens<float>(Model<float>&, const GridComms&, Pool&,
                                                          const std::vector<std::int32_t>&, std::int64_t,
                                                          const SamplingOptions&,
                                                          const std::function<bool(std::int32_t)>&);
template std::vector<std::int32_t> generate_tokens<kernels::bf16>(Model<kernels::bf16>&, const GridComms&, Pool&,
                                                                  const std::vector<std::int32_t>&, std::int64_t,
                                                                  const SamplingOptions&,
                                                                  const std::function<bool(std::int32_t)>&);
template std::vector<std::int32_t> generate_tokens<double>(Model<double>&, const GridComms&, Pool&,
                                                           const std::vector<std::int32_t>&, std::int64_t,
                                                           const SamplingOptions&,
                                                           const std::function<bool(std::int32_t)>&);

}  // namespace fourfold
