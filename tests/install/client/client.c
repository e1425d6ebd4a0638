/* A C11 client of the installed library: verifies a draft tree and commits one of its nodes.
 *
 * With q = k = the first unit vector, log-decay ln 0.5 and step 0.5 the state's first column obeys s' = s/4 + v/2 along
 * every path. The committed state is 8, the tree's parents are -1 0 0 1 2 and its values 4 8 16 0 32, so the nodes'
 * states are 4 5 9 1.25 18.25. Accepting 0 -> 2 must commit 9. */
#include <kda/kda.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { K = 4, V = 2, NODES = 5, SLOTS = 3 };

static int failures = 0;

static void expect(int ok, const char* what) {
  if (!ok) {
    fprintf(stderr, "FAIL: %s\n", what);
    ++failures;
  }
}

static int ok(kda_status status, const kda_error* error) {
  if (status != KDA_OK) fprintf(stderr, "%s\n", error->message);
  return status == KDA_OK;
}

static DLTensor tensor(void* data, DLDataType dtype, int rank, int64_t* shape) {
  DLTensor t;
  memset(&t, 0, sizeof t);
  t.data = data;
  t.device.device_type = kDLCPU;
  t.ndim = rank;
  t.dtype = dtype;
  t.shape = shape; /* strides NULL = compact */
  return t;
}

int main(void) {
  const DLDataType fp32 = {kDLFloat, 32, 1}, i32 = {kDLInt, 32, 1};
  kda_error error = {.struct_size = sizeof error};

  kda_context* context = NULL;
  if (!ok(kda_context_create(NULL, &context, &error), &error)) return 1;

  kda_problem problem = {.struct_size = sizeof problem};
  problem.backend = KDA_BACKEND_CPU;
  problem.max_rows = 1;
  problem.max_tokens = NODES;
  problem.max_nodes = NODES;
  problem.heads = 1;
  problem.key_dim = K;
  problem.value_dim = V;
  problem.io_dtype = KDA_FP32;
  problem.gate = KDA_GATE_PRECOMPUTED;
  problem.beta = KDA_BETA_NONE;
  expect(kda_can_run(context, &problem, &error) == KDA_OK, "can_run says yes");
  kda_plan* plan = NULL;
  if (!ok(kda_plan_create(context, &problem, &plan, &error), &error)) return 1;

  kda_plan_info info = {.struct_size = sizeof info};
  if (!ok(kda_plan_get_info(plan, &info), &error)) return 1;
  const size_t workspace_bytes =
      (info.workspace_bytes + info.workspace_alignment - 1) / info.workspace_alignment * info.workspace_alignment;
  kda_call call = {.struct_size = sizeof call, .workspace_bytes = workspace_bytes};
  call.workspace = aligned_alloc(info.workspace_alignment, workspace_bytes);

  kda_pool_options pool_options = {.struct_size = sizeof pool_options, .slots = SLOTS, .record_rows = 1};
  size_t planned = 0;
  expect(kda_pool_planned_bytes(plan, &pool_options, &planned, &error) == KDA_OK && planned > 0, "bytes are planned");
  kda_pool* pool = NULL;
  if (!ok(kda_pool_create(plan, &pool_options, &pool, &error), &error)) return 1;
  kda_slot slot, fork;
  if (!ok(kda_pool_acquire(pool, &slot, &error), &error)) return 1;

  DLTensor state, records;
  if (!ok(kda_pool_state(pool, 0, &state, &error), &error)) return 1;
  if (!ok(kda_pool_records(pool, 0, &records, &error), &error)) return 1;
  float* slot_state = (float*)((char*)state.data + state.byte_offset) + (int64_t)slot.id * state.strides[0];
  memset(slot_state, 0, V * K * sizeof(float));
  for (int v = 0; v < V; ++v) slot_state[v * K] = 8;

  float q[NODES][K] = {{0}}, k[NODES][K] = {{0}}, v[NODES][V], a[NODES][K], b[NODES], out[NODES][V];
  const float values[NODES] = {4, 8, 16, 0, 32};
  int32_t parents[NODES] = {-1, 0, 0, 1, 2}, cu_seqlens[2] = {0, NODES}, slots[1] = {slot.id}, tips[1] = {2};
  for (int t = 0; t < NODES; ++t) {
    q[t][0] = k[t][0] = 1;
    for (int i = 0; i < V; ++i) v[t][i] = values[t];
    for (int i = 0; i < K; ++i) a[t][i] = (float)log(0.5);
    b[t] = 0.5f;
  }
  int64_t key_shape[3] = {NODES, 1, K}, value_shape[3] = {NODES, 1, V}, step_shape[2] = {NODES, 1};
  int64_t node_shape[1] = {NODES}, cu_shape[1] = {2}, row_shape[1] = {1};
  DLTensor tq = tensor(q, fp32, 3, key_shape), tk = tensor(k, fp32, 3, key_shape), tv = tensor(v, fp32, 3, value_shape);
  DLTensor ta = tensor(a, fp32, 3, key_shape), tb = tensor(b, fp32, 2, step_shape),
           tout = tensor(out, fp32, 3, value_shape);
  DLTensor tparents = tensor(parents, i32, 1, node_shape), tcu = tensor(cu_seqlens, i32, 1, cu_shape);
  DLTensor tslots = tensor(slots, i32, 1, row_shape), ttips = tensor(tips, i32, 1, row_shape);

  kda_verify_args verify = {.struct_size = sizeof verify};
  verify.tokens = (kda_tokens){.q = &tq, .k = &tk, .v = &tv, .a = &ta, .b = &tb, .out = &tout, .scale = 1};
  verify.rows = (kda_rows){.cu_seqlens = &tcu, .slots = &tslots, .state = &state};
  verify.parents = &tparents;
  verify.records = &records;
  if (!ok(kda_verify(plan, &verify, &call, &error), &error)) return 1;
  const float expected[NODES] = {4, 5, 9, 1.25f, 18.25f};
  for (int t = 0; t < NODES; ++t) expect(fabsf(out[t][V - 1] - expected[t]) < 1e-4f, "a node's output is its path's");
  expect(slot_state[0] == 8, "verify leaves the pool alone");

  expect(kda_pool_set_pending(pool, slot, 2, 0, &error) == KDA_OK, "a tip is marked as pending");
  expect(kda_pool_fork(pool, slot, NULL, &fork, &error) != KDA_OK, "a pending slot does not fork");
  kda_commit_args commit = {.struct_size = sizeof commit};
  commit.rows = (kda_rows){.slots = &tslots, .state = &state};
  commit.tips = &ttips;
  commit.records = &records;
  if (!ok(kda_commit(plan, &commit, &call, &error), &error)) return 1;
  expect(kda_pool_clear_pending(pool, slot, &error) == KDA_OK, "the mark is cleared");
  expect(fabsf(slot_state[0] - 9) < 1e-4f, "commit stores the accepted node's state, not the branch's beside it");

  if (ok(kda_pool_fork(pool, slot, NULL, &fork, &error), &error)) {
    const float* copy = (float*)((char*)state.data + state.byte_offset) + (int64_t)fork.id * state.strides[0];
    expect(memcmp(copy, slot_state, V * K * sizeof(float)) == 0, "a fork has the same bits");
    expect(kda_pool_release(pool, fork, &error) == KDA_OK, "a slot is released");
    expect(kda_pool_release(pool, fork, &error) != KDA_OK, "a stale handle is an error");
  } else {
    ++failures;
  }

  problem.key_dim = 257;
  const kda_status refused = kda_can_run(context, &problem, &error);
  expect(refused != KDA_OK && strncmp(error.message, kda_status_code(refused), 8) == 0,
         "a refusal starts with its code");
  expect(error.way_out[0] != 0, "a refusal names the way out");

  free(call.workspace);
  kda_pool_destroy(pool);
  kda_plan_destroy(plan);
  kda_context_destroy(context);
  if (failures == 0) printf("client.c: libkda %s: ok\n", kda_version());
  return failures != 0;
}
