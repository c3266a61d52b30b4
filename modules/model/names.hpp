// The deck's kinds as the layers' kinds.
#pragma once

#include "deck/deck.hpp"
#include "layers/feed_forward.hpp"
#include "layers/norm.hpp"

namespace fourfold {

inline NormType norm_type(NormKind kind) {
  return kind == NormKind::layer ? NormType::layer : NormType::rms;
}

inline ActivationType activation_type(FeedForwardKind kind) {
  switch (kind) {
    case FeedForwardKind::gelu:
      return ActivationType::gelu;
    case FeedForwardKind::gelu_tanh:
      return ActivationType::gelu_tanh;
    case FeedForwardKind::relu:
      return ActivationType::relu;
    case FeedForwardKind::swiglu:
      break;
  }
  return ActivationType::swiglu;
}

inline ActivationType activation_type(Activation kind) {
  switch (kind) {
    case Activation::gelu:
      return ActivationType::gelu;
    case Activation::gelu_tanh:
      return ActivationType::gelu_tanh;
    case Activation::relu:
      break;
  }
  return ActivationType::relu;
}

}  // namespace fourfold
