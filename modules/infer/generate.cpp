#include "infer/generate.hpp"

#include <algorithm>
#include <utility>

#include "base/error.hpp"
#include "comm/collectives.hpp"
#include "infer/stage_link.hpp"
#include "model/boundary.hpp"

namespace fourfold {

namespace {

// A sequence under way: the same on all ranks, but for the cache, which the coordinates have that hold the sequence.
template <class T>
struct Slot {
  bool active = false;
  std::size_t prompt = 0;
  Ids text;             // the prompt and what came after it
  std::size_t fed = 0;  // tokens of `text` that have been through the model
  Index length = 0;     // tokens of the context
  SequenceCache<T> cache;
};

template <class T>
class Generation {
 public:
  Generation(Model<T>& model, const GridComms& comms, Pool& pool, const std::vector<Ids>& prompts,
             const GenerateOptions& options, const OnToken& on_token)
      : model_(model),
        comms_(comms),
        pool_(pool),
        prompts_(prompts),
        options_(options),
        on_token_(on_token),
        window_(std::max<Index>(1, model.deck().model.sequence)),
        link_(model.deck(), comms, pool),
        made_(prompts.size()) {
    const ProcessGrid& grid = comms.grid();
    for (int rank = 0; rank < comms.world().size(); ++rank) {
      const Coordinates place = grid.coordinates(rank);
      if (place.stage + 1 == grid.stages() && place.row == 0 && place.col == 0) owners_.push_back(place);
      owns_.push_back(place.stage + 1 == grid.stages() && place.row == 0 && place.col == 0);
    }
    if (options.tokens < 1 || prompts.empty()) return;
    const auto count = static_cast<std::int64_t>(prompts.size());
    const std::int64_t groups = std::min<std::int64_t>(grid.stages(), count);
    const std::int64_t slots = std::clamp<std::int64_t>(options.at_once, 1, (count + groups - 1) / groups);
    groups_.resize(static_cast<std::size_t>(groups));
    for (auto& group : groups_) {
      group.resize(static_cast<std::size_t>(slots));
      const Range mine = generated_part(grid, comms.here(), slots);
      for (Index s = 0; s < slots; ++s) start_next(group[static_cast<std::size_t>(s)], s >= mine.begin && s < mine.end);
    }
  }

  std::vector<Ids> run() {
    while (any_active()) {
      Ids sampled;  // by this rank, group by group
      for (auto& group : groups_) pass(group, sampled);
      link_.finish();
      take(told(sampled));
    }
    return std::move(made_);
  }

 private:
  using Group = std::vector<Slot<T>>;

  bool any_active() const {
    return std::any_of(groups_.begin(), groups_.end(), [](const Group& group) {
      return std::any_of(group.begin(), group.end(), [](const Slot<T>& slot) { return slot.active; });
    });
  }

  void start_next(Slot<T>& slot, bool mine) {
    slot = Slot<T>{};
    if (next_ == prompts_.size()) return;
    slot.active = true;
    slot.prompt = next_++;
    slot.text = prompts_[slot.prompt];
    FOURFOLD_ASSERT(!slot.text.empty(), "there is a token to go on from");
    const Index longest = static_cast<Index>(slot.text.size()) + options_.tokens;
    if (mine) slot.cache = model_.make_cache(std::min(window_, longest));
  }

  // The tokens that go through the model next, by their place in the context.
  Range next_range(Slot<T>& slot) const {
    if (!slot.active) return {0, 0};
    if (slot.length + static_cast<Index>(slot.text.size() - slot.fed) > window_) {
      slot.length = 0;
      slot.fed = slot.text.size() - static_cast<std::size_t>(std::max<Index>(1, window_ / 2));
    }
    return {slot.length, slot.length + static_cast<Index>(slot.text.size() - slot.fed)};
  }

  // One pass of this stage for a group; on the last one the tokens that this rank draws are added to `sampled`.
  void pass(Group& group, Ids& sampled) {
    const int stage = comms_.here().stage;
    const bool last = stage + 1 == comms_.grid().stages();
    std::vector<Range> ranges;
    for (Slot<T>& slot : group) ranges.push_back(next_range(slot));
    const Range mine = generated_part(comms_.grid(), comms_.here(), static_cast<Index>(group.size()));
    MicroBatch<T> batch;
    batch.sequences = 1;
    batch.tokens = 0;
    batch.sequence_tokens = window_;
    batch.first_sample = mine.begin;
    Ids ids;
    std::vector<const SequenceCache<T>*> caches;
    std::vector<Index> rows;  // the last of each sequence
    std::vector<const Slot<T>*> drawn;
    for (Index s = mine.begin; s < mine.end; ++s) {
      const Slot<T>& slot = group[static_cast<std::size_t>(s)];
      if (!slot.active) continue;
      batch.token_ranges.push_back(ranges[static_cast<std::size_t>(s)]);
      batch.tokens += batch.token_ranges.back().size();
      ids.insert(ids.end(), slot.text.begin() + static_cast<std::ptrdiff_t>(slot.fed), slot.text.end());
      caches.push_back(&slot.cache);
      rows.push_back(batch.tokens - 1);
      drawn.push_back(&slot);
    }
    for (Slot<T>& slot : group) {
      slot.length += static_cast<Index>(slot.text.size() - slot.fed);
      slot.fed = slot.text.size();
    }
    const bool idle = std::none_of(group.begin(), group.end(), [](const Slot<T>& slot) { return slot.active; });
    if (idle) return;

    batch.all_sequences =
        static_cast<Index>(std::count_if(group.begin(), group.end(), [](const Slot<T>& slot) { return slot.active; }));
    batch.ids = Tensor<std::int32_t>(pool_, MemoryTag::buffers, batch.tokens, 1);
    const auto mirror = Kokkos::create_mirror_view(batch.ids.vector());
    std::copy(ids.begin(), ids.end(), mirror.data());
    Kokkos::deep_copy(batch.ids.vector(), mirror);
    Pass<T> pass;
    pass.batch = &batch;
    pass.caches = &caches;
    Tensor<T> x;
    if (stage > 0) x = link_.receive(ranges);
    x = model_.extend(pass, std::move(x), rows);
    if (!last) return link_.send(ranges, x);
    if (!owns_[static_cast<std::size_t>(comms_.world().rank())]) return;
    const auto host = Kokkos::create_mirror_view(x.vector());
    Kokkos::deep_copy(host, x.vector());
    for (std::size_t i = 0; i < drawn.size(); ++i) {
      const T* row = host.data() + static_cast<Index>(i) * x.cols();
      const std::vector<double> logits(row, row + x.cols());
      const Slot<T>& slot = *drawn[i];
      const auto number = static_cast<std::int64_t>(slot.text.size() - prompts_[slot.prompt].size());
      sampled.push_back(sample_token(logits, options_.sampling, slot.prompt, number));
    }
  }

  // The active slots of a coordinate of the last stage, in the order in which it draws for them.
  template <class F>
  void for_each_drawn(const Coordinates& owner, const F& f) {
    for (auto& group : groups_) {
      const Range theirs = generated_part(comms_.grid(), owner, static_cast<Index>(group.size()));
      for (Index s = theirs.begin; s < theirs.end; ++s) {
        if (group[static_cast<std::size_t>(s)].active) f(group, s);
      }
    }
  }

  // What all ranks drew, by rank.
  Ids told(const Ids& sampled) {
    std::vector<std::int64_t> sizes(owns_.size());
    std::size_t owner = 0;
    std::int64_t all = 0;
    for (std::size_t rank = 0; rank < owns_.size(); ++rank) {
      if (owns_[rank]) for_each_drawn(owners_[owner++], [&](Group&, Index) { ++sizes[rank]; });
      all += sizes[rank];
    }
    Ids tokens(static_cast<std::size_t>(all));
    all_gather<std::int32_t>(comms_.world(), sampled, tokens, sizes, Phase::control);
    return tokens;
  }

  void take(const Ids& tokens) {
    struct Ended {
      Group* group;
      Index slot;
    };
    std::vector<Ended> ended;
    std::size_t at = 0;
    for (const Coordinates& owner : owners_) {
      for_each_drawn(owner, [&](Group& group, Index s) {
        Slot<T>& slot = group[static_cast<std::size_t>(s)];
        const std::int32_t token = tokens[at++];
        slot.text.push_back(token);
        Ids& made = made_[slot.prompt];
        made.push_back(token);
        const bool goes_on = on_token_(slot.prompt, token);
        if (!goes_on || static_cast<std::int64_t>(made.size()) >= options_.tokens) ended.push_back({&group, s});
      });
    }
    for (const Ended& end : ended) {
      const Range mine = generated_part(comms_.grid(), comms_.here(), static_cast<Index>(end.group->size()));
      start_next((*end.group)[static_cast<std::size_t>(end.slot)], end.slot >= mine.begin && end.slot < mine.end);
    }
  }

  Model<T>& model_;
  const GridComms& comms_;
  Pool& pool_;
  const std::vector<Ids>& prompts_;
  const GenerateOptions& options_;
  const OnToken& on_token_;
  Index window_;
  StageLink<T> link_;
  std::vector<Coordinates> owners_;  // the ranks that draw, ascending: one a coordinate of the last stage
  std::vector<bool> owns_;           // by rank: whether it draws
  std::vector<Group> groups_;        // they follow each other through the stages
  std::size_t next_ = 0;             // prompt that waits
  std::vector<Ids> made_;
};

}  // namespace

template <class T>
std::vector<Ids> generate_tokens(Model<T>& model, const GridComms& comms, Pool& pool, const std::vector<Ids>& prompts,
                                 const GenerateOptions& options, const OnToken& on_token) {
  return Generation<T>(model, comms, pool, prompts, options, on_token).run();
}

template std::vector<Ids> generate_tokens<float>(Model<float>&, const GridComms&, Pool&, const std::vector<Ids>&,
                                                 const GenerateOptions&, const OnToken&);
template std::vector<Ids> generate_tokens<double>(Model<double>&, const GridComms&, Pool&, const std::vector<Ids>&,
                                                  const GenerateOptions&, const OnToken&);
template std::vector<Ids> generate_tokens<kernels::bf16>(Model<kernels::bf16>&, const GridComms&, Pool&,
                                                         const std::vector<Ids>&, const GenerateOptions&,
                                                         const OnToken&);

}  // namespace fourfold
