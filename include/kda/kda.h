/* libkda: the C ABI.
 *
 * Kimi Delta Attention for inference: extend, decode, verify of chains and trees, commit, move, and the short
 * convolution in the same forms. Tensors are DLPack tensors (non-owning `DLTensor`); nothing here owns caller memory.
 *
 * Rules that hold for every function:
 *  - It returns a status: KDA_OK (0) or the number n of the catalogue entry KDA-nnnn (see docs/errors.md).
 *    On a refusal nothing is launched and nothing is written, except the optional kda_error.
 *  - It never prints, aborts, exits or throws.
 *  - Structs carry `struct_size`. Zero-initialise, set struct_size = sizeof(the struct), then set fields: a field of 0
 *    means its default. A shorter struct (older caller) is accepted; a longer one only if its unknown tail is zero.
 *  - Contexts and plans are immutable and may be shared between threads. The caller orders calls that touch the same
 *    slots.
 *
 * Words (shapes as in docs/architecture.md): N rows packed on one token axis of T tokens and cut by cu_seqlens [N+1];
 * H query/key heads, HV value heads (HV = n*H), K and V head sizes; a slot is one sequence's place in a pool; a draft
 * is a tree of nodes given by `parents`.
 *
 * This header is a draft of ABI version 1: until version 1 is frozen, fields may still move.
 */
#ifndef KDA_KDA_H_
#define KDA_KDA_H_

#include <dlpack/dlpack.h>
#include <stddef.h>
#include <stdint.h>

#include "kda/status.h" /* generated: enum of KDA_OK and the KDA_E_* codes */

#if defined(_WIN32)
#define KDA_API __declspec(dllexport)
#else
#define KDA_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define KDA_VERSION_MAJOR 0
#define KDA_VERSION_MINOR 1
#define KDA_VERSION_PATCH 0
#define KDA_ABI_VERSION 0            /* draft; 1 when frozen */
#define KDA_RECORD_VERSION 1         /* format of verify records and conv records */
#define KDA_EXPORTED_STATE_VERSION 1 /* format written by kda_pool_snapshot */

/* ---- Errors ------------------------------------------------------------------------------------------------- */

/* Where the text of a refusal goes. Owned by the caller; may be NULL in every call. Texts are UTF-8, NUL-terminated,
 * cut if too long. */
typedef struct kda_error {
  uint32_t struct_size;
  kda_status status;
  char asked[320];     /* what was asked: "q: fp16 [128, 4, 64]" */
  char supported[320]; /* what is supported: "q: bf16 [T, 4, 64]" */
  char way_out[320];   /* the smallest change that works */
  char message[1024];  /* all of it in one line, starting with "KDA-nnnn: " */
} kda_error;

/* Name of a status ("KDA_E_SHAPE"), its code ("KDA-1003") and its catalogue message. Never NULL. Static memory. */
KDA_API const char* kda_status_name(kda_status status);
KDA_API const char* kda_status_code(kda_status status);
KDA_API const char* kda_status_message(kda_status status);

/* The library's version string, e.g. "0.1.0". Static memory. */
KDA_API const char* kda_version(void);

/* ---- Enumerations (0 is always the default) -------------------------------------------------------------------- */

typedef enum kda_backend {
  KDA_BACKEND_AUTO = 0, /* the best backend that can serve the whole problem */
  KDA_BACKEND_REFERENCE = 1,
  KDA_BACKEND_CPU = 2,
  KDA_BACKEND_CUDA = 3
} kda_backend;

typedef enum kda_dtype { KDA_DTYPE_DEFAULT = 0, KDA_FP32 = 1, KDA_BF16 = 2, KDA_FP16 = 3 } kda_dtype;

/* Gate formulas (a is the raw gate input, g the log-decay):
 *  softplus:    g = -exp(A_log) * softplus(a + dt_bias), softplus(x) = x above 20        (Kimi-Linear)
 *  bounded:     g = lower_bound * sigmoid(exp(A_log) * (a + dt_bias)); A_log may be absent (Kimi K3: -5)
 *  precomputed: g = a */
typedef enum kda_gate { KDA_GATE_SOFTPLUS = 0, KDA_GATE_BOUNDED = 1, KDA_GATE_PRECOMPUTED = 2 } kda_gate;

/* Step size: sigmoid(b), 2*sigmoid(b), or b itself. */
typedef enum kda_beta { KDA_BETA_SIGMOID = 0, KDA_BETA_SIGMOID2 = 1, KDA_BETA_NONE = 2 } kda_beta;

typedef enum kda_state_layout { KDA_STATE_VK = 0, KDA_STATE_KV = 1 } kda_state_layout;

/* conv pool: [slots, W-1, C] (window-major) or [slots, C, W-1] (channel-major) */
typedef enum kda_conv_layout { KDA_CONV_WC = 0, KDA_CONV_CW = 1 } kda_conv_layout;

typedef enum kda_numerics { KDA_EXACT = 0, KDA_FAST = 1 } kda_numerics;

typedef enum kda_operation {
  KDA_EXTEND = 0,
  KDA_DECODE = 1,
  KDA_VERIFY = 2,
  KDA_VERIFY_PENDING = 3, /* verify that first applies the last round's commit */
  KDA_COMMIT = 4,
  KDA_MOVE = 5,
  KDA_CONV_EXTEND = 6,
  KDA_CONV_DECODE = 7,
  KDA_CONV_VERIFY = 8,
  KDA_CONV_VERIFY_PENDING = 9,
  KDA_CONV_COMMIT = 10,
  KDA_CONV_MOVE = 11,
  KDA_OPERATION_COUNT = 12
} kda_operation;

#define KDA_OPERATION_BIT(op) (1u << (op))
#define KDA_ALL_STATE_OPERATIONS 0x03Fu
#define KDA_ALL_CONV_OPERATIONS 0xFC0u

/* ---- Context ----------------------------------------------------------------------------------------------------- */

typedef struct kda_context kda_context;

/* Runs body(arg, i) for every i in [0, count), in any order, on any threads, and returns when all are done. */
typedef void (*kda_parallel_for)(void* user, int64_t count, void (*body)(void* arg, int64_t i), void* arg);

typedef struct kda_context_options {
  uint32_t struct_size;
  int32_t threads;               /* threads of the CPU backend, the caller's included; 0 = one per usable core */
  const char* cpu_target;        /* force a SIMD target by its name in kda_context_describe; NULL = best; copied */
  int32_t cuda_device;           /* 0 = the current device, n = device n-1, -1 = no CUDA */
  kda_parallel_for parallel_for; /* the caller's thread pool instead of an own one; may be NULL */
  void* parallel_for_user;
  /* A GPU to plan for that need not be here: its compute capability times 10 (90 = H100 and H200), 0 = the machine's
   * own. Such a context makes plans with every CUDA kernel, whether or not this build has their code; calls of plans on
   * the CUDA backend are refused with KDA_E_BACKEND. Not together with a cuda_device. */
  int32_t described_gpu;
} kda_context_options;

/* Probes the machine. Environment read here and nowhere else: KDA_CAPTURE=DIR, KDA_CAPTURE_CALLS=N (default 16),
 * KDA_CPU_TARGET=NAME. `options` may be NULL. */
KDA_API kda_status kda_context_create(const kda_context_options* options, kda_context** out, kda_error* error);
KDA_API void kda_context_destroy(kda_context* context); /* NULL is fine; destroy plans first */

/* Machine, backends, SIMD targets, GPUs and the kernel list, as one JSON object. Writes at most `capacity` bytes
 * including the NUL, sets *needed to the full size including it. buffer may be NULL with capacity 0. */
KDA_API kda_status kda_context_describe(const kda_context* context, char* buffer, size_t capacity, size_t* needed);

/* ---- Problem and plan -------------------------------------------------------------------------------------------- */

/* One geometry. One plan serves all its operations; a call may use less than the maxima. */
typedef struct kda_problem {
  uint32_t struct_size;
  int32_t backend;     /* kda_backend */
  uint32_t operations; /* bits KDA_OPERATION_BIT(op) the plan must serve; 0 = all state ops, and conv ops if W > 0 */
  int32_t layers;      /* most layers in one commit, move or snapshot call; 0 = 1 */

  int64_t max_rows;      /* most rows a call; 0 = 1 */
  int64_t max_tokens;    /* most tokens a call, all rows together; 0 = max(max_rows, 1) */
  int32_t max_nodes;     /* most draft nodes a row, up to 64; 0 = 1 */
  int32_t max_snapshots; /* most entries in a snapshot list; 0 = none */

  int32_t heads;       /* H  (1..) */
  int32_t value_heads; /* HV (n*H); 0 = H */
  int32_t key_dim;     /* K  (1..256) */
  int32_t value_dim;   /* V  (1..256); 0 = K */
  int32_t conv_width;  /* W = 2..4; 0 = no conv */

  int32_t io_dtype;          /* q, k, v, out, conv x; default bf16 */
  int32_t gate_dtype;        /* a; io_dtype (default) or fp32 */
  int32_t beta_dtype;        /* b; io_dtype (default) or fp32 */
  int32_t state_dtype;       /* the state pool: fp32 (default) or bf16 */
  int32_t conv_state_dtype;  /* the conv pool: io_dtype (default) or fp32 */
  int32_t conv_weight_dtype; /* conv weights and bias: io_dtype (default) or fp32 */

  int32_t state_layout;    /* kda_state_layout, of every pool */
  int32_t conv_layout;     /* kda_conv_layout */
  int32_t gate;            /* kda_gate */
  int32_t beta;            /* kda_beta */
  int32_t no_qk_l2norm;    /* 1 = q and k are used as they come */
  int32_t extend_numerics; /* kda_numerics */
  int32_t verify_numerics; /* kda_numerics, of verify, pending commit and commit */

  int32_t null_slot0;          /* 1 = slot 0 is null too (see docs/architecture.md, null rule) */
  int32_t single_root;         /* 1 = node 0's parent entry is ignored and means -1 */
  int32_t check_values;        /* 1 = device lists are checked for duplicate and aliased written slots */
  int32_t alignment;           /* bytes every input tensor's data and row strides are aligned to; 0 = element size */
  int64_t max_workspace_bytes; /* 0 = 64 MiB */

  /* Forced kernels: "operation=kernel" pairs separated by commas ("decode=cpu_decode_exact"), NULL = none; copied.
   * A forced kernel that cannot run is a refusal, never replaced. */
  const char* kernels;
} kda_problem;

typedef struct kda_plan kda_plan;

typedef struct kda_plan_info {
  uint32_t struct_size;
  int32_t backend;              /* the chosen kda_backend */
  size_t workspace_bytes;       /* caller-owned, one per call in flight; contents need not persist */
  size_t workspace_alignment;   /* of the workspace's address */
  size_t record_row_bytes;      /* smallest row stride of a record buffer */
  size_t record_node_bytes;     /* what one node and value head adds to it */
  size_t conv_record_row_bytes; /* same for conv records with all C = 2*H*K + HV*V channels */
  size_t record_alignment;      /* of the record buffer's address and row stride */
  size_t input_alignment;       /* required of inputs */
  size_t state_slot_bytes;      /* one slot of a compact pool of state_dtype */
  size_t conv_slot_bytes;
} kda_plan_info;

/* A kernel that the planner considered for one operation. Strings are owned by the plan. */
typedef struct kda_candidate {
  uint32_t struct_size;
  int32_t taken;      /* 1 = this kernel runs */
  const char* kernel; /* its name */
  kda_status status;  /* KDA_OK, or why not */
  const char* reason; /* the first unmet need, or why it was taken or passed over */
} kda_candidate;

/* Makes a plan or refuses. The context must outlive the plan. */
KDA_API kda_status kda_plan_create(const kda_context* context, const kda_problem* problem, kda_plan** out,
                                   kda_error* error);
KDA_API void kda_plan_destroy(kda_plan* plan);

/* The same question without making the plan: KDA_OK or the refusal, in a few microseconds, without allocation. */
KDA_API kda_status kda_can_run(const kda_context* context, const kda_problem* problem, kda_error* error);

KDA_API kda_status kda_plan_get_info(const kda_plan* plan, kda_plan_info* info);
KDA_API int32_t kda_plan_candidate_count(const kda_plan* plan, int32_t operation);
KDA_API kda_status kda_plan_get_candidate(const kda_plan* plan, int32_t operation, int32_t index, kda_candidate* out);
/* The plan as one JSON object; buffer protocol as kda_context_describe. */
KDA_API kda_status kda_plan_describe(const kda_plan* plan, char* buffer, size_t capacity, size_t* needed);
/* Smallest row stride of a conv record buffer for a call on `channels` channels. */
KDA_API size_t kda_plan_conv_record_row_bytes(const kda_plan* plan, int64_t channels);

/* ---- Calls ------------------------------------------------------------------------------------------------------- */

/* Bits ORed into device_status when values in device tensors are bad. */
#define KDA_DEVICE_BAD_SLOT 0x01u       /* a slot beyond its pool: the row was made null */
#define KDA_DEVICE_BAD_PARENT 0x02u     /* a parent out of order: the row was made null */
#define KDA_DEVICE_BAD_CU_SEQLENS 0x04u /* the row wrote nothing */
#define KDA_DEVICE_BAD_ENTRY 0x08u      /* a bad snapshot, node or dst entry: that store was skipped */
#define KDA_DEVICE_BAD_RECORD 0x10u     /* a record header that does not match: the row was skipped */
#define KDA_DEVICE_BAD_TIP 0x20u        /* a tip beyond its record's nodes: the row was skipped */
#define KDA_DEVICE_ALIASED_SLOT 0x40u   /* check_values: a written slot was named twice */

/* Per-call resources. NULL = no workspace, default stream. */
typedef struct kda_call {
  uint32_t struct_size;
  void* stream;    /* CUDA stream of the call */
  void* workspace; /* at least kda_plan_info.workspace_bytes, in the memory of the plan's backend */
  size_t workspace_bytes;
  uint32_t* device_status; /* [1], memory of the plan's device; may be NULL */
} kda_call;

/* Token inputs of one layer. Leading dimensions of 1 are ignored; a may be [T, HV, K] or [T, HV*K]. */
typedef struct kda_tokens {
  const DLTensor* q;       /* [T, H, K] io dtype; any token and head stride, last dimension contiguous */
  const DLTensor* k;       /* [T, H, K] */
  const DLTensor* v;       /* [T, HV, V] */
  const DLTensor* a;       /* [T, HV, K] gate dtype, any token and head stride */
  const DLTensor* b;       /* [T, HV] beta dtype, any strides */
  const DLTensor* A_log;   /* HV elements; fp32, bf16 or fp16; NULL only with the bounded or precomputed gate */
  const DLTensor* dt_bias; /* HV*K elements; NULL = 0 */
  const DLTensor* out;     /* [T, HV, V] io dtype, written; must overlap no input */
  double scale;            /* 0 = K^-0.5 */
  double lower_bound;      /* bounded gate: below 0; 0 = -5 */
} kda_tokens;

/* Which rows, from and to which slots. Index tensors are int32 or int64, any stride, in host memory or, with the CUDA
 * backend, in the memory of the plan's device as well. On CUDA, lists in host memory are read during the call (a
 * captured graph keeps their values) and need the workspace of kda_plan_info; their values are checked before the
 * launch where all lists of the call are in host memory, else by the kernels. */
typedef struct kda_rows {
  const DLTensor* cu_seqlens; /* [N+1]; NULL in decode: token n is row n */
  const DLTensor* slots;      /* [N]; NULL = all rows fresh, no pool is read */
  const DLTensor* has_state;  /* [N] u8 or bool, 0 = start from zero; NULL = all 1 */
  const DLTensor* dst_slots;  /* [N]; NULL = in place */
  const DLTensor* state;      /* [slots, HV, V, K] (vk) or [slots, HV, K, V] (kv), or a conv pool for conv operations */
  const DLTensor* dst_state;  /* pool of dst_slots; NULL = state */
} kda_rows;

/* States to store on the way. A negative entry in any of the three lists skips that store. */
typedef struct kda_snapshots {
  const DLTensor* rows; /* [S] row of this call */
  const DLTensor*
      positions;         /* [S] extend: tokens of this call (0 = the start); commit: a node on the path to the tip */
  const DLTensor* slots; /* [S] destination slot */
  const DLTensor* pool;  /* destination pool, fp32, bf16 or fp16; may be the state pool; NULL = state */
} kda_snapshots;

/* Base addresses of L layers for one call: table[l] (int64 or uint64 [L], device memory on CUDA) replaces the tensor's
 * own data pointer for layer l; without a table layer l is at byte offset l*stride. */
typedef struct kda_layer_addresses {
  const DLTensor* table;
  int64_t stride; /* bytes */
} kda_layer_addresses;

typedef struct kda_extend_args {
  uint32_t struct_size;
  kda_tokens tokens;
  kda_rows rows;
  kda_snapshots snapshots;
} kda_extend_args;

/* Reserved for the fused layer: convolution, normalisation and output gate inside decode and verify. Not built: every
 * field must be NULL, or the call is refused (KDA_E_RESERVED). */
typedef struct kda_fused_layer {
  const DLTensor* conv_weight;
  const DLTensor* conv_bias;
  const DLTensor* conv_state;
  const DLTensor* norm_weight;
  const DLTensor* output_gate;
} kda_fused_layer;

typedef struct kda_decode_args {
  uint32_t struct_size;
  kda_tokens tokens;
  kda_rows rows;
  kda_fused_layer fused; /* reserved */
} kda_decode_args;

/* Verify never writes the state pool, except that with pending tips the committed states are stored (rows.slots or
 * rows.dst_slots) and that node_slots are written. */
typedef struct kda_verify_args {
  uint32_t struct_size;
  kda_tokens tokens;
  kda_rows rows;                       /* dst_slots and dst_state: only with pending_tips */
  const DLTensor* parents;             /* [T] packed, or [N, D] with a row stride; row-relative; NULL = chain */
  const DLTensor* records;             /* u8 [R, row bytes], row stride free; NULL = write none (and nothing pending) */
  const DLTensor* record_rows;         /* [N]; NULL = the row's index; negative = write none for that row */
  const DLTensor* node_states;         /* fp32 or bf16 [R, D, HV, V, K], D >= nodes; row as record_rows; NULL = none */
  const DLTensor* node_slots;          /* [N, D] slots of node_pool; NULL = none */
  const DLTensor* node_pool;           /* NULL = rows.state */
  const DLTensor* pending_tips;        /* [N]; NULL = nothing pending; negative = nothing pending for that row */
  const DLTensor* pending_record_rows; /* [N] rows of `records`, different from record_rows */
  kda_snapshots pending_snapshots;     /* commit's snapshot list, taken while applying the pending commit */
  kda_fused_layer fused;               /* reserved */
} kda_verify_args;

typedef struct kda_commit_args {
  uint32_t struct_size;
  int32_t layers;          /* 0 = 1 */
  kda_rows rows;           /* cu_seqlens unused */
  const DLTensor* tips;    /* [N] last accepted node; -1 = none: the slot keeps every bit */
  const DLTensor* records; /* as verify wrote them */
  const DLTensor* record_rows;
  kda_snapshots snapshots;
  kda_layer_addresses state_layers, dst_layers, record_layers, snapshot_layers;
} kda_commit_args;

/* One simultaneous assignment: every source is read before any destination is written. Also moves conv windows. */
typedef struct kda_move_args {
  uint32_t struct_size;
  int32_t layers;
  const DLTensor* source;            /* a state pool (kda_move) or a conv pool (kda_conv_move) */
  const DLTensor* destination;       /* NULL = source */
  const DLTensor* source_slots;      /* [M] */
  const DLTensor* destination_slots; /* [M] */
  kda_layer_addresses source_layers, destination_layers;
} kda_move_args;

/* Depthwise causal convolution of width W, plus bias, then SiLU. Channels may be any contiguous range of the packed
 * q|k|v channels: slice the tensors. The pool in rows.state holds inputs before the convolution, oldest first. */
typedef struct kda_conv_args {
  uint32_t struct_size;
  const DLTensor* x;      /* [T, C] io dtype, any token stride */
  const DLTensor* weight; /* [C, W]; tap W-1 meets the newest token */
  const DLTensor* bias;   /* [C] or NULL */
  const DLTensor* out;    /* [T, C] io dtype, any token stride */
  kda_rows rows;
  kda_snapshots snapshots;      /* extend: as kda_extend_args; verify with pending commit: pending ones */
  const DLTensor* parents;      /* verify */
  const DLTensor* records;      /* verify: u8 [R, row bytes] conv records */
  const DLTensor* record_rows;  /* verify */
  const DLTensor* pending_tips; /* verify */
  const DLTensor* pending_record_rows;
} kda_conv_args;

/* commit of conv windows: kda_commit_args with conv pools and conv records. */

KDA_API kda_status kda_extend(const kda_plan* plan, const kda_extend_args* args, const kda_call* call,
                              kda_error* error);
KDA_API kda_status kda_decode(const kda_plan* plan, const kda_decode_args* args, const kda_call* call,
                              kda_error* error);
KDA_API kda_status kda_verify(const kda_plan* plan, const kda_verify_args* args, const kda_call* call,
                              kda_error* error);
KDA_API kda_status kda_commit(const kda_plan* plan, const kda_commit_args* args, const kda_call* call,
                              kda_error* error);
KDA_API kda_status kda_move(const kda_plan* plan, const kda_move_args* args, const kda_call* call, kda_error* error);
KDA_API kda_status kda_conv_extend(const kda_plan* plan, const kda_conv_args* args, const kda_call* call,
                                   kda_error* error);
KDA_API kda_status kda_conv_decode(const kda_plan* plan, const kda_conv_args* args, const kda_call* call,
                                   kda_error* error);
KDA_API kda_status kda_conv_verify(const kda_plan* plan, const kda_conv_args* args, const kda_call* call,
                                   kda_error* error);
KDA_API kda_status kda_conv_commit(const kda_plan* plan, const kda_commit_args* args, const kda_call* call,
                                   kda_error* error);
KDA_API kda_status kda_conv_move(const kda_plan* plan, const kda_move_args* args, const kda_call* call,
                                 kda_error* error);

/* ---- State pool runtime ------------------------------------------------------------------------------------------ */

/* Hands out slots of `layers` layers of state and conv windows. Thread-safe. */
typedef struct kda_pool kda_pool;

typedef struct kda_slot {
  int32_t id;          /* the slot's index in the pool tensors; -1 = none */
  uint32_t generation; /* changes at each acquire: a stale handle is an error */
} kda_slot;

typedef struct kda_pool_options {
  uint32_t struct_size;
  int32_t slots;       /* how many sequences; with null_slot0 one more slot is reserved as slot 0 */
  int32_t layers;      /* 0 = the plan's */
  int32_t record_rows; /* record rows a layer for verify: 0 = none; two per live sequence serve pending commits */
  void* memory;        /* caller-owned memory of the planned size, or NULL = allocated by the pool (host only) */
  size_t memory_bytes;
} kda_pool_options;

/* Bytes that kda_pool_create would need; asked before launch. */
KDA_API kda_status kda_pool_planned_bytes(const kda_plan* plan, const kda_pool_options* options, size_t* bytes,
                                          kda_error* error);
KDA_API kda_status kda_pool_create(const kda_plan* plan, const kda_pool_options* options, kda_pool** out,
                                   kda_error* error);
KDA_API void kda_pool_destroy(kda_pool* pool);

KDA_API kda_status kda_pool_acquire(kda_pool* pool, kda_slot* out, kda_error* error);
KDA_API kda_status kda_pool_release(kda_pool* pool, kda_slot slot, kda_error* error);
/* Copies state and windows of all layers to a new slot. Refused while the source has a pending commit. */
KDA_API kda_status kda_pool_fork(kda_pool* pool, kda_slot source, const kda_call* call, kda_slot* out,
                                 kda_error* error);
/* Free and live slots now. */
KDA_API kda_status kda_pool_count(const kda_pool* pool, int32_t* free_slots, int32_t* live_slots);
/* KDA_OK if the handle is live, else the error a use would give. */
KDA_API kda_status kda_pool_check(const kda_pool* pool, kda_slot slot, kda_error* error);

/* Exported state: a versioned, self-describing byte image of one slot (host pools). Buffer protocol as
 * kda_context_describe. Restore checks version, geometry and size and replaces the slot's contents. */
KDA_API kda_status kda_pool_snapshot(const kda_pool* pool, kda_slot slot, void* buffer, size_t capacity, size_t* needed,
                                     kda_error* error);
KDA_API kda_status kda_pool_restore(kda_pool* pool, kda_slot slot, const void* buffer, size_t bytes, kda_error* error);

/* Pending marks: the accepted tip of the last verify that has not been applied to the slot. */
KDA_API kda_status kda_pool_set_pending(kda_pool* pool, kda_slot slot, int32_t tip, int32_t record_row,
                                        kda_error* error);
KDA_API kda_status kda_pool_get_pending(const kda_pool* pool, kda_slot slot, int32_t* tip, int32_t* record_row,
                                        kda_error* error); /* *tip = -1 and *record_row = -1: nothing pending */
KDA_API kda_status kda_pool_clear_pending(kda_pool* pool, kda_slot slot, kda_error* error);

/* Tensors of one layer. The DLTensor's shape and strides point into the pool and live as long as it does. */
KDA_API kda_status kda_pool_state(const kda_pool* pool, int32_t layer, DLTensor* out, kda_error* error);
KDA_API kda_status kda_pool_conv_state(const kda_pool* pool, int32_t layer, DLTensor* out, kda_error* error);
KDA_API kda_status kda_pool_records(const kda_pool* pool, int32_t layer, DLTensor* out, kda_error* error);
KDA_API kda_status kda_pool_conv_records(const kda_pool* pool, int32_t layer, DLTensor* out, kda_error* error);
/* Byte stride between layers of each tensor above, for calls over several layers. */
KDA_API kda_status kda_pool_layer_strides(const kda_pool* pool, int64_t* state, int64_t* conv_state, int64_t* records,
                                          int64_t* conv_records, kda_error* error);

#ifdef __cplusplus
}
#endif
#endif /* KDA_KDA_H_ */
