#include "capture/capture.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <type_traits>
#include <vector>

#include "capture/parts.h"
#include "capture/safetensors_writer.h"
#include "core/record_format.h"
#include "core/row_values.h"
#include "core/text.h"
#include "cpu/targets.h"
#include "plan/describe.h"
#include "plan/names.h"
#include "plan/needs.h"

namespace kda {
namespace {

std::atomic<int64_t> g_files{0};  // numbers of one process: contexts share the directory

constexpr std::byte kNaNByte{0xFF};  // all bits set are NaN in every float type

const char* safetensors_name(DType dtype) {
  return dtype == DType::fp32 ? "F32" : dtype == DType::bf16 ? "BF16" : "F16";
}

// The slots of a pool, or the rows of a record buffer, that a call names: small numbers in the order of appearance.
class Numbers {
 public:
  explicit Numbers(int64_t first = 0) : first_(first) {}
  int64_t of(int64_t original) {
    const auto found = std::find(originals_.begin(), originals_.end(), original);
    if (found != originals_.end()) return first_ + (found - originals_.begin());
    originals_.push_back(original);
    return first_ + static_cast<int64_t>(originals_.size()) - 1;
  }
  int64_t size() const { return first_ + static_cast<int64_t>(originals_.size()) + 1; }  // one stays unused
  template <class Visit>
  void each(const Visit& visit) const {
    for (size_t i = 0; i < originals_.size(); ++i) visit(originals_[i], first_ + static_cast<int64_t>(i));
  }

 private:
  int64_t first_;  // 1 where slot 0 is null and must stay 0
  std::vector<int64_t> originals_;
};

void copy_slot(const Problem& problem, const StatePool& pool, int64_t, int64_t slot, std::byte* to) {
  const int64_t bytes = size_of(pool.dtype);
  std::memcpy(to, pool.layer_base(0) + slot * pool.slot_stride * bytes,
              static_cast<size_t>(problem.slot_elements() * bytes));
}
void copy_slot(const Problem& problem, const ConvPool& pool, int64_t channels, int64_t slot, std::byte* to) {
  const int64_t bytes = size_of(pool.dtype);
  const bool wc = problem.conv_layout == ConvLayout::wc;
  const int64_t window = problem.conv_width - 1;
  for (int64_t w = 0; w < window; ++w) {
    for (int64_t c = 0; c < channels; ++c) {
      const int64_t from = slot * pool.slot_stride + w * pool.window_stride + c * pool.channel_stride;
      std::memcpy(to + (wc ? w * channels + c : c * window + w) * bytes, pool.layer_base(0) + from * bytes,
                  static_cast<size_t>(bytes));
    }
  }
}

std::vector<int64_t> slot_shape(const Problem& p, const StatePool&, int64_t) {
  const bool vk = p.state_layout == StateLayout::vk;
  return {p.value_heads, vk ? p.value_dim : p.key_dim, vk ? p.key_dim : p.value_dim};
}
std::vector<int64_t> slot_shape(const Problem& p, const ConvPool&, int64_t channels) {
  const int64_t window = p.conv_width - 1;
  return p.conv_layout == ConvLayout::wc ? std::vector<int64_t>{window, channels}
                                         : std::vector<int64_t>{channels, window};
}

template <class Pool>
class Capture final : public CallCapture {
 public:
  Capture(const kda_plan& plan, Operation operation, const CallParts<Pool>& parts)
      : plan_(plan),
        problem_(plan.problem),
        operation_(operation),
        parts_(parts),
        own_slots_(problem_.null_slot0 ? 1 : 0) {
    if (parts_.rows == nullptr) parts_.rows = &parts_.move_rows;
    describe();
    add_tokens();
    add_rows();
    add_draft_and_records();
    add_snapshots();
    // The lists have named every slot by now.
    if (parts_.state->present()) add_pool(pool_name(), *parts_.state, own_slots_, true);
    if (has_other_pool()) add_pool("dst_state", *parts_.dst, other_slots_, false);
  }

  void finish() noexcept override {
    try {
      add_results();
    } catch (const std::exception&) {
      return;  // no memory for the file: the call itself is done
    }
    const int64_t number = g_files.fetch_add(1);
    const FixedText<96> name("/kda-%ld-%03lld-%s.safetensors", static_cast<long>(getpid()),
                             static_cast<long long>(number), name_of(operation_));
    file_.write(plan_.context->capture.directory + name.c_str());
  }

 private:
  void add_results() {
    add_out();
    if (parts_.state->present()) add_pool(std::string("expect.") + pool_name(), *parts_.state, own_slots_, true);
    if (has_other_pool()) add_pool("expect.dst_state", *parts_.dst, other_slots_, true);
    if (writes_records()) add_records("expect.records");
    if (parts_.snapshots != nullptr && !snapshots_are_own()) add_snapshot_results();
  }

  const char* pool_name() const { return is_conv(operation_) ? "conv_state" : "state"; }
  bool is_null(int64_t row) const { return is_null_row(problem_, *parts_.rows, row); }
  bool is_move() const { return operation_ == Operation::move || operation_ == Operation::conv_move; }
  bool has_other_pool() const {
    return parts_.dst != nullptr && parts_.rows->dst_slots.present() && !same_pool(*parts_.dst, *parts_.state);
  }
  bool snapshots_are_own() const { return same_pool(parts_.snapshots->pool, *parts_.state); }
  bool writes_records() const {
    return parts_.records != nullptr && parts_.records->present() && parts_.tips == nullptr;
  }

  void describe() {
    const auto number = [](double value) { return std::string(FixedText<40>("%.9g", value)); };
    const auto flag = [](bool value) { return std::string(value ? "1" : "0"); };
    file_.metadata("kda.replay", "1");
    // The form has one name for both: the lists of a pending commit tell them apart.
    file_.metadata("kda.op", operation_ == Operation::conv_verify_pending ? "conv_verify"
                             : operation_ == Operation::conv_move         ? "move"
                                                                          : name_of(operation_));
    file_.metadata("kda.gate", name_of(problem_.gate));
    file_.metadata("kda.beta", name_of(problem_.beta));
    file_.metadata("kda.qk_l2norm", flag(problem_.qk_l2norm));
    if (parts_.tokens != nullptr) {
      file_.metadata("kda.scale", number(parts_.tokens->scale));
      if (problem_.gate == Gate::bounded) file_.metadata("kda.lower_bound", number(parts_.tokens->lower_bound));
    }
    file_.metadata("kda.state_layout", name_of(problem_.state_layout));
    file_.metadata("kda.null_slot0", flag(problem_.null_slot0));
    file_.metadata("kda.single_root", flag(problem_.single_root));
    file_.metadata("kda.numerics", name_of(numerics_of(problem_, operation_)));
    file_.metadata("kda.backend", name_of(plan_.choice.backend));
    if (plan_.choice.backend == Backend::cpu) {
      file_.metadata("kda.target", cpu_target_name(plan_.context->cpu_target));
    }
    file_.metadata("kda.plan", describe_plan(plan_));
  }

  void add_view(const char* name, const TokenView& view, int64_t heads, int64_t width, bool by_head) {
    const int64_t tokens = parts_.rows->tokens, bytes = size_of(view.dtype);
    std::vector<int64_t> shape =
        by_head ? std::vector<int64_t>{tokens, heads, width} : std::vector<int64_t>{tokens, heads * width};
    std::byte* to = file_.tensor(name, safetensors_name(view.dtype), bytes, std::move(shape));
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t h = 0; h < heads; ++h) {
        std::memcpy(to, view.data + (t * view.token_stride + h * view.head_stride) * bytes,
                    static_cast<size_t>(width * bytes));
        to += width * bytes;
      }
    }
  }

  void add_vector(const char* name, const std::byte* data, DType dtype, int64_t count) {
    if (data == nullptr) return;
    std::byte* to = file_.tensor(name, safetensors_name(dtype), size_of(dtype), {count});
    std::memcpy(to, data, static_cast<size_t>(count * size_of(dtype)));
  }

  void add_tokens() {
    const Problem& p = problem_;
    if (const TokenInputs* t = parts_.tokens) {
      add_view("q", t->q, p.heads, p.key_dim, true);
      add_view("k", t->k, p.heads, p.key_dim, true);
      add_view("v", t->v, p.value_heads, p.value_dim, true);
      add_view("a", t->a, p.value_heads, p.key_dim, true);
      add_view("b", t->b, p.value_heads, 1, false);
      add_vector("A_log", t->A_log.data, t->A_log.dtype, p.value_heads);
      add_vector("dt_bias", t->dt_bias.data, t->dt_bias.dtype, int64_t{p.value_heads} * p.key_dim);
    }
    if (const ConvLaunch* conv = parts_.conv) {
      add_view("x", conv->x, 1, conv->channels, false);
      const int64_t bytes = size_of(conv->weight_dtype), row = p.conv_width * bytes;
      std::byte* to = file_.tensor("w", safetensors_name(conv->weight_dtype), bytes, {conv->channels, p.conv_width});
      for (int64_t c = 0; c < conv->channels; ++c) {
        std::memcpy(to + c * row, conv->weight + c * conv->weight_stride * bytes, static_cast<size_t>(row));
      }
      add_vector("bias", conv->bias, conv->weight_dtype, conv->channels);
    }
  }

  // An index list of [rows, columns], each entry through `value(row, column)`.
  template <class Value>
  void add_table(const char* name, std::vector<int64_t> shape, const Value& value) {
    const int64_t rows = shape[0], columns = shape.size() > 1 ? shape[1] : 1;
    std::byte* to = file_.tensor(name, "I64", 8, std::move(shape));
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t column = 0; column < columns; ++column, to += 8) {
        const int64_t entry = value(row, column);
        std::memcpy(to, &entry, sizeof(entry));
      }
    }
  }
  template <class Value>
  void add_list(const char* name, int64_t count, const Value& value) {
    add_table(name, {count}, [&](int64_t row, int64_t) { return value(row); });
  }

  int64_t numbered(int64_t slot, const Pool& pool, Numbers& numbers) const {
    return is_skipped_slot(problem_, slot, pool, *parts_.state) ? std::min<int64_t>(slot, 0) : numbers.of(slot);
  }

  void add_rows() {
    const Rows& rows = *parts_.rows;
    if (rows.cu_seqlens.present()) {
      add_list("cu_seqlens", rows.count + 1, [&](int64_t i) { return rows.cu_seqlens.at(i); });
    }
    if (rows.slots.present()) {
      add_list("slots", rows.count,
               [&](int64_t row) { return numbered(rows.slots.at(row), *parts_.state, own_slots_); });
    }
    if (rows.dst_slots.present()) {
      Numbers& numbers = has_other_pool() ? other_slots_ : own_slots_;
      add_list("dst_slots", rows.count, [&](int64_t row) {
        return !is_move() && is_null(row) ? -1 : numbered(rows.dst_slots.at(row), *parts_.dst, numbers);
      });
    }
    if (rows.has_state.present()) {
      std::byte* to = file_.tensor("has_state", "U8", 1, {rows.count});
      for (int64_t row = 0; row < rows.count; ++row)
        to[row] = std::byte{rows.has_state.at(row) ? uint8_t{1} : uint8_t{0}};
    }
  }

  int64_t numbered_record(const IndexView& record_rows, int64_t row) {
    const int64_t record_row = is_null(row) ? -1 : record_row_of(record_rows, row);
    return record_row < 0 ? -1 : record_rows_.of(record_row);
  }

  void add_draft_and_records() {
    const Rows& rows = *parts_.rows;
    if (parts_.draft != nullptr && parts_.draft->parents.present()) {
      const IndexView& parents = parts_.draft->parents;
      add_table(
          "parents",
          parts_.draft->by_row ? std::vector<int64_t>{rows.count, parents.columns} : std::vector<int64_t>{rows.tokens},
          [&](int64_t row, int64_t column) { return parents.at(row, column); });
    }
    if (parts_.node_slots != nullptr && parts_.node_slots->present() && same_pool(*parts_.node_pool, *parts_.state)) {
      add_table("node_slots", {rows.count, parts_.node_slots->columns}, [&](int64_t row, int64_t node) {
        const bool stored = !is_null(row) && node < row_length(rows, row);
        return stored ? numbered(parts_.node_slots->at(row, node), *parts_.node_pool, own_slots_) : -1;
      });
    }
    if (parts_.tips != nullptr) add_list("tips", rows.count, [&](int64_t row) { return parts_.tips->at(row); });
    if (parts_.records == nullptr || !parts_.records->present()) return;
    add_list("record_rows", rows.count, [&](int64_t row) { return numbered_record(*parts_.record_rows, row); });
    if (parts_.pending != nullptr && parts_.pending->present()) {
      const PendingCommit& pending = *parts_.pending;
      add_list("pending_tips", rows.count, [&](int64_t row) { return pending.tips.at(row); });
      add_list("pending_record_rows", rows.count,
               [&](int64_t row) { return numbered_record(pending.record_rows, row); });
    }
    add_records("records");
  }

  void add_records(const char* name) {
    const RecordBuffer& records = *parts_.records;
    const int64_t bytes = is_conv(operation_) ? conv_record_layout(problem_, parts_.channels).row_bytes
                                              : record_layout(problem_).row_bytes;
    std::byte* to = file_.tensor(name, "U8", 1, {record_rows_.size(), bytes}, kNaNByte);
    record_rows_.each([&](int64_t row, int64_t number) {
      std::memcpy(to + number * bytes, records.layer_base(0) + row * records.row_stride, static_cast<size_t>(bytes));
    });
  }

  bool is_skipped_snapshot(int64_t entry) const {
    const SnapshotList<Pool>& list = *parts_.snapshots;
    const int64_t row = list.rows.at(entry);
    return row < 0 || list.positions.at(entry) < 0 || is_null(row) ||
           is_skipped_slot(problem_, list.slots.at(entry), list.pool, *parts_.state);
  }

  void add_snapshots() {
    if (parts_.snapshots == nullptr || parts_.snapshots->count() == 0) return;
    const SnapshotList<Pool>& list = *parts_.snapshots;
    add_list("snapshot_rows", list.count(), [&](int64_t i) { return is_skipped_snapshot(i) ? -1 : list.rows.at(i); });
    add_list("snapshot_positions", list.count(), [&](int64_t i) { return list.positions.at(i); });
    if (!snapshots_are_own()) return;  // without slots a replay stores entry i in slot i of a pool of its own
    add_list("snapshot_slots", list.count(),
             [&](int64_t i) { return is_skipped_snapshot(i) ? -1 : own_slots_.of(list.slots.at(i)); });
  }

  // A replay's own snapshots are fp32, so those of another dtype have no expectation here.
  void add_snapshot_results() {
    const SnapshotList<Pool>& list = *parts_.snapshots;
    if (list.count() == 0 || list.pool.dtype != DType::fp32) return;
    std::vector<int64_t> shape = slot_shape(problem_, list.pool, parts_.channels);
    const int64_t bytes = 4 * shape_size(shape);
    shape.insert(shape.begin(), list.count());
    std::byte* to = file_.tensor("expect.snapshots", "F32", 4, std::move(shape), kNaNByte);
    for (int64_t i = 0; i < list.count(); ++i) {
      if (!is_skipped_snapshot(i)) copy_slot(problem_, list.pool, parts_.channels, list.slots.at(i), to + i * bytes);
    }
  }

  static int64_t shape_size(const std::vector<int64_t>& shape) {
    int64_t size = 1;
    for (int64_t extent : shape) size *= extent;
    return size;
  }

  // contents: false leaves every slot NaN, where the call must not read them.
  void add_pool(const std::string& name, const Pool& pool, const Numbers& numbers, bool contents) {
    std::vector<int64_t> shape = slot_shape(problem_, pool, parts_.channels);
    const int64_t bytes = size_of(pool.dtype) * shape_size(shape);
    shape.insert(shape.begin(), numbers.size());
    std::byte* to = file_.tensor(name, safetensors_name(pool.dtype), size_of(pool.dtype), std::move(shape), kNaNByte);
    if (!contents) return;
    numbers.each(
        [&](int64_t slot, int64_t number) { copy_slot(problem_, pool, parts_.channels, slot, to + number * bytes); });
  }

  // Tokens of no row are not written: NaN.
  void add_out() {
    if (parts_.out == nullptr) return;
    const Rows& rows = *parts_.rows;
    const bool conv = is_conv(operation_);
    const int64_t heads = conv ? 1 : problem_.value_heads, width = conv ? parts_.channels : problem_.value_dim;
    const TokenView& out = *parts_.out;
    const int64_t bytes = size_of(out.dtype) * width;
    std::vector<int64_t> shape =
        conv ? std::vector<int64_t>{rows.tokens, width} : std::vector<int64_t>{rows.tokens, heads, width};
    std::byte* to =
        file_.tensor("expect.out", safetensors_name(out.dtype), size_of(out.dtype), std::move(shape), kNaNByte);
    for (int64_t t = row_begin(rows, 0); rows.count > 0 && t < row_begin(rows, rows.count); ++t) {
      for (int64_t h = 0; h < heads; ++h) {
        const int64_t from = (t * out.token_stride + h * out.head_stride) * size_of(out.dtype);
        std::memcpy(to + (t * heads + h) * bytes, out.data + from, static_cast<size_t>(bytes));
      }
    }
  }

  const kda_plan& plan_;
  const Problem& problem_;
  Operation operation_;
  CallParts<Pool> parts_;
  SafetensorsWriter file_;
  Numbers own_slots_, other_slots_, record_rows_;
};

}  // namespace

bool takes_capture(const kda_plan& plan) {
  const CaptureSettings& settings = plan.context->capture;
  if (settings.directory.empty() || plan.choice.backend == Backend::cuda) return false;
  return plan.context->captured_calls.fetch_add(1) < settings.calls;
}

template <class Launch>
std::unique_ptr<CallCapture> begin_capture(const kda_plan& plan, Operation operation, const Launch& launch) {
  if (!takes_capture(plan)) return nullptr;
  try {
    const auto parts = parts_of(launch);
    const bool commits = operation == Operation::commit || operation == Operation::conv_commit;
    if (commits && !parts.rows->slots.present()) return nullptr;  // the form of a commit names its slots
    using Pool = std::remove_cvref_t<decltype(*parts.state)>;
    return std::make_unique<Capture<Pool>>(plan, operation, parts);
  } catch (const std::exception&) {
    return nullptr;  // no memory for the file: the call itself goes on
  }
}

template std::unique_ptr<CallCapture> begin_capture(const kda_plan&, Operation, const ExtendLaunch&);
template std::unique_ptr<CallCapture> begin_capture(const kda_plan&, Operation, const DecodeLaunch&);
template std::unique_ptr<CallCapture> begin_capture(const kda_plan&, Operation, const VerifyLaunch&);
template std::unique_ptr<CallCapture> begin_capture(const kda_plan&, Operation, const CommitLaunch&);
template std::unique_ptr<CallCapture> begin_capture(const kda_plan&, Operation, const MoveLaunch&);
template std::unique_ptr<CallCapture> begin_capture(const kda_plan&, Operation, const ConvLaunch&);
template std::unique_ptr<CallCapture> begin_capture(const kda_plan&, Operation, const ConvCommitLaunch&);
template std::unique_ptr<CallCapture> begin_capture(const kda_plan&, Operation, const ConvMoveLaunch&);

}  // namespace kda
