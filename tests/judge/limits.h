// How an answer is measured and what is allowed: the one table of limits that tests use.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace judge {

enum class Io { fp32, bf16, fp16 };

// rel = |x - y| / |y| (2-norms over the live elements), and at most `unit_factor` times the limit for one (row, head).
constexpr double kUnitFactor = 4;
// A mean over few values says little (one bf16 rounding may alone cost 2^-8): where fewer than this many elements carry
// the norm, only the unit limit holds.
constexpr double kFewElements = 64;

// Exact numerics against a judge that rounds where the contract rounds.
constexpr double exact_out_limit(Io io, bool bf16_pool) {
  if (io == Io::bf16) return 2.5e-3;
  if (bf16_pool) return 1e-3;
  return io == Io::fp16 ? 6e-4 : 1e-5;
}
constexpr double exact_state_limit(bool bf16_pool) { return bf16_pool ? 1e-3 : 1e-5; }

// Fast numerics (chunked or WY form).
constexpr double fast_out_limit(Io io) { return io == Io::fp32 ? 1e-4 : 5e-3; }
constexpr double fast_state_limit(Io io) { return io == Io::fp32 ? 1e-4 : 4e-3; }

// A bf16 pool against unrounded values.
inline double unrounded_limit(int depth) { return 6e-3 * std::max(1.0, std::sqrt(depth / 8.0)); }

// Collects the values of one tensor, unit by unit, and tells whether they are within a limit.
class Measure {
 public:
  void add(const std::vector<double>& got, const std::vector<double>& want) {
    double error = 0, norm = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      // Written so that a NaN on either side is an infinite error.
      const double d = got[i] - want[i];
      error += d == d ? d * d : std::numeric_limits<double>::infinity();
      norm += want[i] * want[i];
      fourth_powers_ += want[i] * want[i] * want[i] * want[i];
    }
    error_ += error;
    norm_ += norm;
    elements_ += want.size();
    worst_unit_ = std::max(worst_unit_, ratio(error, norm));
  }
  double rel() const { return ratio(error_, norm_); }
  double worst_unit() const { return worst_unit_; }
  bool within(double limit) const {
    return worst_unit_ <= kUnitFactor * limit && (carrying() < kFewElements || rel() <= limit);
  }
  std::string text() const {
    return "rel " + std::to_string(rel()) + ", worst unit " + std::to_string(worst_unit_) + " over " +
           std::to_string(elements_) + " elements";
  }

 private:
  // A unit that must be zero (norm 0) has no relative error: any difference is wrong.
  static double ratio(double error, double norm) {
    if (error == 0) return 0;
    return norm == 0 ? std::numeric_limits<double>::infinity() : std::sqrt(error / norm);
  }
  // How many elements of equal size would have this distribution of squares.
  double carrying() const { return fourth_powers_ == 0 ? 0 : norm_ * norm_ / fourth_powers_; }
  double error_ = 0, norm_ = 0, fourth_powers_ = 0, worst_unit_ = 0;
  size_t elements_ = 0;
};

}  // namespace judge
