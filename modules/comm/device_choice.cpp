#include "comm/device_choice.hpp"

#include <map>

#include "base/error.hpp"
#include "comm/agree.hpp"

namespace fourfold {

namespace {

constexpr const char* kWhatToType =
    "\nTry, with N ranks and N GPUs on each node,\n  srun --ntasks-per-node=N --gpus-per-node=N program ...\n"
    "  mpirun --map-by ppr:N:node program ...   (all GPUs of a node visible to its ranks)\n"
    "If ranks are meant to share a GPU (tests): FOURFOLD_SHARE_GPUS=1, collectives then go through the host's memory";

// The first refusal of any rank, on all of them.
std::string first_of(const Communicator& world, const std::string& mine) {
  std::string first;
  const std::vector<std::string> all = gather_strings(world, mine);
  for (std::size_t rank = 0; rank < all.size() && first.empty(); ++rank)
    if (!all[rank].empty()) first = "rank " + std::to_string(rank) + ": " + all[rank];
  return broadcast_string(world, first);
}

}  // namespace

DeviceChoice choose_device(int place, int ranks, int visible, bool share) {
  if (visible <= 0) {
    return {-1,
            "no CUDA device: this process sees none (nvidia-smi lists those of the node; CUDA_VISIBLE_DEVICES and the "
            "launcher's GPU options hide them; without a driver there is none)"};
  }
  if (visible == 1) return {0, ""};
  if (place < visible) return {place, ""};
  if (share) return {place % visible, ""};
  return {-1, std::to_string(ranks) + " ranks on this node see " + std::to_string(visible) +
                  " GPUs: each rank needs one of its own." + kWhatToType};
}

std::string shared_device(const std::vector<std::string>& ids) {
  std::map<std::string, std::size_t> first;
  for (std::size_t rank = 0; rank < ids.size(); ++rank) {
    const auto [found, is_new] = first.try_emplace(ids[rank], rank);
    if (is_new) continue;
    return "ranks " + std::to_string(found->second) + " and " + std::to_string(rank) + " would share one GPU (" +
           ids[rank] + "): each rank needs one of its own." + kWhatToType;
  }
  return "";
}

AgreedDevice agree_on_device(const Communicator& world, const DeviceQuery& query) {
  int place = 0;
  int ranks = 0;
  for (int rank = 0; rank < world.size(); ++rank) {
    if (world.node_of(rank) != world.node_of(world.rank())) continue;
    if (rank < world.rank()) ++place;
    ++ranks;
  }
  const DeviceChoice mine = choose_device(place, ranks, query.visible(), query.share);
  if (const std::string refusal = first_of(world, mine.refusal); !refusal.empty()) {
    fail_all(ExitCode::launch, refusal);
  }
  const std::string id = "node " + std::to_string(world.node_of(world.rank())) + ", " + query.id(mine.device);
  const std::string shared = broadcast_string(world, shared_device(gather_strings(world, id)));
  if (!shared.empty() && !query.share) fail_all(ExitCode::launch, shared);
  return {mine.device, !shared.empty()};
}

}  // namespace fourfold
