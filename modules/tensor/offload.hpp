// Tensors that are away between two uses: their blocks leave the pool's books under `activations` at once, are written
// behind later work, and come back into fresh blocks in time for their use.
//
// At most one set is being written at a time; until then its blocks count as buffers. When memory is given back does
// not depend on how fast the store is, so that a steady loop allocates nothing.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tensor/away_store.hpp"
#include "tensor/tensor.hpp"

namespace fourfold {

class Offload {
 public:
  // What went away together. Refers to the handles that were given: they stay where they are until finish().
  struct Set {
    struct Part {
      std::vector<std::shared_ptr<std::byte>*> handles;
      std::int64_t bytes = 0;
      AwayStore::Place place = 0;
    };
    std::vector<Part> parts;
    std::int64_t calls = 0;  // of the store, when it is back
  };

  Offload(Pool& pool, std::unique_ptr<AwayStore> store) : pool_(pool), store_(std::move(store)) {}
  ~Offload() { settle(); }
  Offload(const Offload&) = delete;
  Offload& operator=(const Offload&) = delete;

  // Empties the handles. Nobody else may hold their blocks.
  Set start(const HeldBlocks& blocks);
  // Fills them with blocks whose contents are under way; then waits for those.
  void load(Set& set);
  void finish(Set& set);

  // Gives back what is still being written, once it is.
  void settle();
  // "", or what the store could not do since it was made: tensors that came back hold zeros then.
  std::string fault() const { return store_->fault(); }

 private:
  Pool& pool_;
  std::unique_ptr<AwayStore> store_;
  std::vector<std::shared_ptr<std::byte>> leaving_;
  std::int64_t leaving_calls_ = 0;
};

}  // namespace fourfold
