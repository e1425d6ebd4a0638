// One token of the short convolution, and the transposes that its weights and windows need. Compiled once per target.
#if defined(KDA_CPU_CONV_STEP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KDA_CPU_CONV_STEP_INL_H_
#undef KDA_CPU_CONV_STEP_INL_H_
#else
#define KDA_CPU_CONV_STEP_INL_H_
#endif

#include "cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
KDA_BEFORE_BODY
namespace kda::cpu {
namespace KDA_TARGET_NAMESPACE {

void ConvStep(const ConvStepArgs& args) {
  for (int64_t c = 0; c < args.channels; c += kLanes) {
    VF sum = hn::Mul(LoadVector(args.taps[0] + c), LoadVector(args.weights[0] + c));
    for (int w = 1; w < args.width; ++w) {
      sum = hn::MulAdd(LoadVector(args.taps[w] + c), LoadVector(args.weights[w] + c), sum);
    }
    if (args.bias != nullptr) sum = hn::Add(sum, LoadVector(args.bias + c));
    StoreVector(hn::Mul(sum, Sigmoid(sum)), args.out + c);
  }
}

void SplitTaps(const float* from, int width, int64_t channels, float* const* to) {
  const F d;
  int64_t c = 0;
  VF x0, x1, x2, x3;
  if (width == 4) {
    for (; c + kLanes <= channels; c += kLanes) {
      hn::LoadInterleaved4(d, from + 4 * c, x0, x1, x2, x3);
      StoreVector(x0, to[0] + c);
      StoreVector(x1, to[1] + c);
      StoreVector(x2, to[2] + c);
      StoreVector(x3, to[3] + c);
    }
  } else if (width == 3) {
    for (; c + kLanes <= channels; c += kLanes) {
      hn::LoadInterleaved3(d, from + 3 * c, x0, x1, x2);
      StoreVector(x0, to[0] + c);
      StoreVector(x1, to[1] + c);
      StoreVector(x2, to[2] + c);
    }
  }
  for (; c < channels; ++c) {
    for (int w = 0; w < width; ++w) to[w][c] = from[c * width + w];
  }
}

void JoinTaps(const float* const* from, int width, int64_t channels, float* to) {
  const F d;
  int64_t c = 0;
  if (width == 3) {
    for (; c + kLanes <= channels; c += kLanes) {
      hn::StoreInterleaved3(LoadVector(from[0] + c), LoadVector(from[1] + c), LoadVector(from[2] + c), d, to + 3 * c);
    }
  }
  for (; c < channels; ++c) {
    for (int w = 0; w < width; ++w) to[c * width + w] = from[w][c];
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace KDA_TARGET_NAMESPACE
}  // namespace kda::cpu
HWY_AFTER_NAMESPACE();
#endif
