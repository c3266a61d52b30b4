#include "comm/cpu_check.hpp"

#include <sched.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

#include "base/error.hpp"
#include "comm/agree.hpp"
#include "comm/hang_report.hpp"

namespace fourfold {

namespace {

// "0-3,8": how many.
int cores_in(const std::string& list) {
  int cores = 0;
  std::istringstream parts(list);
  for (std::string part; std::getline(parts, part, ',');) {
    int first = 0, last = 0;
    char dash = 0;
    std::istringstream range(part);
    if (!(range >> first)) continue;
    cores += range >> dash >> last ? last - first + 1 : 1;
  }
  return cores;
}

// A container or a batch system may have given the job fewer than the host has.
int offered_cores() {
  std::ifstream file("/sys/fs/cgroup/cpuset.cpus.effective");
  std::string list;
  if (std::getline(file, list) && cores_in(list) > 0) return cores_in(list);
  return static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
}

}  // namespace

std::string shared_cores(const std::vector<CpuPlace>& places) {
  struct Bound {
    std::vector<std::int64_t> ranks;
    int threads = 0, offered = 0;
  };
  std::map<std::pair<std::string, std::vector<int>>, Bound> bound;
  for (std::size_t rank = 0; rank < places.size(); ++rank) {
    const CpuPlace& place = places[rank];
    if (static_cast<int>(place.cores.size()) >= place.offered) continue;
    Bound& here = bound[{place.host, place.cores}];
    here.ranks.push_back(static_cast<std::int64_t>(rank));
    here.threads += place.threads;
    here.offered = place.offered;
  }
  for (const auto& [where, users] : bound) {
    const auto& [host, cores] = where;
    if (users.threads <= std::ssize(cores)) continue;
    const std::string list = rank_list({cores.begin(), cores.end()});
    return "rank(s) " + rank_list(users.ranks) + " on " + host + " compute with " + std::to_string(users.threads) +
           " thread(s) together but are bound to core(s) " + list + " alone, of " + std::to_string(users.offered) +
           " that are there.\nTry one of\n  mpirun --bind-to none ...   (or --map-by slot:PE=threads --bind-to "
           "core)\n" +
           "  srun --cpu-bind=cores --cpus-per-task=threads ...\nIf that is meant: FOURFOLD_SHARE_CORES=1";
  }
  return {};
}

CpuPlace cpu_place(const std::string& host, int threads) {
  CpuPlace place{host, {}, offered_cores(), threads};
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) return CpuPlace{host, {}, 0, threads};  // more than 1024: no verdict
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &set)) place.cores.push_back(core);
  }
  return place;
}

std::vector<CpuPlace> gather_places(const Communicator& world, const CpuPlace& mine) {
  std::ostringstream text;
  text << mine.host << ' ' << mine.offered << ' ' << mine.threads;
  for (const int core : mine.cores) text << ' ' << core;
  std::vector<CpuPlace> places;
  for (const std::string& line : gather_strings(world, text.str())) {
    std::istringstream words(line);
    CpuPlace& place = places.emplace_back();
    words >> place.host >> place.offered >> place.threads;
    for (int core = 0; words >> core;) place.cores.push_back(core);
  }
  return places;
}

bool sharing_cores_is_meant() {
  const char* meant = std::getenv("FOURFOLD_SHARE_CORES");
  return meant != nullptr && std::string_view(meant) == "1";
}

void check_cores(const Launch& launch, int threads) {
  const std::vector<CpuPlace> places = gather_places(launch.world(), cpu_place(launch.host(), threads));
  const std::string fault = broadcast_string(launch.world(), shared_cores(places));
  if (!fault.empty() && !sharing_cores_is_meant()) fail_all(ExitCode::launch, fault);
}

}  // namespace fourfold
