#include "cli/plan/estimate.h"

#include <algorithm>

namespace kda::cli::plan {
namespace {

constexpr double kMeasuredHeadSize = 128.0 * 128.0;  // K * V of the measurements

}  // namespace

double phase_bytes(int operation, const Shape& s) {
  constexpr double kElement = 2;
  const double token = kElement * (2 * s.heads * s.key_dim + s.value_heads * (s.key_dim + 2 * s.value_dim));
  const double tokens = s.rows * s.tokens_per_row * token;
  switch (operation) {
    case KDA_VERIFY:  // the state is read, the record written
      return tokens + s.rows * (s.state_bytes + s.record_bytes);
    case KDA_VERIFY_PENDING:  // the last round's record read as well, and the committed state written
      return tokens + s.rows * 2 * (s.state_bytes + s.record_bytes);
    case KDA_COMMIT:  // no tokens: the record is all it reads
      return s.rows * (2 * s.state_bytes + s.record_bytes);
    default:
      return tokens + s.rows * 2 * s.state_bytes;
  }
}

CostModel::CostModel(const doctor::Json& data, const doctor::Gpu& gpu, int backend, int threads)
    : data_(data), gpu_name_(gpu.name), backend_(backend), threads_(std::max(1, threads)) {
  const doctor::Json& measured = data_.at("gpu");
  measured_gpu_ = gpu.name.find(measured.at("measured_on").get<std::string>()) != std::string::npos;
  bandwidth_gbs_ = gpu.facts.value("bandwidth_gbs", 0.0) * measured.at("copy_gbs").get<double>() /
                   measured.at("peak_gbs").get<double>();
}

double CostModel::expected_us(int operation, int numerics, const Shape& s) const {
  const double bytes = phase_bytes(operation, s), size = s.key_dim * s.value_dim / kMeasuredHeadSize;
  const double token_units = s.rows * s.value_heads * s.tokens_per_row * size;
  if (backend_ == KDA_BACKEND_REFERENCE) return 0;
  if (backend_ == KDA_BACKEND_CPU) {
    const double memory = bytes / data_.at("cpu").at("bandwidth_gbs").get<double>() / 1e3;
    return std::max(memory, token_units * data_.at("cpu").at("unit_us").get<double>() / threads_);
  }
  if (bandwidth_gbs_ <= 0) return 0;
  const doctor::Json& gpu = data_.at("gpu");
  const char* phase = operation == KDA_EXTEND   ? "extend"
                      : operation == KDA_DECODE ? "decode"
                      : operation == KDA_COMMIT ? "commit"
                                                : "verify";
  const doctor::Json& cost = gpu.at(phase).at(numerics == KDA_FAST ? "fast" : "exact");
  // A row's tokens follow one another, however few rows there are.
  const double arithmetic =
      std::max(token_units * cost.at("unit_us").get<double>(), s.tokens_per_row * cost.at("step_us").get<double>());
  return gpu.at("launch_us").get<double>() + bytes / bandwidth_gbs_ / 1e3 + arithmetic;
}

std::string CostModel::basis() const {
  if (backend_ == KDA_BACKEND_REFERENCE) return "nothing: the reference kernels are for comparing, and are not timed";
  if (backend_ == KDA_BACKEND_CPU) return data_.at("cpu").at("basis").get<std::string>();
  std::string basis = data_.at("gpu").at("basis").get<std::string>();
  if (measured_gpu_) return basis;
  if (bandwidth_gbs_ <= 0)
    return "nothing: the memory bandwidth of " + gpu_name_ + " is not known, so no time is given";
  return "scaled to " + gpu_name_ + " by memory bandwidth alone, not measured there; measured: " + basis;
}

}  // namespace kda::cli::plan
