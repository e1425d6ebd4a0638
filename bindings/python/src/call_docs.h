// Docstrings of the operations: what each argument is, in shapes and dtypes. Python shows them by help(Plan.extend).
#pragma once

#define KDA_DOC_TOKENS                                                                                  \
  "q, k: [T, H, K], v: [T, HV, V] of io_dtype; any token and head stride, last dimension contiguous.\n" \
  "a: [T, HV, K] or [T, HV*K] of gate_dtype: raw gate, or log decay with the precomputed gate.\n"       \
  "b: [T, HV] of beta_dtype, any strides: step logit, or the step itself with beta \"none\".\n"         \
  "A_log, dt_bias: HV and HV*K elements, fp32, bf16 or fp16; optional where the gate allows.\n"         \
  "out: [T, HV, V] of io_dtype, written. scale: default K**-0.5. lower_bound: bounded gate, default -5.\n"
#define KDA_DOC_ROWS                                                                                               \
  "state: [slots, HV, V, K] (vk) or [slots, HV, K, V] (kv), fp32 or bf16, a slot compact, slot stride free.\n"     \
  "slots: [N] int32 or int64, negative = null row; absent = every row starts from zero.\n"                         \
  "has_state: [N] uint8 or bool, 0 = start from zero. dst_slots: [N], where final states go; absent = in place.\n" \
  "dst_state: the pool of dst_slots (default: state). cu_seqlens: [N+1] cuts the token axis into rows.\n"
#define KDA_DOC_SNAPSHOTS                                                                                         \
  "snapshot_rows, snapshot_positions, snapshot_slots: [S], a negative entry skips that store; snapshots: their\n" \
  "pool, fp32, bf16 or fp16 (default: state).\n"
#define KDA_DOC_RECORDS "records: uint8 [R, record_row_bytes]. record_rows: [N] (default: the row's index).\n"
#define KDA_DOC_LAYERS \
  "layers: how many in one call. *_layer_stride: bytes between layers; *_table: int64 [layers] of base addresses.\n"
#define KDA_DOC_END                                                                                                 \
  "workspace: uint8 [workspace_bytes] (default: kept by the plan on the CPU). stream: CUDA stream as an integer\n"  \
  "(default: the producer's current one). device_status: uint32 [1].\n"                                             \
  "Raises libkda.Error for wrong shapes, dtypes, strides, devices, values and read-only outputs: then nothing is\n" \
  "written. Raises TypeError for an unknown keyword. Releases the GIL."

#define KDA_DOC_EXTEND                                                                                          \
  "Rows of any length from their slots; final states in place or to dst_slots.\n\n" KDA_DOC_TOKENS KDA_DOC_ROWS \
      KDA_DOC_SNAPSHOTS KDA_DOC_END
#define KDA_DOC_DECODE                                                                                               \
  "One token a row (without cu_seqlens token n is row n), in place or to dst_slots.\n\n" KDA_DOC_TOKENS KDA_DOC_ROWS \
      KDA_DOC_END
#define KDA_DOC_VERIFY                                                                                               \
  "The nodes of each row's draft from the row's committed state. The state pool is not written, unless\n"            \
  "pending_tips or node_slots ask for it.\n\n"                                                                       \
  "parents: [T] packed or [N, D], relative to the row, -1 = the committed state; absent = a chain.\n"                \
  "node_states: fp32 or bf16 [R, D, HV, V, K], the state after every node. node_slots: [N, D] slots of node_pool.\n" \
  "pending_tips, pending_record_rows: [N], last round's commit, applied first; negative = nothing "                  \
  "pending.\n" KDA_DOC_RECORDS KDA_DOC_TOKENS KDA_DOC_ROWS KDA_DOC_SNAPSHOTS KDA_DOC_END
#define KDA_DOC_COMMIT                                                                                            \
  "Rebuilds the accepted state along root -> tip from slot and records.\n\n"                                      \
  "tips: [N] last accepted node of each row; -1 = none, the slot keeps every bit.\n" KDA_DOC_RECORDS KDA_DOC_ROWS \
      KDA_DOC_SNAPSHOTS KDA_DOC_LAYERS KDA_DOC_END
#define KDA_DOC_MOVE                                                                                               \
  "Slot to slot copies as one simultaneous assignment: every source is read before any is written.\n\n"            \
  "source, destination: pools of one geometry (destination defaults to source); source_slots, destination_slots: " \
  "[M].\n" KDA_DOC_LAYERS KDA_DOC_END
#define KDA_DOC_CONV_TENSORS                                                                                   \
  "x, out: [T, C] of io_dtype, any token stride. weight: [C, W], tap W-1 meets the newest token; bias: [C].\n" \
  "state: [slots, W-1, C] (wc) or [slots, C, W-1] (cw), inputs before the convolution, oldest first.\n"        \
  "parents, pending_tips, pending_record_rows: verify only, as in Plan.verify.\n"
#define KDA_DOC_CONV(what) what "\n\n" KDA_DOC_CONV_TENSORS KDA_DOC_ROWS KDA_DOC_SNAPSHOTS KDA_DOC_RECORDS KDA_DOC_END
