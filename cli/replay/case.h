// One replay file, read and checked: what was called, with which tensors, and what it should give.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "io/result.h"
#include "io/safetensors.h"
#include "kda/kda.h"

namespace kda::cli::replay {

// What `kda.plan` says of the plan of the captured call; 0 = not said.
struct RecordedPlan {
  bool present = false;
  int64_t max_rows = 0, max_tokens = 0;
  int32_t max_nodes = 0, max_snapshots = 0, layers = 0;
  int32_t heads = 0, value_heads = 0, key_dim = 0, value_dim = 0, conv_width = 0;
  int32_t io_dtype = 0, gate_dtype = 0, beta_dtype = 0;
};

struct Case {
  io::SafetensorsFile file;
  std::string name;  // the file's name without directories

  // Metadata
  int operation = KDA_EXTEND;  // kda_operation; "verify_pending" of conv is conv_verify with pending_tips
  int gate = KDA_GATE_SOFTPLUS;
  int beta = KDA_BETA_SIGMOID;
  bool qk_l2norm = true;
  double scale = 0;        // 0 = not given
  double lower_bound = 0;  // 0 = not given
  int state_layout = KDA_STATE_VK;
  bool null_slot0 = false;
  bool single_root = false;
  int numerics = -1;   // as recorded; -1 = not given
  int backend = -1;    // as recorded; -1 = not given
  std::string target;  // as recorded; "" = not given
  RecordedPlan plan;

  // Geometry, from the tensors
  int64_t rows = 0, tokens = 0;
  int64_t heads = 0, value_heads = 0, key_dim = 0, value_dim = 0;
  int64_t channels = 0, conv_width = 0;
  int conv_layout = KDA_CONV_WC;
  int max_nodes = 1;
  int depth = 1;  // longest path of a draft; 1 in extend and decode

  // Values that decide what is compared with what
  std::vector<int64_t> cu_seqlens;  // [N+1], also where the file has none
  std::vector<int64_t> slots;       // empty if absent
  std::vector<std::string> unused_tensors;

  bool is_conv() const { return operation >= KDA_CONV_EXTEND; }
  bool has(std::string_view tensor) const { return file.find(tensor) != nullptr; }
  bool has_tokens() const { return has(is_conv() ? "x" : "q"); }
  bool is_verify() const;  // verify and conv verify, with or without pending commit
  bool is_commit() const;  // commit and conv commit
  bool is_move() const;
  bool is_null_row(int64_t row) const;
  // Name of the pool tensor: "state" or "conv_state".
  const char* pool_name() const { return is_conv() ? "conv_state" : "state"; }
};

// The name of an operation as in kda.op.
const char* operation_name(int operation);

// Refusals are one line: file, tensor or key, expected, found.
io::Result<Case> read_case(const std::string& path);
io::Result<Case> read_case(io::SafetensorsFile file);

// The two halves of read_case.
io::Outcome read_metadata(Case& replay);
io::Outcome read_tensors(Case& replay);

}  // namespace kda::cli::replay
