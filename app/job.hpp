// What every command that runs on MPI ranks does around its work.
#pragma once

#include <functional>

#include "base/error.hpp"
#include "comm/grid_comms.hpp"
#include "comm/launch.hpp"
#include "commands.hpp"
#include "deck/deck.hpp"
#include "deck_file.hpp"
#include "tensor/tensor.hpp"

namespace fourfold {

// train: the deck as it is. use: evaluation and generation take any number of ranks; the data axis is what they leave,
// and the batch is batch.micro on each.
enum class Purpose { train, use };

//   1. launch MPI
//   2. rank 0 reads the deck, all check it (faults are printed once; exit code 2)
//   3. Kokkos
//   4. communicators
//   5. `work`
//   6. the end, in reverse
// Returns the exit code.
int run_job(const DeckArguments& arguments, Purpose purpose,
            const std::function<ExitCode(const Deck&, const GridComms&, Pool&)>& work);

// MPI, for a command that takes no arguments of MPI's.
Launch launch_ranks();

// A file's text as rank 0 reads it, or the problem that it met, the same on all ranks. Collective over `world`.
LoadedText shared_text(const Communicator& world, const std::string& file);

}  // namespace fourfold
