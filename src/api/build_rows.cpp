#include "api/build_rows.h"

namespace kda {

Status count_rows(const Call& call, const DLTensor* list, const char* name, int64_t extra, int64_t* rows) {
  if (list == nullptr) return call.fail(KDA_E_NULL, FixedText<>("%s: NULL", name), "the list that carries N");
  int64_t elements = 1;
  for (int d = 0; d < list->ndim && list->shape != nullptr; ++d) {
    const int64_t size = list->shape[d];
    if (size < 0 || size > call.problem.max_rows + extra) {
      return call.fail(KDA_E_PLAN_LIMIT, FixedText<>("%s: a dimension of %lld", name, static_cast<long long>(size)),
                       FixedText<>("max_rows = %lld", static_cast<long long>(call.problem.max_rows)));
    }
    elements *= size == 1 ? 1 : size;
    if (elements > call.problem.max_rows + extra) break;
  }
  *rows = elements - extra;
  if (*rows < 0) {
    return call.fail(KDA_E_SHAPE, FixedText<>("%s: %lld entries", name, static_cast<long long>(elements)),
                     FixedText<>("%s: [N+1]", name));
  }
  if (*rows > call.problem.max_rows) {
    return call.fail(KDA_E_PLAN_LIMIT,
                     FixedText<>("%s: more than %lld rows", name, static_cast<long long>(call.problem.max_rows)),
                     FixedText<>("max_rows = %lld", static_cast<long long>(call.problem.max_rows)));
  }
  return KDA_OK;
}

Status check_row_count(const Call& call, int64_t rows) {
  const int64_t most = std::min(call.problem.max_rows, call.problem.max_tokens);
  if (rows <= most) return KDA_OK;
  return call.fail(KDA_E_PLAN_LIMIT, FixedText<>("%lld rows of one token", static_cast<long long>(rows)),
                   FixedText<>("%lld: max_rows and max_tokens", static_cast<long long>(most)));
}

Status view_row_lists(Call& call, const kda_rows& from, Rows* rows) {
  const Dim N{"N", rows->count};
  KDA_TRY(view_list(call, from.slots, "slots", N, &rows->slots));
  KDA_TRY(view_flags(call, from.has_state, "has_state", N, &rows->has_state));
  return view_list(call, from.dst_slots, "dst_slots", N, &rows->dst_slots);
}

Status check_layer_count(const Call& call, int32_t asked, int* layers) {
  *layers = asked == 0 ? 1 : asked;
  if (*layers >= 1 && *layers <= call.problem.layers) return KDA_OK;
  return call.fail(KDA_E_PLAN_LIMIT, FixedText<>("layers = %d", asked),
                   FixedText<>("layers from 1 to %d", call.problem.layers));
}

Status view_draft(Call& call, const DLTensor* parents, const Rows& rows, Draft* draft) {
  if (parents == nullptr) return KDA_OK;
  draft->by_row = parents->ndim >= 2 && parents->shape != nullptr && parents->shape[parents->ndim - 2] == rows.count;
  if (!draft->by_row) return view_list(call, parents, "parents", {"T", rows.tokens}, &draft->parents);
  KDA_TRY(view_table(call, parents, "parents", {"N", rows.count}, {"D", kAny}, &draft->parents));
  for (int64_t row = 0; call.lists_on_host() && row < rows.count; ++row) {
    if (is_null_row(call.problem, rows, row) || row_length(rows, row) <= draft->parents.columns) continue;
    return call.fail(
        KDA_E_SHAPE,
        FixedText<>("parents: D = %lld with a row of %lld nodes", static_cast<long long>(draft->parents.columns),
                    static_cast<long long>(row_length(rows, row))),
        "parents: [N, D] with D at least the longest row");
  }
  return KDA_OK;
}

Status view_pending(Call& call, const DLTensor* tips, const DLTensor* record_rows, const DLTensor* records,
                    const Rows& rows, PendingCommit* pending) {
  if (tips == nullptr && record_rows == nullptr) return KDA_OK;
  if (tips == nullptr || record_rows == nullptr || records == nullptr) {
    return call.fail(KDA_E_COMBINATION, "pending_tips, pending_record_rows, records: some of them",
                     "all three for a pending commit");
  }
  KDA_TRY(view_list(call, tips, "pending_tips", {"N", rows.count}, &pending->tips));
  return view_list(call, record_rows, "pending_record_rows", {"N", rows.count}, &pending->record_rows);
}

}  // namespace kda
