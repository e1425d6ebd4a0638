// How far a result may be from float64, for expectations that hold unrounded values. The one home of these numbers.
#pragma once

#include <algorithm>
#include <cmath>

#include "io/safetensors.h"
#include "kda/kda.h"

namespace kda::cli::replay {

// Any one (row, head) may be this many times further off than the whole tensor.
constexpr double kUnitFactor = 4;

constexpr double kExactFp32 = 1e-5;
constexpr double kExactOutBf16 = 2.5e-3;  // rounding the output to bf16 costs 1.7e-3
constexpr double kExactFp16 = 6e-4;
constexpr double kFastOut16 = 5e-3;
constexpr double kFastState16 = 4e-3;
constexpr double kFastFp32 = 1e-4;
constexpr double kMovedToBf16 = 2.5e-3;  // one rounding and nothing else

// A bf16 pool rounds after every node of a path, and the errors add up like a random walk.
inline double bf16_pool_limit(int depth) { return 6e-3 * std::max(1.0, std::sqrt(depth / 8.0)); }

struct LimitInputs {
  io::TensorType io = io::TensorType::kBF16;
  io::TensorType pool = io::TensorType::kF32;  // where states come from
  int numerics = KDA_EXACT;
  bool rounds_on_path = false;  // verify and commit: states between nodes have the pool's dtype
  int depth = 1;
};

inline double out_limit(const LimitInputs& inputs) {
  const bool wide = inputs.io == io::TensorType::kF32;
  const double exact = wide ? kExactFp32 : inputs.io == io::TensorType::kF16 ? kExactFp16 : kExactOutBf16;
  const double limit = inputs.numerics == KDA_EXACT ? exact : wide ? kFastFp32 : kFastOut16;
  const bool rounded = inputs.pool == io::TensorType::kBF16 && inputs.rounds_on_path;
  return rounded ? std::max(limit, bf16_pool_limit(inputs.depth)) : limit;
}

// destination: the dtype of the pool that the state was stored to.
inline double state_limit(const LimitInputs& inputs, io::TensorType destination) {
  const bool wide = inputs.io == io::TensorType::kF32;
  double limit = inputs.numerics == KDA_EXACT ? kExactFp32 : wide ? kFastFp32 : kFastState16;
  if (destination == io::TensorType::kF16) limit = std::max(limit, kExactFp16);
  const bool rounded =
      destination == io::TensorType::kBF16 || (inputs.pool == io::TensorType::kBF16 && inputs.rounds_on_path);
  return rounded ? std::max(limit, bf16_pool_limit(inputs.depth)) : limit;
}

}  // namespace kda::cli::replay
