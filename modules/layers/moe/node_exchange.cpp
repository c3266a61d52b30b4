#include "layers/moe/node_exchange.hpp"

#include <Kokkos_Core.hpp>
#include <algorithm>
#include <numeric>

#include "kernels/types.hpp"

namespace fourfold {

namespace {

constexpr std::size_t at(std::int64_t index) {
  return static_cast<std::size_t>(index);
}

// The group's ranks by node, and each one's node and place in it.
struct NodeMembers {
  explicit NodeMembers(const Communicator& group) : node(at(group.size())), place(at(group.size())) {
    std::vector<int> numbers;
    for (int r = 0; r < group.size(); ++r) {
      const auto found = std::find(numbers.begin(), numbers.end(), group.node_of(r));
      node[at(r)] = static_cast<int>(found - numbers.begin());
      if (found == numbers.end()) {
        numbers.push_back(group.node_of(r));
        members.emplace_back();
      }
      std::vector<int>& mates = members[at(node[at(r)])];
      place[at(r)] = static_cast<int>(mates.size());
      mates.push_back(r);
    }
  }
  // Who on node `on` hands on what goes to rank r.
  int hands_on(int on, int r) const {
    const std::vector<int>& mates = members[at(on)];
    return mates[at(place[at(r)]) % mates.size()];
  }
  std::vector<std::vector<int>> members;
  std::vector<int> node, place;
};

template <class E>
void copy_span(std::span<const E> from, std::span<E> to) {
  Kokkos::deep_copy(Space(), kernels::Vector<E>(to.data(), to.size()),
                    kernels::Vector<const E>(from.data(), from.size()));
}

std::vector<std::int64_t> offsets(const std::vector<std::int64_t>& sizes) {
  std::vector<std::int64_t> begins(sizes.size());
  std::exclusive_scan(sizes.begin(), sizes.end(), begins.begin(), std::int64_t{0});
  return begins;
}

}  // namespace

template <class E>
void node_exchange(const Communicator& group, Pool& pool, std::span<const E> send, std::span<E> receive,
                   const std::vector<std::int64_t>& sizes, Phase phase) {
  const int ranks = group.size();
  const int me = group.rank();
  const NodeMembers nodes(group);
  const int here = nodes.node[at(me)];
  const std::vector<int>& mates = nodes.members[at(here)];
  const auto size = [&](int from, int to) { return sizes[at(from * ranks + to)]; };
  std::vector<std::int64_t> sent, received;
  for (int r = 0; r < ranks; ++r) {
    sent.push_back(size(me, r));
    received.push_back(size(r, me));
  }
  const std::vector<std::int64_t> send_at = offsets(sent);
  const std::vector<std::int64_t> receive_at = offsets(received);
  const auto outgoing = [&](int to) { return send.subspan(at(send_at[at(to)]), at(size(me, to))); };
  const auto incoming = [&](int from) { return receive.subspan(at(receive_at[at(from)]), at(size(from, me))); };

  // What this rank gets: from its own node piece by piece, from another in one message.
  std::vector<Pending> arriving, leaving;
  struct FromNode {
    const std::vector<int>* members;
    Tensor<E> block;
  };
  std::vector<FromNode> from_nodes;
  for (std::size_t n = 0; n < nodes.members.size(); ++n) {
    const std::vector<int>& members = nodes.members[n];
    if (static_cast<int>(n) == here) {
      for (const int mate : members) {
        if (mate != me && size(mate, me) > 0)
          arriving.push_back(start_receive<E>(group, incoming(mate), mate, me, phase));
      }
      continue;
    }
    std::int64_t total = 0;
    for (const int member : members) total += size(member, me);
    if (total == 0) continue;
    from_nodes.push_back({&members, Tensor<E>(pool, MemoryTag::buffers, 1, total)});
    const Tensor<E>& block = from_nodes.back().block;
    arriving.push_back(
        start_receive<E>(group, {block.data(), at(total)}, nodes.hands_on(static_cast<int>(n), me), me, phase));
  }

  // What it hands on: for each such rank of another node the pieces of all ranks of this one, the nearest node first.
  struct HandedOn {
    int to;
    Tensor<E> block;
    std::vector<Pending> pieces;
  };
  std::vector<HandedOn> handed_on;
  for (std::size_t step = 1; step < nodes.members.size(); ++step) {
    const std::size_t n = (at(here) + step) % nodes.members.size();
    for (const int to : nodes.members[n]) {
      if (nodes.hands_on(here, to) != me) continue;
      std::int64_t total = 0;
      for (const int mate : mates) total += size(mate, to);
      if (total == 0) continue;
      HandedOn next{to, Tensor<E>(pool, MemoryTag::buffers, 1, total), {}};
      std::int64_t begin = 0;
      for (const int mate : mates) {
        const std::span<E> piece(next.block.data() + begin, at(size(mate, to)));
        if (mate == me) {
          copy_span<E>(outgoing(to), piece);
        } else if (!piece.empty()) {
          next.pieces.push_back(start_receive<E>(group, piece, mate, to, phase));
        }
        begin += size(mate, to);
      }
      handed_on.push_back(std::move(next));
    }
  }
  for (std::size_t step = 0; step < nodes.members.size(); ++step) {
    const std::size_t n = (at(here) + step) % nodes.members.size();
    for (const int to : nodes.members[n]) {
      const int through = nodes.hands_on(here, to);
      if (through != me && size(me, to) > 0) leaving.push_back(start_send<E>(group, outgoing(to), through, to, phase));
    }
  }
  copy_span<E>(outgoing(me), incoming(me));
  for (HandedOn& next : handed_on) {
    for (Pending& piece : next.pieces) piece.wait();
    Space().fence();
    leaving.push_back(start_send<E>(group, {next.block.data(), at(next.block.size())}, next.to, next.to, phase));
  }
  for (Pending& pending : arriving) pending.wait();
  for (const FromNode& from : from_nodes) {
    std::int64_t begin = 0;
    for (const int member : *from.members) {
      copy_span<E>({from.block.data() + begin, at(size(member, me))}, incoming(member));
      begin += size(member, me);
    }
  }
  for (Pending& pending : leaving) pending.wait();
}

template void node_exchange<float>(const Communicator&, Pool&, std::span<const float>, std::span<float>,
                                   const std::vector<std::int64_t>&, Phase);
template void node_exchange<double>(const Communicator&, Pool&, std::span<const double>, std::span<double>,
                                    const std::vector<std::int64_t>&, Phase);
template void node_exchange<std::uint16_t>(const Communicator&, Pool&, std::span<const std::uint16_t>,
                                           std::span<std::uint16_t>, const std::vector<std::int64_t>&, Phase);

}  // namespace fourfold
