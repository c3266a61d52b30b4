// The deck's kinds as the layers' kinds.
#pragma once

#include "deck/deck.hpp"
#include "kernels/rotary.hpp"
#include "layers/feed_forward.hpp"
#include "layers/norm.hpp"

namespace fourfold {

inline kernels::RotaryAngles rotary_angles(const ModelDeck& model) {
  using Scaling = kernels::RotaryAngles::Scaling;
  const RopeScalingDeck& scaling = model.rope_scaling;
  kernels::RotaryAngles angles(model.rope_theta);
  if (scaling.kind == RopeScaling::linear) angles.scaling = Scaling::linear;
  if (scaling.kind == RopeScaling::llama3) angles.scaling = Scaling::llama3;
  angles.factor = scaling.factor;
  angles.low = scaling.low;
  angles.high = scaling.high;
  angles.original = static_cast<double>(scaling.original_sequence);
  return angles;
}

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
