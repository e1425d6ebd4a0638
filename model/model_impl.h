// What Model and Session hold. Internal to model/.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "kda/kda.hpp"
#include "model/attention.h"
#include "model/model.h"
#include "model/moe.h"
#include "model/weights.h"

namespace kda::model {

struct Model::Impl {
  Impl(Config config, ModelOptions options, std::unique_ptr<ModelWeights> weights);

  Config config;
  ModelOptions options;
  std::unique_ptr<ModelWeights> weights;
  Threads threads;
  Context context;  // its parallel_for is `threads`
  int kda_layers;   // how many, and with the MLA layers below each kind's layers are counted by themselves
  int mla_layers;
  Plan plan;
};

// How the rows of one pass relate to the sequence and to each other.
enum class Pass : uint8_t {
  extend,  // the next tokens of the sequence
  decode,  // one token
  verify,  // nodes of a draft
};

// Reused memory of a pass, by rows. Names are those of the layers' equations.
struct PassScratch {
  std::vector<float> stream, normed;  // [rows, hidden]
  std::vector<float> qkv, conv_out, f_a, g_a, decay, gate, beta, kda_out;
  std::vector<float> mla_q, mla_queries, mla_latent, mla_out;
  std::vector<float> logits, features;
  std::vector<int32_t> path, path_begin;  // the MLA rows that each row sees beyond the committed ones
  MlpScratch mlp;
};

struct Session::Impl {
  explicit Impl(const Model& model);
  ~Impl();

  // Runs `tokens` through all layers; parents only for verify. Leaves the stream after the last layer and the features.
  // Throws kda::Error if the library refuses a call.
  void run(Pass pass, std::span<const int32_t> tokens, std::span<const int32_t> parents);
  // Logits of the rows [first, first + count) of the last run.
  std::span<const float> compute_logits(int64_t first, int64_t count);
  std::span<const float> features(int64_t first, int64_t count) const;
  // Applies a pending commit to the states of all KDA layers.
  void flush();
  void clear_states();

  void kda_layer(const KdaWeights& weights, int layer, Pass pass, int64_t rows);
  void mla_layer(const MlaWeights& weights, int layer, int64_t rows);
  void set_paths(Pass pass, std::span<const int32_t> parents, int64_t rows);

  const Model& model;
  const Model::Impl& m;
  Pool pool;
  kda_slot slot{-1, 0};
  std::vector<unsigned char> workspace;
  kda_call call;

  int64_t length = 0;                          // tokens in the sequence
  std::vector<std::vector<float>> mla_caches;  // a layer each: [length + draft nodes, kv_lora_rank + rope]
  std::vector<int32_t> draft_parents;          // of the last verify; empty = nothing to accept
  int32_t draft_record_row = 0;
  bool broken = false;  // a call failed between layers: only reset helps

  // Index tensors of every call: one row, in place.
  std::array<int32_t, 1> slot_index{}, record_row{}, pending_tip{}, pending_record_row{};
  std::array<int32_t, 2> cu_seqlens{};
  std::vector<int32_t> parents;
  bool has_pending = false;  // for the verify that is running

  PassScratch s;
};

}  // namespace kda::model
