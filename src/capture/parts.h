// What a capture reads of any launch: the parts it has, null where it has none.
#pragma once

#include "core/launch.h"

namespace kda {

template <class Pool>
struct CallParts {
  Rows move_rows;  // a move's lists, in the form of rows: source slots, destination slots
  const Rows* rows = nullptr;
  const Pool* state = nullptr;
  const Pool* dst = nullptr;
  const TokenInputs* tokens = nullptr;
  const ConvLaunch* conv = nullptr;
  const TokenView* out = nullptr;
  const SnapshotList<Pool>* snapshots = nullptr;
  const Draft* draft = nullptr;
  const RecordBuffer* records = nullptr;
  const IndexView* record_rows = nullptr;
  const PendingCommit* pending = nullptr;
  const IndexView* tips = nullptr;
  const IndexView* node_slots = nullptr;
  const Pool* node_pool = nullptr;
  int64_t channels = 0;
};

inline CallParts<StatePool> parts_of(const ExtendLaunch& l) {
  return {.rows = &l.rows,
          .state = &l.state,
          .dst = &l.dst,
          .tokens = &l.tokens,
          .out = &l.tokens.out,
          .snapshots = &l.snapshots};
}
inline CallParts<StatePool> parts_of(const DecodeLaunch& l) {
  return {.rows = &l.rows, .state = &l.state, .dst = &l.dst, .tokens = &l.tokens, .out = &l.tokens.out};
}
inline CallParts<StatePool> parts_of(const VerifyLaunch& l) {
  return {.rows = &l.rows,
          .state = &l.state,
          .dst = &l.dst,
          .tokens = &l.tokens,
          .out = &l.tokens.out,
          .snapshots = &l.pending_snapshots,
          .draft = &l.draft,
          .records = &l.records,
          .record_rows = &l.record_rows,
          .pending = &l.pending,
          .node_slots = &l.node_slots,
          .node_pool = &l.node_pool};
}
inline CallParts<StatePool> parts_of(const CommitLaunch& l) {
  return {.rows = &l.rows,
          .state = &l.state,
          .dst = &l.dst,
          .snapshots = &l.snapshots,
          .records = &l.records,
          .record_rows = &l.record_rows,
          .tips = &l.tips};
}
inline CallParts<ConvPool> parts_of(const ConvLaunch& l) {
  return {.rows = &l.rows,
          .state = &l.state,
          .dst = &l.dst,
          .conv = &l,
          .out = &l.out,
          .snapshots = &l.snapshots,
          .draft = &l.draft,
          .records = &l.records,
          .record_rows = &l.record_rows,
          .pending = &l.pending,
          .channels = l.channels};
}
inline CallParts<ConvPool> parts_of(const ConvCommitLaunch& l) {
  return {.rows = &l.rows,
          .state = &l.state,
          .dst = &l.dst,
          .snapshots = &l.snapshots,
          .records = &l.records,
          .record_rows = &l.record_rows,
          .tips = &l.tips,
          .channels = l.channels};
}
inline Rows rows_of_move(const IndexView& source_slots, const IndexView& destination_slots) {
  Rows rows;
  rows.count = source_slots.count;
  rows.slots = source_slots;
  rows.dst_slots = destination_slots;
  return rows;
}
inline CallParts<StatePool> parts_of(const MoveLaunch& l) {
  return {.move_rows = rows_of_move(l.source_slots, l.destination_slots), .state = &l.source, .dst = &l.destination};
}
inline CallParts<ConvPool> parts_of(const ConvMoveLaunch& l) {
  return {.move_rows = rows_of_move(l.source_slots, l.destination_slots),
          .state = &l.source,
          .dst = &l.destination,
          .channels = l.channels};
}

}  // namespace kda
