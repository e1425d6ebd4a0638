#include "api/check_rows.h"

#include <algorithm>

#include "api/distinct.h"

namespace kda {
namespace {

long long printed(int64_t value) { return static_cast<long long>(value); }

// The header of a record row, or null if it is not of this form or cannot be read here.
const RecordHeader* matching_header(const Problem& problem, const Replay& replay, int64_t row, int layer) {
  if (!replay.records_on_host) return nullptr;
  const int64_t record_row = record_row_of(replay.record_rows, row);
  const auto* header =
      reinterpret_cast<const RecordHeader*>(replay.records.layer_base(layer) + record_row * replay.records.row_stride);
  const bool matches = header->magic == replay.form.magic && header->version_form == replay.form.version_form &&
                       header->geometry == replay.form.geometry && header->nodes >= 0 &&
                       header->nodes <= problem.max_nodes;
  return matches ? header : nullptr;
}

}  // namespace

Status check_cu_seqlens(const Call& call, const Rows& rows, int64_t most_per_row) {
  if (!rows.cu_seqlens.present() || !rows.cu_seqlens.on_host) return KDA_OK;
  int64_t previous = 0;
  for (int64_t i = 0; i <= rows.count; ++i) {
    const int64_t value = rows.cu_seqlens.at(i);
    if (value < previous || value > rows.tokens) {
      return call.fail(KDA_E_CU_SEQLENS,
                       FixedText<>("cu_seqlens[%lld] = %lld after %lld", printed(i), printed(value), printed(previous)),
                       FixedText<>("entries from 0 to T=%lld that do not decrease", printed(rows.tokens)));
    }
    if (i > 0 && value - previous > most_per_row) {
      return call.fail(KDA_E_CU_SEQLENS,
                       FixedText<>("row %lld: %lld tokens", printed(i - 1), printed(value - previous)),
                       FixedText<>("at most %lld tokens a row", printed(most_per_row)));
    }
    previous = value;
  }
  const int64_t tokens = previous - rows.cu_seqlens.at(0);
  if (tokens <= call.problem.max_tokens) return KDA_OK;
  return call.fail(KDA_E_PLAN_LIMIT, FixedText<>("%lld tokens", printed(tokens)),
                   FixedText<>("max_tokens = %lld", printed(call.problem.max_tokens)));
}

Status check_slots(const Call& call, const Rows& rows, int64_t pool_slots) {
  for (int64_t row = 0; rows.slots.present() && rows.slots.on_host && row < rows.count; ++row) {
    const int64_t slot = rows.slots.at(row);
    if (slot < pool_slots) continue;
    return call.fail(KDA_E_SLOT_RANGE, FixedText<>("slots[%lld] = %lld", printed(row), printed(slot)),
                     FixedText<>("slots below %lld", printed(pool_slots)));
  }
  return KDA_OK;
}

Status check_parents(const Call& call, const Rows& rows, const Draft& draft) {
  if (!draft.parents.present()) return KDA_OK;
  for (int64_t row = 0; row < rows.count; ++row) {
    if (is_null_row(call.problem, rows, row)) continue;
    const int64_t begin = row_begin(rows, row);
    for (int64_t node = call.problem.single_root ? 1 : 0; node < row_length(rows, row); ++node) {
      const int64_t parent = draft.by_row ? draft.parents.at(row, node) : draft.parents.at(begin + node);
      if (parent >= -1 && parent < node) continue;
      return call.fail(
          KDA_E_PARENT,
          FixedText<>("row %lld: parent of node %lld = %lld", printed(row), printed(node), printed(parent)),
          FixedText<>("-1 to %lld", printed(node - 1)));
    }
  }
  return KDA_OK;
}

RecordForm record_form(const Problem& problem) {
  const RecordLayout layout = record_layout(problem);
  return {kRecordMagic, layout.version_form, layout.geometry};
}

RecordForm conv_record_form(const Problem& problem, int64_t channels) {
  const ConvRecordLayout layout = conv_record_layout(problem, channels);
  return {kConvRecordMagic, layout.version_form, layout.geometry};
}

Status check_tips(const Call& call, const Rows& rows, const Replay& replay, const char* tips_name,
                  const char* rows_name) {
  for (int64_t row = 0; row < rows.count; ++row) {
    if (is_null_row(call.problem, rows, row)) continue;
    const int64_t tip = applied_tip(replay.tips, replay.record_rows, row);
    if (tip < 0) continue;
    const int64_t record_row = record_row_of(replay.record_rows, row);
    if (record_row >= replay.records.rows) {
      return call.fail(KDA_E_RECORD_ROW, FixedText<>("%s[%lld] = %lld", rows_name, printed(row), printed(record_row)),
                       FixedText<>("record rows below %lld", printed(replay.records.rows)));
    }
    for (int layer = 0; layer < replay.layers; ++layer) {
      const RecordHeader* header = matching_header(call.problem, replay, row, layer);
      if (header == nullptr || tip < header->nodes) continue;
      return call.fail(KDA_E_TIP, FixedText<>("%s[%lld] = %lld", tips_name, printed(row), printed(tip)),
                       FixedText<>("tips below %d: the nodes of record row %lld", header->nodes, printed(record_row)));
    }
  }
  return KDA_OK;
}

bool is_on_path(const Problem& problem, const Replay& replay, int64_t row, int64_t node) {
  const RecordHeader* header = matching_header(problem, replay, row, 0);
  if (header == nullptr) return true;
  const auto* parents = reinterpret_cast<const RecordParent*>(header + 1);
  int64_t at = replay.tips.at(row);
  while (at > node && at < header->nodes) {
    const int64_t parent = parents[at].parent;
    if (parent >= at) return true;  // a damaged record: the kernel's to report
    at = parent;
  }
  return at == node;
}

Status check_record_rows(const Call& call, const Rows& rows, const IndexView& record_rows, int64_t rows_available,
                         const PendingCommit& pending) {
  const auto written_row = [&](int64_t row) {
    return is_null_row(call.problem, rows, row) ? int64_t{-1} : record_row_of(record_rows, row);
  };
  for (int64_t row = 0; row < rows.count; ++row) {
    if (written_row(row) < rows_available) continue;
    return call.fail(KDA_E_RECORD_ROW, FixedText<>("record_rows[%lld] = %lld", printed(row), printed(written_row(row))),
                     FixedText<>("record rows below %lld", printed(rows_available)));
  }
  const auto each_written = [&](const auto& visit) {
    for (int64_t row = 0; row < rows.count; ++row) {
      const int64_t record_row = written_row(row);
      if (record_row < 0) continue;
      const auto begin = static_cast<uintptr_t>(record_row);
      visit(SlotUse{begin, begin + 1, row, row, record_row, "record_rows"});
    }
  };
  const auto each_read = [&](const auto& visit) {
    for (int64_t row = 0; pending.present() && row < rows.count; ++row) {
      if (is_null_row(call.problem, rows, row) || applied_tip(pending.tips, pending.record_rows, row) < 0) continue;
      const int64_t record_row = record_row_of(pending.record_rows, row);
      const auto begin = static_cast<uintptr_t>(record_row);
      visit(SlotUse{begin, begin + 1, SlotUse::kNoRow, row, record_row, "pending_record_rows"});
    }
  };
  SlotUse first, second;
  if (find_conflict(each_written, each_read, &first, &second) == Conflict::none) return KDA_OK;
  return call.fail(KDA_E_RECORD_ROW,
                   FixedText<>("%s[%lld] and %s[%lld] both name record row %lld", first.list, printed(first.entry),
                               second.list, printed(second.entry), printed(first.slot)),
                   "a record row of its own for every row, apart from the pending ones");
}

}  // namespace kda
