// Initial values: each of the ranks that share them makes a part, and all have the same in the end.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "comm/launch.hpp"
#include "mpi_test.hpp"
#include "tensor/param.hpp"

namespace fourfold {
namespace {

double value_of(std::int64_t index, double scale) {
  return scale * static_cast<double>(index * index % 1009);
}

TEST(ParamStore, InitialValuesAreMadeOnceAmongTheirSharers) {
  const Communicator& world = test::launch().world();
  for (const std::int64_t rows : {0, 1, 3, 700}) {  // with parts that are empty, and runs longer than a block
    MemoryLedger ledger;
    Pool pool(ledger);
    ParamStore<float> store;
    std::int64_t made = 0;
    const auto declare = [&](const std::string& name, std::int64_t cols, AxisSet sum_over, double scale) {
      const Initializer init = [&made, scale](std::int64_t first, std::span<double> values) {
        made += std::ssize(values);
        for (double& value : values) value = value_of(first++, scale);
      };
      return store.declare({name, whole_shard({rows, cols}), sum_over, true, init});
    };
    const std::vector<Param<float>*> params = {declare("shared.a", 17, {Axis::data}, 1), declare("alone", 5, {}, -1),
                                               declare("shared.b", 1, {Axis::data}, 0.5)};
    const auto three_parts = [](const GroupKey&) { return std::int64_t{3}; };
    store.allocate(pool, three_parts, [&](const GroupKey&) -> const Communicator& { return world; });

    EXPECT_EQ(made, rows * 5 + part(rows * 18, world.size(), world.rank()).size());
    const double scales[] = {1, -1, 0.5};
    for (std::size_t p = 0; p < params.size(); ++p) {
      const kernels::Vector<float>& values = params[p]->value;
      for (std::int64_t i = 0; i < params[p]->spec.shard.size(); ++i) {
        ASSERT_EQ(values(i), static_cast<float>(value_of(i, scales[p]))) << params[p]->spec.name << " " << i;
      }
    }
    for (const ParamGroup<float>& group : store.groups()) {
      for (Index i = group.size; i < group.values.size(); ++i) EXPECT_EQ(group.values.data()[i], 0.0f);
    }
  }
}

}  // namespace
}  // namespace fourfold
