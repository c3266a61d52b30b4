// What a checkpoint holds beside tensors, and whether a run may go on from it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.hpp"
#include "comm/communicator.hpp"
#include "data/loader.hpp"
#include "deck/deck.hpp"
#include "model/model.hpp"
#include "train/loop.hpp"

namespace fourfold {

struct RunPosition {
  std::int64_t step = 0;       // steps done
  std::int64_t cursor = 0;     // samples consumed by them
  std::int64_t skips = 0;      // the last of them that were left out in a row (numerics.non_finite)
  std::string placement = {};  // Trainer::placement()
};

std::string checkpoint_folder(const Deck& deck);  // <run.folder>/checkpoints

// Makes run.folder. Collective. Errors (all ranks, storage).
void prepare_folder(const Communicator& world, const Deck& deck);
// Writes deck.yaml in it, the resolved deck, under a temporary name first. Collective. Errors (all ranks, storage).
void write_resolved_deck(const Communicator& world, const Deck& deck);

// The learning rate's definition as text; steps only where the rate depends on them.
std::string schedule_text(const Deck& deck);

// Fills the shards from the newest committed step of the run's folder; nothing where there is none. Errors (all ranks):
// input when names or shapes differ, or the schedule or the data are not the checkpoint's and the options do
// not allow it: both are shown.
std::optional<RunPosition> load_newest_checkpoint(const Communicator& world, const Deck& deck, const Loader& loader,
                                                  const std::vector<checkpoint::NamedShard>& shards,
                                                  const TrainOptions& options,
                                                  const checkpoint::AllocateHost& allocate = {});

// The parameters alone, from `file` (a committed step_N.h5) or, where that is empty, from the newest committed step of
// the run's folder. Errors (all ranks): input for a file that is none or another model's; storage when there is no
// usable one.
template <class T>
checkpoint::Committed load_parameters(Model<T>& model, const Deck& deck, const GridComms& comms,
                                      const std::string& file);

// What a checkpoint holds beside tensors and the step.
checkpoint::State checkpoint_state(const Deck& deck, const Loader& loader, const RunPosition& position,
                                   const std::string& version);

// debug.record: the step's tensors in <run.folder>/record, all steps kept.
void save_record(const Communicator& world, const Deck& deck, const std::vector<checkpoint::NamedShard>& shards,
                 const RunPosition& position);

// Synchronous, whatever checkpoint.mode is (train/checkpoints.hpp). resumed_from: the step this session started from;
// it is never removed.
checkpoint::SaveReport save_checkpoint(const Communicator& world, const Deck& deck, const Loader& loader,
                                       const std::vector<checkpoint::NamedShard>& shards, const RunPosition& position,
                                       std::optional<std::int64_t> resumed_from, const TrainOptions& options);

}  // namespace fourfold
