// The checkpoints of a session as the deck wants them: synchronous or asynchronous, what a failure does, and the memory
// that they take.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/memory_ledger.hpp"
#include "checkpoint/async.hpp"
#include "checkpoint/checkpoint.hpp"
#include "comm/communicator.hpp"
#include "data/loader.hpp"
#include "deck/deck.hpp"
#include "train/restart.hpp"

namespace fourfold {

// Host memory that the system gets back at the end; in the ledger as buffers meanwhile.
checkpoint::AllocateHost host_memory(MemoryLedger& ledger);

// The deck's checkpoint block for the module that writes and reads.
checkpoint::SaveOptions save_options(const Deck& deck);
checkpoint::LoadOptions load_options(const Deck& deck);

// Errors (all ranks, input): this MPI library does not have the deck's component, or cannot change to it any more.
void choose_file_component(const Communicator& world, const Deck& deck);

// All collective.
class Checkpoints {
 public:
  // What is done with a step that has been committed.
  using Told = std::function<void(std::int64_t step, const checkpoint::SaveReport& report)>;

  // Keeps references.
  Checkpoints(const Communicator& world, const Deck& deck, const Loader& loader,
              const std::vector<checkpoint::NamedShard>& shards, MemoryLedger& ledger, std::string version, Told told);

  // At the start of a session that is to save `saves` steps more: warns when not all that stay of them fit beside what
  // is there. Errors (all ranks, storage) when not one does; with on_error: warn a warning.
  void compare_with_free_space(std::int64_t saves) const;

  // Saves, or begins to: on return the model may change. One is under way at most: another waits for it, and says so.
  // resumed_from: the step this session started from; it is never removed. Errors (all ranks, storage), as those of
  // advance() and complete(): with on_error: warn they are logged.
  void save(const RunPosition& position, std::optional<std::int64_t> resumed_from);
  bool under_way() const { return under_way_ != nullptr; }
  // Between two steps: looks how far a save under way is.
  void advance();
  // Waits for a save under way.
  void complete();
  // The session ends. Errors (all ranks, storage): its last save failed, whatever on_error says.
  void finish();

 private:
  void guarded(const std::function<void()>& work);
  void commit(std::int64_t step, const checkpoint::SaveReport& report);

  const Communicator& world_;
  const Deck& deck_;
  const Loader& loader_;
  const std::vector<checkpoint::NamedShard>& shards_;
  MemoryLedger& ledger_;
  const std::string version_;
  const Told told_;
  std::unique_ptr<checkpoint::AsyncSave> under_way_;
  std::int64_t step_under_way_ = 0;
  std::optional<std::string> failure_;  // of the last save
};

}  // namespace fourfold
