// Extend, decode, verify, commit and move of the short convolution.
#include "api/build.h"
#include "api/build_layers.h"

namespace kda {
namespace {

constexpr LayersArgument kOneLayer{};

Status view_weights(Call& call, const kda_conv_args& args, ConvLaunch* launch) {
  const Problem& p = call.problem;
  const uint32_t types = type_bit(p.conv_weight);
  const Dim C{"C", launch->channels};
  CheckedTensor weight, bias;
  KDA_TRY(call.open(args.weight, {"weight", types, {C, {"W", p.conv_width}}, Access::read}, &weight));
  if (weight.strides[1] != 1) {
    return call.fail(KDA_E_STRIDE, "weight: taps of a channel are not contiguous", "weight: [C, W] with W contiguous");
  }
  launch->weight = weight.data;
  launch->weight_stride = weight.strides[0];
  launch->weight_dtype = p.conv_weight;
  if (args.bias == nullptr) return KDA_OK;
  KDA_TRY(call.open(args.bias, {"bias", types, {C}, Access::read}, &bias));
  if (bias.strides[0] != 1) {
    return call.fail(KDA_E_STRIDE, "bias: channels are not contiguous", "bias: [C] contiguous");
  }
  launch->bias = bias.data;
  return KDA_OK;
}

// x, out, weights, and the rows that cut them.
Status view_inputs(Call& call, Operation operation, const kda_conv_args& args, ConvLaunch* launch) {
  Rows& rows = launch->rows;
  rows.tokens = launch->channels = kAny;
  KDA_TRY(view_channels(call, args.x, "x", Access::read, &rows.tokens, &launch->channels, &launch->x));
  KDA_TRY(view_channels(call, args.out, "out", Access::write, &rows.tokens, &launch->channels, &launch->out));
  KDA_TRY(view_weights(call, args, launch));
  if (args.rows.cu_seqlens == nullptr && operation == Operation::conv_decode) {
    rows.count = rows.tokens;
    return check_row_count(call, rows.count);
  }
  KDA_TRY(count_rows(call, args.rows.cu_seqlens, "cu_seqlens", 1, &rows.count));
  return view_list(call, args.rows.cu_seqlens, "cu_seqlens", {"N+1", rows.count + 1}, &rows.cu_seqlens);
}

int64_t most_tokens_per_row(const Problem& problem, Operation operation) {
  if (operation == Operation::conv_decode) return 1;
  return operation == Operation::conv_extend ? INT64_MAX : problem.max_nodes;
}

// Arguments that only some forms take.
Status check_form(const Call& call, Operation operation, const kda_conv_args& args) {
  const bool verify = operation == Operation::conv_verify || operation == Operation::conv_verify_pending;
  if (!verify && (args.parents != nullptr || args.records != nullptr || args.record_rows != nullptr ||
                  args.pending_tips != nullptr || args.pending_record_rows != nullptr)) {
    return call.fail(KDA_E_COMBINATION, "parents, records or pending lists outside verify",
                     "they belong to kda_conv_verify");
  }
  const bool lists = args.rows.dst_slots != nullptr || args.rows.dst_state != nullptr || args.snapshots.rows != nullptr;
  if (operation == Operation::conv_verify && lists) {
    return call.fail(KDA_E_COMBINATION, "dst_slots, dst_state or snapshots without pending_tips",
                     "destinations only with a pending commit: plain verify writes no pool");
  }
  if (operation == Operation::conv_decode && args.snapshots.rows != nullptr) {
    return call.fail(KDA_E_COMBINATION, "snapshots in decode", "snapshots in extend, commit and pending commit");
  }
  return KDA_OK;
}

}  // namespace

Status expect_records(const Call& call, const ConvPools& pools, RecordExpectation* expected) {
  if (pools.channels == kAny) {
    return call.fail(KDA_E_NULL, "state and dst_state: NULL", "a conv pool, which says how many channels there are");
  }
  *expected = {conv_record_layout(call.problem, pools.channels).row_bytes,
               conv_record_form(call.problem, pools.channels)};
  return KDA_OK;
}

Status build_conv(Call& call, Operation operation, const kda_conv_args& args, ConvLaunch* launch) {
  KDA_TRY(check_form(call, operation, args));
  KDA_TRY(view_inputs(call, operation, args, launch));
  Rows& rows = launch->rows;
  ConvPools pools{launch->channels};
  KDA_TRY(view_row_lists(call, args.rows, &rows));
  KDA_TRY(view_row_pools(call, pools, args.rows, rows, kOneLayer, kOneLayer, &launch->state, &launch->dst));
  KDA_TRY(check_cu_seqlens(call, rows, most_tokens_per_row(call.problem, operation)));
  KDA_TRY(check_slots(call, rows, launch->state.slots));
  KDA_TRY(view_draft(call, args.parents, rows, &launch->draft));
  KDA_TRY(view_list(call, args.record_rows, "record_rows", {"N", rows.count}, &launch->record_rows));
  if (args.records != nullptr) {
    KDA_TRY(view_records(call, args.records, conv_record_layout(call.problem, launch->channels).row_bytes,
                         Access::write, kOneLayer, &launch->records));
  }
  KDA_TRY(view_pending(call, args.pending_tips, args.pending_record_rows, args.records, rows, &launch->pending));
  KDA_TRY(view_snapshots(call, pools, args.snapshots, kOneLayer, launch->state, &launch->snapshots));
  KDA_TRY(call.check_overlaps());
  if (!call.lists_on_host()) return KDA_OK;

  KDA_TRY(check_parents(call, rows, launch->draft));
  if (launch->records.present()) {
    KDA_TRY(check_record_rows(call, rows, launch->record_rows, launch->records.rows, launch->pending));
  }
  const bool pending = operation == Operation::conv_verify_pending;
  const Replay replay{launch->records, conv_record_form(call.problem, launch->channels), launch->pending.tips,
                      launch->pending.record_rows, call.memory_on_host()};
  if (pending && launch->pending.present()) {
    KDA_TRY(check_tips(call, rows, replay, "pending_tips", "pending_record_rows"));
  }
  const SlotLists<ConvPool> lists{.rows = rows,
                                  .state = launch->state,
                                  .dst = operation == Operation::conv_verify ? nullptr : &launch->dst,
                                  .snapshots = &launch->snapshots,
                                  .replay = pending ? &replay : nullptr};
  return check_lists(call, lists, launch->channels);
}

Status build_conv_commit(Call& call, const kda_commit_args& args, ConvCommitLaunch* launch) {
  ConvPools pools;
  KDA_TRY(build_commit_of(call, args, pools, launch));
  launch->channels = pools.channels;
  return KDA_OK;
}

Status build_conv_move(Call& call, const kda_move_args& args, ConvMoveLaunch* launch) {
  ConvPools pools;
  KDA_TRY(build_move_of(call, args, pools, launch));
  launch->channels = pools.channels;
  return KDA_OK;
}

}  // namespace kda
