#include "model/initializers.hpp"

#include <cmath>

#include "base/random.hpp"

namespace fourfold {

namespace {

// The value at (row, col) of a matrix whose rows have 1..nonzeros entries of +-1/2 at drawn places.
double dyadic_value(const RandomStream& stream, std::int64_t row, std::int64_t col, std::int64_t columns,
                    std::int64_t nonzeros) {
  constexpr std::uint64_t kDrawsPerRow = 8;
  const auto draw = [&](std::uint64_t i) { return stream.bits(static_cast<std::uint64_t>(row) * kDrawsPerRow + i); };
  const std::int64_t count = 1 + static_cast<std::int64_t>(draw(0) % static_cast<std::uint64_t>(nonzeros));
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint64_t bits = draw(1 + static_cast<std::uint64_t>(i));
    if (static_cast<std::int64_t>((bits >> 1) % static_cast<std::uint64_t>(columns)) == col) {
      return (bits & 1) != 0 ? 0.5 : -0.5;
    }
  }
  return 0.0;
}

}  // namespace

Initializer make_initializer(const ModelDeck& model, std::uint64_t seed, const std::string& name, std::int64_t columns,
                             bool residual) {
  const RandomStream stream = random_stream(seed, "init/" + name);
  if (model.init.kind == InitKind::dyadic) {
    return [stream, columns, nonzeros = model.init.nonzeros](std::int64_t first, std::span<double> values) {
      for (std::size_t i = 0; i < values.size(); ++i) {
        const std::int64_t index = first + static_cast<std::int64_t>(i);
        values[i] = dyadic_value(stream, index / columns, index % columns, columns, nonzeros);
      }
    };
  }
  double std = model.init.std;
  if (residual && model.init.scale_residual && model.layers > 0) {
    std /= std::sqrt(2.0 * static_cast<double>(model.layers));
  }
  return [stream, std](std::int64_t first, std::span<double> values) {
    fill_normal(stream, static_cast<std::uint64_t>(first), values);
    for (double& value : values) value *= std;
  };
}

}  // namespace fourfold
