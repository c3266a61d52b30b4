#include "grid/axes.hpp"

namespace fourfold {

std::string_view axis_name(Axis axis) {
  switch (axis) {
    case Axis::col:
      return "col";
    case Axis::row:
      return "row";
    case Axis::depth:
      return "depth";
    case Axis::data:
      return "data";
    case Axis::moe_col:
      return "moe_col";
    case Axis::moe_row:
      return "moe_row";
    case Axis::expert:
      return "expert";
    case Axis::replica:
      return "replica";
    case Axis::stage:
      return "stage";
  }
  return "?";
}

std::string AxisSet::name() const {
  std::string text;
  for (int i = kAxes - 1; i >= 0; --i) {  // from the outside in, as shapes are written
    const Axis axis = static_cast<Axis>(i);
    if (!has(axis)) continue;
    if (!text.empty()) text += '+';
    text += axis_name(axis);
  }
  return text.empty() ? "self" : text;
}

std::string GroupKey::name() const {
  const std::string block = row_block == 1 ? "" : "+row/" + std::to_string(row_block);
  return axes.name() + block + (tied_stage > 0 ? "+tied" : "");
}

}  // namespace fourfold
