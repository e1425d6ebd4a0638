// What a phase of a model costs on a machine: bytes that must move and the time they should take. The numbers it rests
// on are data (data/cost_model.json), each with its source.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "doctor/doctor.h"
#include "kda/kda.h"

namespace kda::cli::plan {

// One layer's call, for one rank.
struct Shape {
  double rows = 1;
  double tokens_per_row = 1;  // of this phase: prompt tokens, 1, draft nodes, or the accepted path
  double heads = 1, value_heads = 1, key_dim = 128, value_dim = 128;
  double state_bytes = 0;   // of a row: the slot of one layer
  double record_bytes = 0;  // of a row: the record of one layer, 0 without speculation
};

// Bytes that the phase has to read and write: states, records, q, k, v, gate and output in 16 bits.
double phase_bytes(int operation, const Shape& shape);

class CostModel {
 public:
  // gpu: the machine asked about; backend: where the plan runs; threads: of the CPU backend.
  CostModel(const doctor::Json& data, const doctor::Gpu& gpu, int backend, int threads);

  // Microseconds of one layer's call; 0 = not known.
  double expected_us(int operation, int numerics, const Shape& shape) const;
  // The measurements behind it, and what was scaled from them.
  std::string basis() const;

 private:
  const doctor::Json& data_;
  std::string gpu_name_;
  double bandwidth_gbs_ = 0;  // 0 = not known for this GPU
  int backend_;
  bool measured_gpu_ = false;
  int threads_;
};

}  // namespace kda::cli::plan
