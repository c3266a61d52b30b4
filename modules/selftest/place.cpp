#include "selftest/place.hpp"

#include <fmt/format.h>

#include <cstdlib>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "comm/agree.hpp"
#include "comm/cpu_check.hpp"
#include "comm/hang_report.hpp"
#include "comm/launcher_check.hpp"
#include "comm/mpi_facts.hpp"

namespace fourfold::selftest {

namespace {

constexpr std::size_t kMostHosts = 4;

std::string plural(std::int64_t count, const std::string& what) {
  return fmt::format("{} {}{}", count, what, count == 1 ? "" : "s");
}

// "node-1: 2, node-2: 2" in the order of their first ranks, the first ones.
std::string hosts_text(const std::vector<std::pair<std::string, std::int64_t>>& hosts) {
  std::string text;
  for (std::size_t i = 0; i < hosts.size() && i < kMostHosts; ++i)
    text += fmt::format("{}{}: {}", i == 0 ? "" : ", ", hosts[i].first, hosts[i].second);
  if (hosts.size() > kMostHosts) text += fmt::format(", and {} more", hosts.size() - kMostHosts);
  return text;
}

// "SLURM_NTASKS=4" of this rank; empty where no launcher says that there are several.
std::string claim_text(const std::optional<LauncherClaim>& claim) {
  return claim ? claim->launcher + ": " + claim->variable : "";
}

}  // namespace

void look_at_launch(const Launch& launch, Report& report) {
  const Communicator& world = launch.world();
  // 1. Ranks and hosts. Nodes are what shares memory: virtual nodes of one host have one name.
  std::vector<std::pair<std::string, std::int64_t>> hosts;
  std::map<std::string, std::size_t> known;
  for (const std::string& host : gather_strings(world, launch.host())) {
    if (known.emplace(host, hosts.size()).second) hosts.emplace_back(host, 0);
    ++hosts[known[host]].second;
  }
  std::map<int, std::int64_t> nodes;
  for (int rank = 0; rank < world.size(); ++rank) ++nodes[world.node_of(rank)];
  std::set<std::int64_t> counts;
  for (const auto& [node, count] : nodes) counts.insert(count);
  const std::string ranks =
      fmt::format("{} on {}, {} ({})", plural(world.size(), "rank"), plural(std::ssize(nodes), "node"),
                  plural(std::ssize(hosts), "host name"), hosts_text(hosts));
  if (counts.size() > 1) {
    report.add({"ranks", Verdict::note,
                ranks + fmt::format("; nodes have from {} to {} of them", *counts.begin(), *counts.rbegin())});
  } else {
    report.add({"ranks", Verdict::ok, ranks});
  }

  // 2. Does the launcher mean the same job? That it started more one-rank jobs than one, Launch has refused already.
  const auto claim = launcher_claim([](const char* name) { return std::getenv(name); });
  std::string problem;
  if (claim && claim->ranks > world.size() && !one_rank_is_meant([](const char* name) { return std::getenv(name); }))
    problem =
        fmt::format("{} says that it started {} ranks, MPI has {}", claim->launcher, claim->variable, world.size());
  problem = gathered(world, launch.host(), problem);
  const std::string odd = gathered(world, launch.host(),
                                   claim.has_value() == broadcast_string(world, claim_text(claim)).empty()
                                       ? "was started in another way than rank 0"
                                       : "");
  if (!problem.empty() || !odd.empty()) {
    report.add({"launcher", Verdict::failed, problem.empty() ? odd : problem,
                "srun --mpi=list   (then srun --mpi=pmix, or the mpirun of the program's MPI: one launcher, once)",
                ExitCode::launch});
  } else {
    report.add({"launcher", Verdict::ok,
                claim               ? claim_text(claim) + ", as MPI has it"
                : world.size() == 1 ? "none says that there are more ranks than one"
                                    : "says nothing of itself"});
  }

  // 3. One library on all ranks.
  const std::string& library = launch.mpi_library();
  const std::string other =
      gathered(world, launch.host(), library == broadcast_string(world, library) ? "" : "has " + library);
  if (other.empty()) {
    report.add({"MPI", Verdict::ok,
                fmt::format("{}, standard {}, threads: funneled asked for, {} given", library, mpi_standard(),
                            mpi_thread_level())});
  } else {
    report.add({"MPI", Verdict::failed, fmt::format("rank 0 has {}, {}", library, other),
                "the same modules on all nodes: . jobscripts/machines/SITE/env.sh, then sbatch again",
                ExitCode::launch});
  }
}

void look_at_cores(const Launch& launch, int threads, Report& report) {
  const std::vector<CpuPlace> places = gather_places(launch.world(), cpu_place(launch.host(), threads));
  if (places.empty()) return;  // not rank 0
  struct Host {
    std::int64_t threads = 0, ranks = 0;
    std::set<int> cores;
    int offered = 0;
    bool bound = false;
  };
  std::map<std::string, Host> hosts;
  for (const CpuPlace& place : places) {
    Host& host = hosts[place.host];
    host.threads += place.threads;
    ++host.ranks;
    host.cores.insert(place.cores.begin(), place.cores.end());
    host.offered = place.offered;
    host.bound = host.bound || std::ssize(place.cores) < place.offered;
  }
  const CpuPlace& first = places.front();
  const std::string seen = fmt::format("{} a rank; rank 0 of {} may use core(s) {}{}", plural(threads, "thread"),
                                       first.host, rank_list({first.cores.begin(), first.cores.end()}),
                                       hosts.begin()->second.bound ? "" : " (not bound)");
  const std::string fault = shared_cores(places);
  if (!fault.empty() && !sharing_cores_is_meant()) {
    const std::size_t end = fault.find('\n');
    const std::string type = fault.substr(end == std::string::npos ? fault.size() : end + 1);
    report.add({"cores", Verdict::failed, fault.substr(0, end), type, ExitCode::launch});
    return;
  }
  for (const auto& [name, host] : hosts) {
    if (host.cores.empty() || host.threads <= std::ssize(host.cores)) continue;
    report.add({"cores", Verdict::note,
                fmt::format("{}; OVERSUBSCRIBED: {} have the {} of {}, so times measure nothing", seen,
                            plural(host.ranks, "rank"), plural(std::ssize(host.cores), "core"), name)});
    return;
  }
  report.add({"cores", Verdict::ok, seen});
}

}  // namespace fourfold::selftest
