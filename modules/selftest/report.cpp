#include "selftest/report.hpp"

#include <fmt/format.h>

#include <cstdio>

#include "comm/agree.hpp"

namespace fourfold::selftest {

namespace {

constexpr std::size_t kItemWidth = 22;

const char* verdict_name(Verdict verdict) {
  switch (verdict) {
    case Verdict::ok:
      return "ok";
    case Verdict::none:
      return "-";
    case Verdict::skipped:
      return "skipped";
    case Verdict::note:
      return "note";
    case Verdict::failed:
      return "FAILED";
  }
  return "?";
}

// The lines after the first begin below it.
std::string indented(const std::string& text, std::size_t width) {
  std::string lines;
  for (const char c : text) {
    lines += c;
    if (c == '\n') lines.append(width, ' ');
  }
  return lines;
}

}  // namespace

void Report::add(const Finding& finding) {
  if (!speaks_) return;
  if (finding.verdict == Verdict::failed) {
    failed_.push_back(finding.item);
    if (code_ == ExitCode::done) code_ = finding.code;
  }
  if (finding.verdict != Verdict::none && finding.verdict != Verdict::skipped) ++looked_at_;
  const std::string start = fmt::format("{:{}} {:8} ", finding.item, kItemWidth, verdict_name(finding.verdict));
  std::string line = start + indented(finding.seen, start.size()) + "\n";
  if (!finding.fix.empty())
    line += fmt::format("{:{}} {}\n", "", start.size() - 7, "type: " + indented(finding.fix, start.size()));
  std::fputs(line.c_str(), stdout);
  std::fflush(stdout);
}

void Report::end(double seconds) const {
  if (!speaks_) return;
  std::string text = fmt::format("selftest: {} things looked at in {:.1f} s: ", looked_at_, seconds);
  if (failed_.empty()) {
    text += "all well\n";
  } else {
    text +=
        fmt::format("{} FAILED: {}; exit code {}\n", failed_.size(), fmt::join(failed_, ", "), static_cast<int>(code_));
  }
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

std::string gathered(const Communicator& world, const std::string& host, const std::string& problem) {
  const std::string mine = problem.empty() ? "" : fmt::format("rank {} on {}: {}", world.rank(), host, problem);
  std::string first;
  int more = 0;
  for (const std::string& each : gather_strings(world, mine)) {
    if (each.empty()) continue;
    if (first.empty()) {
      first = each;
    } else {
      ++more;
    }
  }
  if (more > 0) first += fmt::format(" (and {} more rank{})", more, more == 1 ? "" : "s");
  return broadcast_string(world, first);
}

}  // namespace fourfold::selftest
