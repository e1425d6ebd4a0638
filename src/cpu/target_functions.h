// What one SIMD target offers to the rest of the cpu backend: a table of functions without SIMD types. Everything whose
// bits depend on the target is behind it; walking rows, trees and pools is plain C++ compiled once.
#pragma once

#include "core/launch.h"
#include "core/record_format.h"

namespace kda::cpu {

// Key channels are padded with zeros to a multiple of this, so that no loop over K has a tail. A multiple of every
// target's lanes.
constexpr int kKeyMultiple = 16;
constexpr int64_t padded_key(int64_t key_dim) { return (key_dim + kKeyMultiple - 1) / kKeyMultiple * kKeyMultiple; }
// Value rows are padded so that vectors over V may be read and written whole.
constexpr int64_t padded_value(int64_t value_dim) { return padded_key(value_dim); }

// One token of one value head, ready for the recurrence. All fp32. With d = exp(g), k and q normalised, q scaled:
struct PreparedToken {
  float* decay;          // [K padded] d
  float* key;            // [K padded] k
  float* decayed_key;    // [K padded] d*k
  float* decayed_query;  // [K padded] d*q
  float* value;          // [V padded]
  float* correction;     // [V padded] u, written by step
  float* out;            // [V padded] written by step
  float key_query;       // k.q
  float beta;
};

// Rows of a state: K contiguous, padded with zeros to padded_key(K).
struct StateRows {
  std::byte* data = nullptr;
  DType dtype = DType::fp32;  // fp32 or bf16
  int64_t stride = 0;         // elements between rows; 0 = all rows are the same (zeros)
};

// One token applied to some rows of a state. With S the source row:
//   update:  S' = S*decay + u*key               stored to target, rounded to its dtype
//   next:    u_next = beta*(v - S'.(d*k)),  out_next = S'.(d*q) + (k.q)*u_next      (S' = S without update)
// Every sum over K is made in one order: lane l of the vector adds k = l, l + lanes, ... by multiply-add, then
// neighbouring lanes are added pairwise until one is left.
struct StepArgs {
  StateRows source, target;
  const PreparedToken* update = nullptr;
  PreparedToken* next = nullptr;
  int64_t first_row = 0;  // index into value, correction and out of source's row 0
  int64_t rows = 0;
  int64_t key_padded = 0;
};

// Gate, step size and scales of one value head, constant over a call.
struct HeadParameters {
  Gate gate;
  Beta beta;
  bool qk_l2norm;
  float scale, lower_bound;
  float exp_A;        // exp(A_log), 1 without
  const float* bias;  // [K padded], 0 without
};

struct PrepareArgs {
  const HeadParameters* head;
  const std::byte *q, *k, *v, *a, *b;  // this token's and head's elements
  DType io, gate_dtype, beta_dtype;
  int64_t key_dim, value_dim;
  PreparedToken* token;
  NormFactor* key_rnorm;  // written
};

// Tokens that the chunked form takes together. Fast snapshots are at its multiples (and at a row's end).
constexpr int kChunkTokens = kFastSnapshotStep;

// Floats of ChunkArgs::scratch, enough for every target (target_avx512_amx.cpp uses them).
constexpr int64_t chunk_scratch(int64_t key_padded) {
  const int64_t pairs = (key_padded + 31) / 32 * 16;
  return pairs * 128 + key_padded * 16 + 2 * 256;
}

// A chunk of one value head in the chunked form (chunk-inl.h). Vectors of consecutive tokens lie token_stride apart.
struct ChunkArgs {
  // mix_chunk overwrites key, decayed_key, decayed_query; run_chunk correction and out, those of all kChunkTokens
  PreparedToken* tokens;
  int count;  // 1..kChunkTokens
  int64_t token_stride;
  int64_t key_padded;
  float* total_decay;          // [K padded] written by mix_chunk
  float *key_mix, *query_mix;  // [kChunkTokens][kChunkTokens], below the diagonal, written by mix_chunk
  float* state;                // run_chunk: [K padded][V padded], rows state_stride apart
  int64_t state_stride;
  int64_t first_column, columns;  // run_chunk: part of V, a multiple of 16
  float* scratch;                 // [chunk_scratch]
};

struct ConvStepArgs {
  const float* taps[kMaxConvWidth];     // [W][channels] inputs, oldest first
  const float* weights[kMaxConvWidth];  // [W][channels]
  const float* bias;                    // [channels] or null
  float* out;
  int width;
  int64_t channels;
};

struct TargetFunctions {
  const char* name;
  int lanes;
  void (*widen)(const std::byte* from, DType dtype, int64_t count, float* to);
  void (*narrow)(const float* from, int64_t count, DType dtype, std::byte* to);
  float (*exp)(float x);
  void (*prepare)(const PrepareArgs&);
  void (*normalise_key)(float* key, int64_t padded, NormFactor factor);  // what prepare does to k
  // [count] exp(g) and its logarithm in fp16, what fast records of 16-bit gates keep; decay is padded.
  void (*store_log_decay)(const float* decay, int64_t count, std::byte* to);
  void (*load_log_decay)(const std::byte* from, int64_t count, int64_t padded, float* decay);
  void (*step)(const StepArgs&);
  // step with next alone, then with the same token as update: one token in one pass over the rows. update is ignored;
  // source and target are the same rows or apart.
  void (*decode)(const StepArgs&);
  void (*mix_chunk)(const ChunkArgs&);
  void (*run_chunk)(const ChunkArgs&);  // after mix_chunk, once for each part of V
  // The middle of run_chunk: predictions in correction and query sums in out become corrections and outputs.
  void (*solve_chunk)(const ChunkArgs&);
  // to[c][r] = from[r][c]; rows and columns multiples of 4, strides in elements.
  void (*transpose)(const float* from, int64_t from_stride, int64_t rows, int64_t columns, float* to,
                    int64_t to_stride);
  void (*conv_step)(const ConvStepArgs&);
  // [channels][width] -> width rows of channels, and back; width 1..4. Rows may be written or read to a whole vector.
  void (*split_taps)(const float* from, int width, int64_t channels, float* const* to);
  void (*join_taps)(const float* const* from, int width, int64_t channels, float* to);
};

// The table of a target index (cpu/targets.h).
const TargetFunctions& target_functions(int target);

}  // namespace kda::cpu
