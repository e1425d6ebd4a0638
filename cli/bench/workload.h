// One operation on random inputs, ready to be called again and again on rotating slots.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "kda/kda.hpp"

namespace kda::cli::bench {

struct Spec {
  std::string name;
  kda_operation operation;
  int rows, tokens;  // tokens, nodes or recorded nodes a row
  int heads, dim;    // H = HV, K = V
  kda_dtype state;
  int32_t numerics;
  bool tree;  // verify: parents of a binary tree instead of a chain
  bool cold;  // slots rotate through more memory than the caches hold
  int layers = 1;

  int64_t units() const { return int64_t{rows} * heads * layers; }
  bool conv() const { return operation >= KDA_CONV_EXTEND; }
};

class Workload {
 public:
  // Throws kda::Error. sets: how many groups of slots calls rotate through.
  Workload(const Context& context, const Spec& spec, int32_t backend, int64_t sets);
  void run(int64_t set);
  int64_t sets() const { return sets_; }
  // After run(0): outputs and the states of set 0, as doubles.
  std::vector<double> outputs() const;
  std::vector<double> states() const;
  int64_t set_bytes() const { return set_bytes_; }

 private:
  struct Buffer {
    std::vector<std::byte> bytes;
    kda_dtype dtype = KDA_FP32;
    void fill(kda_dtype type, int64_t count, std::mt19937& random, float scale, float shift = 0);
    double at(int64_t i) const;
    void* data() { return bytes.data(); }
  };
  void bind_inputs();

  Spec spec_;
  int64_t sets_, set_bytes_;
  std::unique_ptr<Plan> plan_;
  Buffer q_, k_, v_, a_, b_, A_log_, dt_bias_, out_, pool_, records_, weight_;
  std::vector<int32_t> cu_, parents_, tips_, slots_;
  std::vector<std::byte> workspace_;
  kda_call call_;
  Tensor q, k, v, a, b, A_log, dt_bias, out, pool, records, cu, parents, tips, slots, weight;
};

}  // namespace kda::cli::bench
