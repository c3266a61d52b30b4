#include "comm/hang_report.hpp"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>

namespace fourfold {

namespace {

using Signature = std::tuple<Operation, std::int64_t, std::int64_t>;  // elements, element size

// What all members must give alike.
Signature signature_of(const RingCall& call) {
  return {call.operation, call.operation == Operation::all_to_all ? 0 : call.elements, call.element_size};
}

std::string text_of(const RingCall& call) {
  const std::string number = call.number > 0 ? " number " + std::to_string(call.number) : "";
  const std::string peer = call.peer < 0                       ? ""
                           : call.operation == Operation::send ? " to rank " + std::to_string(call.peer)
                                                               : " from rank " + std::to_string(call.peer);
  return std::string(operation_name(call.operation)) + number + peer + " (" + std::to_string(call.elements) + " x " +
         std::to_string(call.element_size) + " bytes, " + std::string(phase_name(call.phase)) + ", " + call.where + ")";
}

struct Member {
  std::size_t rank;  // of the snapshots
  const RingSnapshot::Group* group;
};

class Search {
 public:
  explicit Search(const std::vector<RingSnapshot>& ranks) : ranks_(ranks) {
    for (std::size_t r = 0; r < ranks.size(); ++r) {
      by_number_[ranks[r].rank] = r;
      for (const RingSnapshot::Group& group : ranks[r].groups) members_[group.id].push_back({r, &group});
    }
  }

  HangReport run() {
    if (ranks_.empty()) return {};
    HangReport report;
    if (!find_mismatch(report, false)) find_by_waiting(report);
    report.details = details();
    return report;
  }

 private:
  const RingCall* call(std::size_t rank, const RingSnapshot::Group* group, std::int64_t number) const {
    const auto index = group - ranks_[rank].groups.data();
    for (const RingCall& one : ranks_[rank].calls) {
      if (one.group == index && one.number == number) return &one;
    }
    return nullptr;
  }
  const RingCall* waits_in(std::size_t rank) const {
    const std::int64_t at = ranks_[rank].waiting;
    return at < 0 ? nullptr : &ranks_[rank].calls[static_cast<std::size_t>(at)];
  }
  const RingSnapshot::Group& group_of(std::size_t rank, const RingCall& one) const {
    return ranks_[rank].groups[static_cast<std::size_t>(one.group)];
  }

  // The lowest number by which some members of a group mean something else than the others. by_line: where operation
  // and counts are alike, another source line.
  bool find_mismatch(HangReport& report, bool by_line) const {
    for (const auto& [id, members] : members_) {
      std::set<std::int64_t> numbers;
      for (const Member& member : members) {
        for (const RingCall& one : ranks_[member.rank].calls) {
          if (&group_of(member.rank, one) == member.group && one.number > 0) numbers.insert(one.number);
        }
      }
      for (const std::int64_t number : numbers) {
        if (judge(report, members, number, by_line)) return true;
      }
    }
    return false;
  }

  bool judge(HangReport& report, const std::vector<Member>& members, std::int64_t number, bool by_line) const {
    const auto key = [by_line](const RingCall& one) {
      return std::pair(signature_of(one), by_line ? one.where : std::string());
    };
    using Key = decltype(key(std::declval<const RingCall&>()));
    std::map<Key, std::vector<std::pair<std::size_t, const RingCall*>>> meanings;
    for (const Member& member : members) {
      if (const RingCall* one = call(member.rank, member.group, number))
        meanings[key(*one)].push_back({member.rank, one});
    }
    if (meanings.size() < 2) return false;
    // Where as many mean one as the other, groups of the same name decide: other ranks do the same in them.
    std::map<Key, std::size_t> votes;
    for (const auto& [id, others] : members_) {
      for (const Member& member : others) {
        if (member.group->name != members.front().group->name) continue;
        if (const RingCall* one = call(member.rank, member.group, number)) ++votes[key(*one)];
      }
    }
    const auto weight = [&](const auto& meaning) { return std::pair(meaning.second.size(), votes[meaning.first]); };
    const auto less = [&](const auto& a, const auto& b) { return weight(a) < weight(b); };
    const auto odd_one = std::min_element(meanings.begin(), meanings.end(), less);
    auto usual_one = odd_one == meanings.begin() ? std::next(odd_one) : meanings.begin();
    for (auto other = meanings.begin(); other != meanings.end(); ++other) {
      if (other != odd_one && less(*usual_one, *other)) usual_one = other;
    }
    const auto &odd = *odd_one, &usual = *usual_one;
    const auto list = [this](const auto& meaning) {
      std::vector<std::int64_t> all;
      for (const auto& [rank, one] : meaning.second) all.push_back(ranks_[rank].rank);
      return rank_list(std::move(all));
    };
    report.rank = ranks_[odd.second.front().first].rank;
    report.reason = "in group '" + members.front().group->name + "' this rank came to " +
                    text_of(*odd.second.front().second) + ", where rank(s) " + list(usual) + " came to " +
                    text_of(*usual.second.front().second);
    return true;
  }

  // Whom a rank waits for: who has not come, or if all have and not `only_behind`, who has come but waits elsewhere.
  std::vector<std::size_t> waits_for(std::size_t rank, bool only_behind = false) const {
    const RingCall* one = waits_in(rank);
    if (one == nullptr) return {};
    if (one->peer >= 0) {
      const auto peer = by_number_.find(one->peer);
      return peer == by_number_.end() ? std::vector<std::size_t>{} : std::vector<std::size_t>{peer->second};
    }
    std::vector<std::size_t> behind, not_there;
    for (const Member& member : members_.at(group_of(rank, *one).id)) {
      if (member.rank == rank) continue;
      if (member.group->begun < one->number) behind.push_back(member.rank);
      const RingCall* its = call(member.rank, member.group, one->number);
      if (its != nullptr && !its->ended && waits_in(member.rank) != its) not_there.push_back(member.rank);
    }
    return !behind.empty() || only_behind ? behind : not_there;
  }

  // Those that are waited for and wait for nobody, and how many wait for each.
  std::map<std::size_t, std::size_t> ends_of_chains(bool only_behind) const {
    std::map<std::size_t, std::size_t> ends;
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      for (const std::size_t other : waits_for(r, only_behind)) {
        if (waits_for(other, only_behind).empty()) ++ends[other];
      }
    }
    return ends;
  }

  void find_by_waiting(HangReport& report) const {
    std::map<std::size_t, std::size_t> held_up = ends_of_chains(false);
    if (held_up.empty()) held_up = ends_of_chains(true);
    std::size_t ahead = 0;
    bool some_wait = false;
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      if (waits_in(r) == nullptr) continue;
      const bool further =
          std::pair(ranks_[r].step, ranks_[r].progress) > std::pair(ranks_[ahead].step, ranks_[ahead].progress);
      if (!some_wait || further) ahead = r;
      some_wait = true;
    }
    if (!held_up.empty()) {
      const auto most = std::max_element(held_up.begin(), held_up.end(),
                                         [](const auto& a, const auto& b) { return a.second < b.second; });
      return accuse(report, most->first);
    }
    if (find_mismatch(report, true)) return;
    report.rank = ranks_[ahead].rank;
    if (!some_wait) {
      report.reason = "no rank waits for another: this one works on and on";
    } else if (waits_for(ahead).empty()) {
      report.reason = "waits in " + place(ahead, *waits_in(ahead)) + ", to which all have come";
    } else {
      report.reason = "went past what others wait for, to " + place(ahead, *waits_in(ahead));
    }
  }

  std::string place(std::size_t rank, const RingCall& one) const {
    return text_of(one) + " of group '" + group_of(rank, one).name + "'";
  }

  void accuse(HangReport& report, std::size_t rank) const {
    report.rank = ranks_[rank].rank;
    for (std::size_t r = 0; r < ranks_.size(); ++r) {
      const std::vector<std::size_t> awaited = waits_for(r);
      if (std::find(awaited.begin(), awaited.end(), rank) == awaited.end()) continue;
      report.reason = "did not come to " + place(r, *waits_in(r)) + ", where rank " + std::to_string(ranks_[r].rank) +
                      " waits for it";
      const RingCall* own = waits_in(rank);
      if (own != nullptr) report.reason += "; waits itself in " + place(rank, *own);
      if (own == nullptr && !ranks_[rank].calls.empty()) {
        const RingCall& last = ranks_[rank].calls.back();
        report.reason += "; its last was " + place(rank, last);
      }
      return;
    }
  }

  std::string details() const {
    constexpr int kMostLines = 12;
    std::string text;
    int lines = 0;
    std::set<std::pair<std::uint64_t, std::int64_t>> said;
    for (std::size_t r = 0; r < ranks_.size() && lines < kMostLines; ++r) {
      const RingCall* one = waits_in(r);
      if (one == nullptr) continue;
      const RingSnapshot::Group& group = group_of(r, *one);
      if (one->peer < 0 && !said.emplace(group.id, one->number).second) continue;
      ++lines;
      text += "\n  group '" + group.name + "' of " + std::to_string(group.size) + ": ";
      if (one->peer >= 0) {
        text += "rank " + std::to_string(ranks_[r].rank) + " waits in " + text_of(*one);
        continue;
      }
      std::vector<std::int64_t> came, behind;
      for (const Member& member : members_.at(group.id))
        (member.group->begun < one->number ? behind : came).push_back(ranks_[member.rank].rank);
      text += "rank(s) " + rank_list(came) + " came to " + text_of(*one);
      text += behind.empty() ? ", that is all" : "; rank(s) " + rank_list(behind) + " did not";
      for (const Member& member : members_.at(group.id)) {
        if (member.group->begun >= one->number) continue;
        const RingCall* last = call(member.rank, member.group, member.group->begun);
        text += ", the last there of rank " + std::to_string(ranks_[member.rank].rank) + " was " +
                (last != nullptr ? text_of(*last) : "number " + std::to_string(member.group->begun));
        break;
      }
    }
    return text;
  }

  const std::vector<RingSnapshot>& ranks_;
  std::map<std::int64_t, std::size_t> by_number_;
  std::map<std::uint64_t, std::vector<Member>> members_;
};

}  // namespace

std::string rank_list(std::vector<std::int64_t> ranks) {
  std::sort(ranks.begin(), ranks.end());
  std::string text;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    text += (text.empty() ? "" : ", ") + std::to_string(ranks[i]);
    if (end - i > 1) text += (end - i > 2 ? "-" : ", ") + std::to_string(ranks[end - 1]);
    i = end;
  }
  return text;
}

HangReport find_hang(const std::vector<RingSnapshot>& ranks) {
  return Search(ranks).run();
}

}  // namespace fourfold
