#include "tensor/crossing.hpp"

#include <algorithm>
#include <map>

#include "base/error.hpp"

namespace fourfold {

namespace {

Index size_of(const std::array<Range, 3>& box) {
  return box[0].size() * box[1].size() * box[2].size();
}

// Rows [begin, end) and columns of a matrix whose memory begins with the flat element `start` of rows of `width`.
void add_rows(Holding& holding, const Box& box, Index start, Range rows, Range cols) {
  if (rows.empty() || cols.empty()) return;
  const Index width = box[1].size();
  holding.push_back({{Range{0, 1}, Range{box[0].begin + rows.begin, box[0].begin + rows.end},
                      Range{box[1].begin + cols.begin, box[1].begin + cols.end}},
                     rows.begin * width + cols.begin - start,
                     {0, width}});
}

// The ranks of a side by what they hold, and each rank's place among those that hold the same.
struct Side {
  std::vector<std::vector<int>> classes;
  std::vector<int> place;

  explicit Side(const std::vector<Holding>& holdings) : place(holdings.size(), 0) {
    std::map<std::vector<Index>, std::size_t> known;
    for (std::size_t rank = 0; rank < holdings.size(); ++rank) {
      std::vector<Index> key;
      for (const HeldBox& held : holdings[rank]) {
        for (const Range& range : held.box) key.insert(key.end(), {range.begin, range.end});
      }
      if (key.empty()) continue;
      const auto [found, fresh] = known.try_emplace(std::move(key), classes.size());
      if (fresh) classes.emplace_back();
      std::vector<int>& same = classes[found->second];
      place[rank] = static_cast<int>(same.size());
      same.push_back(static_cast<int>(rank));
    }
  }
};

// What `memory` and `other` have in common, in the order that both ends see: box by box of the sender, then of the
// receiver.
CrossingPiece piece_between(const Holding& sender, const Holding& receiver, bool sends) {
  CrossingPiece piece;
  for (const HeldBox& a : sender) {
    for (const HeldBox& b : receiver) {
      std::array<Range, 3> common;
      for (std::size_t d = 0; d < 3; ++d) common[d] = intersect(a.box[d], b.box[d]);
      const Index size = size_of(common);
      if (size == 0) continue;
      const HeldBox& held = sends ? a : b;
      const Index at = held.first + (common[0].begin - held.box[0].begin) * held.strides[0] +
                       (common[1].begin - held.box[1].begin) * held.strides[1] + common[2].begin - held.box[2].begin;
      kernels::BoxCopy box;
      box.n0 = common[0].size();
      box.n1 = common[1].size();
      box.n2 = common[2].size();
      const Index row = box.n2, plane = box.n1 * box.n2;  // of the buffer
      box.from = sends ? at : piece.elements;
      box.from_stride0 = sends ? held.strides[0] : plane;
      box.from_stride1 = sends ? held.strides[1] : row;
      box.to = sends ? piece.elements : at;
      box.to_stride0 = sends ? plane : held.strides[0];
      box.to_stride1 = sends ? row : held.strides[1];
      piece.boxes.push_back(box);
      piece.elements += size;
    }
  }
  piece.whole = sender == receiver;
  return piece;
}

void sort_by_peer(std::vector<CrossingPiece>& pieces) {
  std::sort(pieces.begin(), pieces.end(),
            [](const CrossingPiece& a, const CrossingPiece& b) { return a.peer < b.peer; });
}

}  // namespace

Holding holding_of(const TokenLayout& layout) {
  Holding holding;
  Index first = 0;
  for (const TokenBlock& block : layout.blocks) {
    const Index tokens = block.tokens.size();
    if (block.rows() * layout.width > 0) {
      holding.push_back({{block.sequences, block.tokens, block.cols}, first, {tokens * layout.width, layout.width}});
    }
    first += block.rows() * layout.width;
  }
  return holding;
}

Holding holding_of(const Shard& shard) {
  FOURFOLD_ASSERT(shard.box.size() == 2, "a matrix");
  Holding holding;
  const Range flat = shard.flat;
  if (flat.empty()) return holding;
  const Index width = shard.box[1].size();
  // The end of a row that has begun before, whole rows, the beginning of a row that goes on elsewhere.
  const Index first = flat.begin / width, last = (flat.end - 1) / width;
  const Index head = flat.begin % width, tail = (flat.end - 1) % width + 1;
  if (first == last) {
    add_rows(holding, shard.box, flat.begin, {first, first + 1}, {head, tail});
    return holding;
  }
  const Range whole{head > 0 ? first + 1 : first, tail < width ? last : last + 1};
  if (head > 0) add_rows(holding, shard.box, flat.begin, {first, first + 1}, {head, width});
  add_rows(holding, shard.box, flat.begin, whole, {0, width});
  if (tail < width) add_rows(holding, shard.box, flat.begin, {last, last + 1}, {0, tail});
  return holding;
}

Index size_of(const Holding& holding) {
  Index size = 0;
  for (const HeldBox& held : holding) size += size_of(held.box);
  return size;
}

std::vector<CrossingPiece> pieces_to_send(const std::vector<Holding>& senders, const std::vector<Holding>& receivers,
                                          int me) {
  const Side mine(senders), others(receivers);
  const auto my_index = static_cast<std::size_t>(me);
  std::vector<CrossingPiece> pieces;
  const Holding& memory = senders[my_index];
  if (memory.empty()) return pieces;
  const auto same = std::find_if(mine.classes.begin(), mine.classes.end(), [&](const std::vector<int>& ranks) {
    return std::find(ranks.begin(), ranks.end(), me) != ranks.end();
  });
  const std::size_t replicas = same->size();
  for (const std::vector<int>& ranks : others.classes) {
    CrossingPiece piece = piece_between(memory, receivers[static_cast<std::size_t>(ranks.front())], true);
    if (piece.elements == 0) continue;
    for (auto t = static_cast<std::size_t>(mine.place[my_index]); t < ranks.size(); t += replicas) {
      piece.peer = ranks[t];
      pieces.push_back(piece);
    }
  }
  sort_by_peer(pieces);
  return pieces;
}

std::vector<CrossingPiece> pieces_to_receive(const std::vector<Holding>& senders, const std::vector<Holding>& receivers,
                                             int me) {
  const Side mine(receivers), others(senders);
  const auto my_index = static_cast<std::size_t>(me);
  std::vector<CrossingPiece> pieces;
  const Holding& memory = receivers[my_index];
  Index covered = 0;
  for (const std::vector<int>& ranks : others.classes) {
    CrossingPiece piece = piece_between(senders[static_cast<std::size_t>(ranks.front())], memory, false);
    if (piece.elements == 0) continue;
    piece.peer = ranks[static_cast<std::size_t>(mine.place[my_index]) % ranks.size()];
    covered += piece.elements;
    pieces.push_back(std::move(piece));
  }
  FOURFOLD_ASSERT(covered == size_of(memory), "the other side holds each element that is wanted, once or as replicas");
  sort_by_peer(pieces);
  return pieces;
}

template <class T>
void pack(const CrossingPiece& piece, kernels::Vector<const T> memory, kernels::Vector<T> buffer) {
  for (const kernels::BoxCopy& box : piece.boxes) kernels::copy_box<T>(Space(), box, memory, buffer);
}

template <class T>
void unpack(const CrossingPiece& piece, kernels::Vector<const T> buffer, kernels::Vector<T> memory) {
  for (const kernels::BoxCopy& box : piece.boxes) kernels::copy_box<T>(Space(), box, buffer, memory);
}

template <class T>
void unpack_add(const CrossingPiece& piece, kernels::Vector<const T> buffer, kernels::Vector<T> memory) {
  for (const kernels::BoxCopy& box : piece.boxes) kernels::add_box<T>(Space(), box, buffer, memory);
}

#define FOURFOLD_CROSSING(T)                                                                   \
  template void pack<T>(const CrossingPiece&, kernels::Vector<const T>, kernels::Vector<T>);   \
  template void unpack<T>(const CrossingPiece&, kernels::Vector<const T>, kernels::Vector<T>); \
  template void unpack_add<T>(const CrossingPiece&, kernels::Vector<const T>, kernels::Vector<T>);
FOURFOLD_CROSSING(float)
FOURFOLD_CROSSING(double)
FOURFOLD_CROSSING(kernels::bf16)
#undef FOURFOLD_CROSSING

}  // namespace fourfold
