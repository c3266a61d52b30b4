// The axes of the process grids and their shapes. "axis" is for the grid, "dim" for a tensor.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

namespace fourfold {

// Dense view: data x depth x row x col. MoE view: replica x expert x moe_row x moe_col. `stage` is shared.
enum class Axis : std::uint8_t { col, row, depth, data, moe_col, moe_row, expert, replica, stage };
inline constexpr int kAxes = 9;
std::string_view axis_name(Axis axis);

// A set of axes, for groups and gradient sums.
class AxisSet {
 public:
  constexpr AxisSet() = default;
  constexpr AxisSet(std::initializer_list<Axis> axes) {
    for (Axis axis : axes) bits_ |= bit(axis);
  }
  constexpr bool has(Axis axis) const { return (bits_ & bit(axis)) != 0; }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr AxisSet operator|(AxisSet other) const { return AxisSet(bits_ | other.bits_); }
  constexpr bool operator==(const AxisSet&) const = default;
  constexpr auto operator<=>(const AxisSet&) const = default;
  std::string name() const;  // "data+depth"; "self" for the empty set

 private:
  constexpr explicit AxisSet(unsigned bits) : bits_(bits) {}
  static constexpr unsigned bit(Axis axis) { return 1u << static_cast<unsigned>(axis); }
  unsigned bits_ = 0;
};

// A group of ranks: those that differ in the given axes and, where row_block > 1, also stand in one aligned block of so
// many neighbours on row (the ranks that hold one KV head); where tied_stage > 0, those of stage 0 and then those at
// the same places of that stage, which hold a matrix together (tied embeddings).
struct GroupKey {
  AxisSet axes;
  int row_block = 1;
  int tied_stage = 0;

  constexpr GroupKey() = default;
  constexpr GroupKey(AxisSet axes_in, int row_block_in = 1, int tied_stage_in = 0)
      : axes(axes_in), row_block(row_block_in), tied_stage(tied_stage_in) {}
  constexpr GroupKey(std::initializer_list<Axis> list) : axes(list) {}
  constexpr bool has(Axis axis) const { return axes.has(axis); }
  constexpr bool empty() const { return axes.empty() && row_block == 1 && tied_stage == 0; }
  constexpr bool operator==(const GroupKey&) const = default;
  constexpr auto operator<=>(const GroupKey&) const = default;
  std::string name() const;  // "data", "data+row/2", "data+tied"
};

struct DenseShape {
  int data = 1, depth = 1, row = 1, col = 1;
  std::int64_t size() const { return std::int64_t{data} * depth * row * col; }
  std::int64_t coordinates() const { return std::int64_t{data} * depth; }  // batch coordinates
  bool operator==(const DenseShape&) const = default;
};

struct MoeShape {
  int replica = 1, expert = 1, row = 1, col = 1;
  std::int64_t size() const { return std::int64_t{replica} * expert * row * col; }
  bool operator==(const MoeShape&) const = default;
};

// Both views of one stage's ranks; legal when the sizes are equal.
struct StageShape {
  DenseShape dense;
  MoeShape moe;
  std::int64_t size() const { return dense.size(); }
  bool operator==(const StageShape&) const = default;
};

}  // namespace fourfold
