#include "train/checkpoints.hpp"

#include <fmt/format.h>

#include <Kokkos_Core.hpp>

#include <algorithm>
#include <limits>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"
#include "checkpoint/folder.hpp"
#include "checkpoint/stage.hpp"
#include "comm/agree.hpp"
#include "comm/file_component.hpp"

namespace fourfold {

checkpoint::AllocateHost host_memory(MemoryLedger& ledger) {
  return [&ledger](std::int64_t bytes) {
    const Kokkos::View<std::byte*, Kokkos::LayoutRight, Kokkos::HostSpace> view(
        Kokkos::view_alloc("checkpoint", Kokkos::WithoutInitializing), static_cast<std::size_t>(bytes));
    ledger.add(MemoryTag::buffers, bytes);
    return std::shared_ptr<std::byte>(view.data(),
                                      [view, bytes, &ledger](std::byte*) { ledger.remove(MemoryTag::buffers, bytes); });
  };
}

namespace {

h5::FileOptions file_options(const CheckpointDeck& deck) {
  h5::FileOptions options;
  options.alignment = deck.alignment;
  options.collective_metadata = deck.collective_metadata;
  const auto hint = [&](const char* name, std::int64_t value) {
    if (value > 0) options.hints.emplace_back(name, std::to_string(value));
  };
  hint("striping_factor", deck.mpi_io.striping_factor);
  hint("striping_unit", deck.mpi_io.striping_unit);
  hint("cb_nodes", deck.mpi_io.cb_nodes);
  hint("cb_buffer_size", deck.mpi_io.cb_buffer_size);
  return options;
}

}  // namespace

checkpoint::SaveOptions save_options(const Deck& deck) {
  checkpoint::SaveOptions options;
  options.run = deck.run.name;
  options.keep = deck.checkpoint.keep;
  options.transfer_bytes = deck.checkpoint.transfer_bytes;
  options.strict_collective = deck.checkpoint.strict_collective;
  options.file = file_options(deck.checkpoint);
  return options;
}

checkpoint::LoadOptions load_options(const Deck& deck) {
  checkpoint::LoadOptions options;
  options.allow_missing = deck.checkpoint.allow_missing;
  options.transfer_bytes = deck.checkpoint.transfer_bytes;
  options.strict_collective = deck.checkpoint.strict_collective;
  options.file = file_options(deck.checkpoint);
  return options;
}

void choose_file_component(const Communicator& world, const Deck& deck) {
  const FileComponent wanted = deck.checkpoint.mpi_io.component;
  if (wanted == FileComponent::automatic) return;
  const std::string problem = choose_file_component(wanted == FileComponent::ompio ? "ompio" : "romio321");
  if (agree_any(world, !problem.empty())) fail_all(ExitCode::input, "checkpoint.mpi_io.component: " + problem);
}

Checkpoints::Checkpoints(const Communicator& world, const Deck& deck, const Loader& loader,
                         const std::vector<checkpoint::NamedShard>& shards, MemoryLedger& ledger, std::string version,
                         Told told)
    : world_(world),
      deck_(deck),
      loader_(loader),
      shards_(shards),
      ledger_(ledger),
      version_(std::move(version)),
      told_(std::move(told)) {}

void Checkpoints::compare_with_free_space(std::int64_t saves) const {
  if (saves == 0) return;
  const std::string folder = checkpoint_folder(deck_);
  const std::int64_t one = checkpoint::predicted_bytes(shards_, checkpoint_state(deck_, loader_, {}, version_),
                                                       file_options(deck_.checkpoint));
  const bool warn = deck_.checkpoint.on_error == OnSaveError::warn;
  checkpoint::run_stage(world_, "no space for checkpoints", [&] {
    if (world_.rank() != 0) return;
    const std::int64_t available = checkpoint::free_bytes(folder);
    const std::string figures = fmt::format("one takes {} bytes, {} are free in {}", one, available, folder);
    if (available < one && !warn) fail_one(ExitCode::storage, figures);
    // The last of those that stay is removed after the next one is there.
    const std::int64_t there = std::ssize(checkpoint::steps_with(folder, ".commit"));
    const std::int64_t keep = deck_.checkpoint.keep;
    const std::int64_t more = keep == 0 ? saves : std::clamp<std::int64_t>(keep + 1 - there, 1, saves);
    if (available / one < more)
      log_warn(
          fmt::format("no space for the checkpoints to come: {} more of them are to stay at once; {}", more, figures));
  });
}

void Checkpoints::save(const RunPosition& position, std::optional<std::int64_t> resumed_from) {
  if (under_way_) {
    log_info(fmt::format("the checkpoint of step {} waits for that of step {}, whose bytes are not written yet",
                         position.step, step_under_way_));
    complete();
  }
  checkpoint::SaveOptions options = save_options(deck_);
  options.resumed_from = resumed_from;
  options.allocate = host_memory(ledger_);
  const checkpoint::State state = checkpoint_state(deck_, loader_, position, version_);
  const std::string folder = checkpoint_folder(deck_);
  guarded([&] {
    if (deck_.checkpoint.mode == SaveMode::async) {
      under_way_ = std::make_unique<checkpoint::AsyncSave>(world_, folder, position.step, shards_, state, options);
      step_under_way_ = position.step;
    } else {
      commit(position.step, checkpoint::save(world_, folder, position.step, shards_, state, options));
    }
  });
}

void Checkpoints::advance() {
  if (!under_way_) return;
  guarded([&] {
    if (under_way_->advance()) commit(step_under_way_, under_way_->report());
  });
}

void Checkpoints::complete() {
  if (!under_way_) return;
  guarded([&] {
    under_way_->complete();
    commit(step_under_way_, under_way_->report());
  });
}

void Checkpoints::finish() {
  complete();
  if (failure_) fail_all(ExitCode::storage, "the run ends without its last checkpoint: " + *failure_);
}

void Checkpoints::guarded(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    under_way_.reset();
    const bool warn = deck_.checkpoint.on_error == OnSaveError::warn && error.caller() == Caller::all_ranks &&
                      error.code() == ExitCode::storage;
    if (!warn) throw;
    failure_ = error.what();
    log_warn(*failure_ + "; training goes on (checkpoint.on_error: warn)");
  }
}

void Checkpoints::commit(std::int64_t step, const checkpoint::SaveReport& report) {
  failure_.reset();
  told_(step, report);
  under_way_.reset();
}

}  // namespace fourfold
