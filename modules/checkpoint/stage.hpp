// A stage of a save or load whose verdict all ranks share.
#pragma once

#include <functional>
#include <string>

#include "comm/communicator.hpp"

namespace fourfold::checkpoint {

// Runs `work` here, then agrees. Errors: when it threw on any rank, Error (storage, all ranks) with `title` and the
// message of the lowest rank that failed, on every rank.
void run_stage(const Communicator& world, const std::string& title, const std::function<void()>& work);

}  // namespace fourfold::checkpoint
