// One geometry, as the planner and the kernels see it: kda_problem with every default filled in and checked.
#pragma once

#include "core/types.h"

namespace kda {

struct Problem {
  uint32_t operations = 0;  // bits KDA_OPERATION_BIT(op)
  int layers = 1;
  int64_t max_rows = 1;
  int64_t max_tokens = 1;
  int max_nodes = 1;
  int max_snapshots = 0;

  int heads = 1;        // H
  int value_heads = 1;  // HV = n*H
  int key_dim = 1;      // K
  int value_dim = 1;    // V
  int conv_width = 0;   // W; 0 = no conv

  DType io = DType::bf16;          // q, k, v, out, conv x
  DType gate_input = DType::bf16;  // a
  DType beta_input = DType::bf16;  // b
  DType state = DType::fp32;       // fp32 or bf16
  DType conv_state = DType::bf16;
  DType conv_weight = DType::bf16;

  StateLayout state_layout = StateLayout::vk;
  ConvLayout conv_layout = ConvLayout::wc;
  Gate gate = Gate::softplus;
  Beta beta = Beta::sigmoid;
  bool qk_l2norm = true;
  Numerics extend_numerics = Numerics::exact;
  Numerics verify_numerics = Numerics::exact;

  bool null_slot0 = false;
  bool single_root = false;
  bool check_values = false;
  int alignment = 0;
  int64_t max_workspace_bytes = kDefaultWorkspaceLimit;

  int value_heads_per_head() const { return value_heads / heads; }
  int64_t conv_channels() const { return int64_t{2} * heads * key_dim + int64_t{value_heads} * value_dim; }
  int64_t slot_elements() const { return int64_t{value_heads} * value_dim * key_dim; }

  bool operator==(const Problem&) const = default;
};

}  // namespace kda
