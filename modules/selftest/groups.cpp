#include "selftest/groups.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <span>
#include <sstream>

#include "base/timer.hpp"
#include "comm/agree.hpp"
#include "comm/collectives.hpp"
#include "comm/hang_report.hpp"

namespace fourfold::selftest {

namespace {

constexpr std::int64_t kPeriod = 31;
constexpr std::int64_t kSmall = 3;             // elements
constexpr std::int64_t kLargeBytes = 4 << 20;  // of an operation whose rate is measured
constexpr std::int64_t kLarge = 100'000;       // elements, of one whose numbers are looked at
constexpr double kSeconds = 0.05;              // for each rate of a group
constexpr Phase kPhase = Phase::setup;

// What rank `rank` of a group gives as element `index`: small whole numbers, so that sums are exact in fp32 up to a
// million ranks.
std::int64_t given(std::int64_t rank, std::int64_t index) {
  return (index * 7 + rank * 13) % kPeriod - kPeriod / 2;
}

// sums[i % kPeriod]: over all ranks of element i.
std::array<std::int64_t, kPeriod> sums(int ranks) {
  std::array<std::int64_t, kPeriod> all{};
  for (std::int64_t rank = 0; rank < ranks; ++rank) {
    for (std::int64_t i = 0; i < kPeriod; ++i) all[static_cast<std::size_t>(i)] += given(rank, i);
  }
  return all;
}

template <class T>
class Buffer {
 public:
  Buffer(const TakeMemory& take, std::int64_t size)
      : memory_(take(std::max<std::int64_t>(size, 1) * std::int64_t{sizeof(T)})),
        span_(reinterpret_cast<T*>(memory_.get()), static_cast<std::size_t>(size)) {
    std::fill(span_.begin(), span_.end(), T{});
  }
  std::span<T> span() const { return span_; }
  std::span<const T> view() const { return span_; }
  // element i is value(i)
  template <class Value>
  void fill(const Value& value) {
    for (std::size_t i = 0; i < span_.size(); ++i) span_[i] = static_cast<T>(value(static_cast<std::int64_t>(i)));
  }

 private:
  std::shared_ptr<std::byte> memory_;
  std::span<T> span_;
};

// "": all elements are as they should be.
template <class T, class Wanted>
std::string difference(const std::string& operation, std::span<const T> got, const Wanted& wanted) {
  for (std::size_t i = 0; i < got.size(); ++i) {
    const auto right = static_cast<T>(wanted(static_cast<std::int64_t>(i)));
    if (got[i] != right)
      return fmt::format("{} of {} elements: element {} is {}, not {}", operation, got.size(), i, got[i], right);
  }
  return "";
}

// Uneven parts: part r has n + r % 3 elements.
std::vector<std::int64_t> uneven(int ranks, std::int64_t n) {
  std::vector<std::int64_t> sizes;
  for (int r = 0; r < ranks; ++r) sizes.push_back(n + r % 3);
  return sizes;
}

std::int64_t total(std::span<const std::int64_t> sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
}

class Checks {
 public:
  Checks(const Communicator& group, std::int64_t elements, const TakeMemory& take)
      : group_(group),
        take_(take),
        n_(elements),
        part_(std::max<std::int64_t>(elements / group.size(), 1)),
        sums_(sums(group.size())) {}

  // All of them, whatever is found, for the others of the group make them too.
  std::string run() {
    sum<float>("all_reduce_sum (fp32)", Summation::fast);
    sum<float>("all_reduce_sum (fp32, deterministic)", Summation::deterministic);
    sum<double>("all_reduce_sum (fp64)", Summation::fast);
    started_sum();
    maximum();
    gather();
    scatter();
    for (const int root : {0, group_.size() - 1}) spread(root);
    exchange();
    ring();
    barrier(group_, kPhase);
    return found_;
  }

 private:
  std::int64_t sum_of(std::int64_t i) const { return sums_[static_cast<std::size_t>(i % kPeriod)]; }
  auto mine() const {
    return [rank = group_.rank()](std::int64_t i) { return given(rank, i); };
  }
  void note(const std::string& fault) {
    if (found_.empty()) found_ = fault;
  }

  template <class T>
  void sum(const char* name, Summation summation) {
    Buffer<T> data(take_, n_);
    data.fill(mine());
    all_reduce_sum<T>(group_, data.span(), summation, kPhase);
    note(difference(name, data.view(), [this](std::int64_t i) { return sum_of(i); }));
  }
  void started_sum() {
    Buffer<float> one(take_, n_), two(take_, n_);
    one.fill(mine());
    two.fill([this](std::int64_t i) { return 2 * given(group_.rank(), i); });
    Pending first = start_all_reduce_sum<float>(group_, one.span(), Summation::deterministic, kPhase);
    Pending second = start_all_reduce_sum<float>(group_, two.span(), Summation::deterministic, kPhase);
    first.wait();
    second.wait();
    note(
        difference("two all_reduce_sums at once, the first", one.view(), [this](std::int64_t i) { return sum_of(i); }));
    note(difference("two all_reduce_sums at once, the second", two.view(),
                    [this](std::int64_t i) { return 2 * sum_of(i); }));
  }
  void maximum() {
    Buffer<double> data(take_, n_);
    data.fill(mine());
    all_reduce_max<double>(group_, data.span(), kPhase);
    note(difference("all_reduce_max", data.view(), [this](std::int64_t i) {
      std::int64_t most = given(0, i);
      for (std::int64_t r = 1; r < std::min<std::int64_t>(group_.size(), kPeriod); ++r)
        most = std::max(most, given(r, i));
      return most;
    }));
  }
  void gather() {
    const std::vector<std::int64_t> sizes = uneven(group_.size(), part_ - 1);  // some may be empty
    Buffer<std::int64_t> part(take_, sizes[static_cast<std::size_t>(group_.rank())]), all(take_, total(sizes));
    part.fill(mine());
    all_gather<std::int64_t>(group_, part.view(), all.span(), sizes, kPhase);
    std::int64_t rank = 0, begin = 0;
    note(difference("all_gather", all.view(), [&](std::int64_t i) {
      while (i - begin >= sizes[static_cast<std::size_t>(rank)]) begin += sizes[static_cast<std::size_t>(rank++)];
      return given(rank, i - begin);
    }));
  }
  void scatter() {
    const std::vector<std::int64_t> sizes = uneven(group_.size(), part_);
    const auto rank = static_cast<std::size_t>(group_.rank());
    const std::int64_t begin = total(std::span(sizes).first(rank));
    for (const Summation summation : {Summation::fast, Summation::deterministic}) {
      Buffer<float> all(take_, total(sizes)), part(take_, sizes[rank]);
      all.fill(mine());
      reduce_scatter_sum<float>(group_, all.view(), part.span(), sizes, summation, kPhase);
      note(difference("reduce_scatter_sum", part.view(), [&](std::int64_t i) { return sum_of(begin + i); }));
    }
  }
  void spread(int root) {
    Buffer<std::int32_t> data(take_, n_);
    if (group_.rank() == root) data.fill(mine());
    broadcast<std::int32_t>(group_, data.span(), root, kPhase);
    note(difference(fmt::format("broadcast from {}", root), data.view(),
                    [&](std::int64_t i) { return given(root, i); }));
  }
  // To rank r go part - 1 + (me + r) % 3 elements, so as many come from it.
  void exchange() {
    const std::int64_t me = group_.rank();
    std::vector<std::int64_t> sizes;
    for (std::int64_t r = 0; r < group_.size(); ++r) sizes.push_back(part_ - 1 + (me + r) % 3);
    Buffer<double> out(take_, total(sizes)), in(take_, total(sizes));
    std::int64_t rank = 0, begin = 0;
    const auto at = [&](std::int64_t i) {
      while (i - begin >= sizes[static_cast<std::size_t>(rank)]) begin += sizes[static_cast<std::size_t>(rank++)];
      return i - begin;
    };
    out.fill([&](std::int64_t i) {
      const std::int64_t place = at(i);
      return given(me * 3 + rank, place);
    });
    all_to_all<double>(group_, out.view(), sizes, in.span(), sizes, kPhase);
    rank = begin = 0;
    note(difference("all_to_all", in.view(), [&](std::int64_t i) {
      const std::int64_t place = at(i);
      return given(rank * 3 + me, place);
    }));
  }
  void ring() {
    const int next = (group_.rank() + 1) % group_.size();
    const int before = (group_.rank() + group_.size() - 1) % group_.size();
    Buffer<double> out(take_, n_), in(take_, n_);
    out.fill(mine());
    Pending receive = start_receive<double>(group_, in.span(), before, 1, kPhase);
    Pending send = start_send<double>(group_, out.view(), next, 1, kPhase);
    receive.wait();
    send.wait();
    note(difference("message", in.view(), [&](std::int64_t i) { return given(before, i); }));
  }

  const Communicator& group_;
  const TakeMemory& take_;
  std::int64_t n_, part_;
  std::array<std::int64_t, kPeriod> sums_;
  std::string found_;
};

// Seconds of one `operation`, repeated for about `seconds`; the slowest rank's.
double time_of(const Communicator& group, double seconds, const std::function<void()>& operation) {
  operation();
  barrier(group, kPhase);
  const Stopwatch once;
  operation();
  std::array<double, 1> each = {once.seconds()};
  all_reduce_max<double>(group, each, kPhase);  // so that all repeat as often
  const auto count = std::clamp<std::int64_t>(static_cast<std::int64_t>(seconds / std::max(each[0], 1e-7)), 1, 1000);
  barrier(group, kPhase);
  const Stopwatch watch;
  for (std::int64_t i = 0; i < count; ++i) operation();
  each[0] = watch.seconds() / static_cast<double>(count);
  all_reduce_max<double>(group, each, kPhase);
  return each[0];
}

std::string rates_text(const Rates& rates) {
  const auto giga = [](double rate) { return rate * 1e-9; };
  return fmt::format(
      "latency {:.1f} us; all_reduce {:.3g}, all_gather {:.3g}, reduce_scatter {:.3g}, all_to_all {:.3g} GB/s",
      rates.latency * 1e6, giga(rates.all_reduce), giga(rates.all_gather), giga(rates.reduce_scatter),
      giga(rates.all_to_all));
}

// All groups' figures to rank 0: the slowest one's, by the time of its all_reduce.
std::string slowest(const Communicator& world, const Communicator& group, const Rates& mine) {
  std::vector<std::int64_t> ranks;
  for (int r = 0; r < group.size(); ++r) ranks.push_back(group.world_rank_of(r));
  const std::string card = group.rank() != 0 || group.size() == 1
                               ? ""
                               : fmt::format("{} {} {} {} {} {}", mine.latency, mine.all_reduce, mine.all_gather,
                                             mine.reduce_scatter, mine.all_to_all, rank_list(ranks));
  Rates worst, best;
  std::string where;
  int groups = 0;
  for (const std::string& each : gather_strings(world, card)) {
    if (each.empty()) continue;
    Rates rates;
    std::string list;
    std::istringstream words(each);
    words >> rates.latency >> rates.all_reduce >> rates.all_gather >> rates.reduce_scatter >> rates.all_to_all >>
        std::ws;
    std::getline(words, list);
    if (groups++ == 0 || rates.all_reduce < worst.all_reduce) {
      worst = rates;
      where = list;
    }
    if (groups == 1 || rates.all_reduce > best.all_reduce) best = rates;
  }
  if (groups == 0) return "";  // not rank 0
  std::string text = rates_text(worst);
  if (groups > 1)
    text += fmt::format("; of {} groups the slowest (ranks {}), the fastest: all_reduce {:.3g} GB/s", groups, where,
                        best.all_reduce * 1e-9);
  return text;
}

}  // namespace

std::string wrong_operation(const Communicator& group, std::int64_t elements, const TakeMemory& take) {
  return Checks(group, elements, take).run();
}

Rates measure(const Communicator& group, std::int64_t bytes, double seconds, const TakeMemory& take) {
  const auto ranks = static_cast<double>(group.size());
  const std::int64_t part = std::max<std::int64_t>(bytes / 4 / group.size(), 1);
  const std::vector<std::int64_t> sizes(static_cast<std::size_t>(group.size()), part);
  Buffer<double> word(take, 1);
  Buffer<float> all(take, part * group.size()), other(take, part * group.size()), mine(take, part);
  const double each = seconds / 5;
  const double moved = 4.0 * static_cast<double>(part) * (ranks - 1);  // by an all-gather's rank
  Rates rates;
  rates.latency = time_of(group, each, [&] { all_reduce_sum<double>(group, word.span(), Summation::fast, kPhase); });
  rates.all_reduce =
      2 * moved / time_of(group, each, [&] { all_reduce_sum<float>(group, all.span(), Summation::fast, kPhase); });
  rates.all_gather =
      moved / time_of(group, each, [&] { all_gather<float>(group, mine.view(), all.span(), sizes, kPhase); });
  rates.reduce_scatter = moved / time_of(group, each, [&] {
                           reduce_scatter_sum<float>(group, all.view(), mine.span(), sizes, Summation::fast, kPhase);
                         });
  rates.all_to_all =
      moved / time_of(group, each, [&] { all_to_all<float>(group, all.view(), sizes, other.span(), sizes, kPhase); });
  return rates;
}

void look_at_axes(const Launch& launch, const GridComms& comms, const std::vector<GroupKey>& axes,
                  const std::string& title, const TakeMemory& take, Report& report) {
  const Communicator& world = launch.world();
  const auto look = [&](const Communicator& group, const std::string& item) {
    std::string fault, figures;
    if (group.size() > 1) {
      set_progress(0, "collectives");
      fault = wrong_operation(group, kSmall, take);
      const std::string large = wrong_operation(group, kLarge, take);
      if (fault.empty()) fault = large;
      if (!fault.empty()) fault += " (group " + group.name() + " of " + std::to_string(group.size()) + " ranks)";
    }
    fault = gathered(world, launch.host(), fault);
    if (!fault.empty()) {
      report.add({item, Verdict::failed, fault,
                  "the same command on other nodes (sbatch --exclude=THAT_NODE), and with another MPI or network "
                  "setting of the site",
                  ExitCode::error});
      return;
    }
    // Groups of one rank wait meanwhile.
    Rates rates;
    if (group.size() > 1) rates = measure(group, kLargeBytes, 5 * kSeconds, take);
    figures = slowest(world, group, rates);
    report.add({item, Verdict::ok, figures});
  };
  if (world.size() == 1) {
    report.add({title, Verdict::none, "one rank: nothing to move"});
    return;
  }
  look(world, fmt::format("all {} {}", world.size(), title));
  std::string lone;
  for (const GroupKey& key : axes) {
    const Communicator& group = comms.group(key);
    const bool some = agree_any(world, group.size() > 1);
    if (!some) {
      lone += (lone.empty() ? "" : ", ") + key.name();
      continue;
    }
    look(group, fmt::format("{} {} {}", key.name(), group.size(), title));
  }
  if (!lone.empty()) report.add({"other axes " + title, Verdict::none, lone + ": one rank each, nothing to move"});
}

}  // namespace fourfold::selftest
