// The deck's compute type as a type.
#pragma once

#include <utility>

#include "deck/deck.hpp"
#include "kernels/bf16.hpp"

namespace fourfold {

// in_precision(deck.precision, [&]<class T>() { ... }): T is double, float or bf16.
template <class Work>
decltype(auto) in_precision(Precision precision, Work&& work) {
  switch (precision) {
    case Precision::fp64:
      return work.template operator()<double>();
    case Precision::bf16:
      return work.template operator()<kernels::bf16>();
    case Precision::fp32:
      break;
  }
  return work.template operator()<float>();
}

}  // namespace fourfold
