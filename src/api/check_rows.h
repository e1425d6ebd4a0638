// Values of the lists that say what the rows of a call are. Lists in host memory only.
#pragma once

#include "api/call.h"
#include "core/record_format.h"
#include "core/row_values.h"

namespace kda {

// A list in device memory passes. Entries are within [0, T] and do not decrease; no row is longer than most_per_row,
// the call not than max_tokens.
Status check_cu_seqlens(const Call& call, const Rows& rows, int64_t most_per_row);

// A list in device memory passes. Slots of rows that are not null are below pool_slots.
Status check_slots(const Call& call, const Rows& rows, int64_t pool_slots);

// Parents of rows that are not null come before their children.
Status check_parents(const Call& call, const Rows& rows, const Draft& draft);

// How a record row tells its nodes: of state records or conv records.
struct RecordForm {
  uint32_t magic;
  uint32_t version_form;
  uint32_t geometry;
};
RecordForm record_form(const Problem& problem);
RecordForm conv_record_form(const Problem& problem, int64_t channels);

// A record row that is to be replayed.
struct Replay {
  const RecordBuffer& records;
  RecordForm form;
  const IndexView& tips;
  const IndexView& record_rows;
  bool records_on_host;  // else only the kernel can read their headers
  int layers = 1;
};

// Record rows are within the buffer and tips are nodes of records with a matching header. (A header that does not match
// is the kernel's to report: it skips the row and sets a status bit.)
Status check_tips(const Call& call, const Rows& rows, const Replay& replay, const char* tips_name,
                  const char* rows_name);

// The node lies on the path from the root to the row's tip, or the record's header does not match.
bool is_on_path(const Problem& problem, const Replay& replay, int64_t row, int64_t node);

// Record rows that verify writes are within `rows_available`, and distinct; no pending row is among them.
Status check_record_rows(const Call& call, const Rows& rows, const IndexView& record_rows, int64_t rows_available,
                         const PendingCommit& pending);

}  // namespace kda
