// A parameter store without a model: whole tensors, values and gradients by hand.
#pragma once

#include <Kokkos_Core.hpp>
#include <string>
#include <vector>

#include "comm/launch.hpp"
#include "deck/derive.hpp"
#include "mpi_test.hpp"
#include "optim/norm.hpp"
#include "optim/optimizer.hpp"
#include "optim/reducer.hpp"
#include "tensor/param.hpp"

namespace fourfold::test {

inline ParamSpec whole_spec(std::string name, std::vector<std::int64_t> shape, AxisSet sum_over, bool owner = true) {
  return {std::move(name), whole_shard(shape), sum_over, owner, [](std::int64_t first, std::span<double> values) {
            for (double& value : values) value = 0.5 - 0.125 * static_cast<double>(first++ % 9);
          }};
}

template <class T>
void set_values(kernels::Vector<T> view, const std::vector<double>& values) {
  auto host = Kokkos::create_mirror_view(view);
  for (std::size_t i = 0; i < values.size(); ++i) host(i) = static_cast<T>(values[i]);
  Kokkos::deep_copy(view, host);
}

template <class T>
std::vector<T> get_values(kernels::Vector<T> view) {
  auto host = Kokkos::create_mirror_view(view);
  Kokkos::deep_copy(host, view);
  return std::vector<T>(host.data(), host.data() + host.extent(0));
}

// The padding that a model's store has.
inline PartsOfGroup padding(const Deck& deck, const GridComms& comms) {
  return [&deck, &comms](const GroupKey& key) {
    return key.empty() ? std::int64_t{1} : update_parts(deck, comms.group(key).size());
  };
}

// What a trainer does with a store's gradients.
template <class T>
struct Updating {
  UpdatePlan plan;
  TensorSums<T> sums;
  Reducer<T> reducer;
  GradientNorm<T> norm;
  Optimizer<T> optimizer;
  Updating(const Deck& deck, const GridComms& comms, ParamStore<T>& store, Pool& pool)
      : plan(deck, comms, store),
        sums(plan, comms, store),
        reducer(deck, plan, comms, store),
        norm(deck.numerics, comms, sums),
        optimizer(deck.optimizer, deck.numerics, plan, sums, store, pool) {}
};

inline ProcessGrid grid_of(const DenseShape& shape) {
  return ProcessGrid({StageShape{shape, MoeShape{.replica = static_cast<int>(shape.size())}}});
}

// All ranks of the launch as data ranks.
inline GridComms data_comms() {
  const Communicator& world = launch().world();
  return GridComms(world, grid_of({.data = world.size()}), {{Axis::data}, {Axis::data, Axis::row}});
}

}  // namespace fourfold::test
