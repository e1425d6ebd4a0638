// The tensors of a replay file: which belong to which operation, their dtypes and shapes, and the index values that
// this program itself relies on. Everything else about them is the library's to check.
#include <algorithm>
#include <limits>

#include "cli/replay/case.h"
#include "cli/replay/tensor.h"

namespace kda::cli::replay {
namespace {

using io::Shape;
using io::TensorInfo;

constexpr uint32_t kTokenOps = KDA_OPERATION_BIT(KDA_EXTEND) | KDA_OPERATION_BIT(KDA_DECODE) |
                               KDA_OPERATION_BIT(KDA_VERIFY) | KDA_OPERATION_BIT(KDA_VERIFY_PENDING) |
                               KDA_OPERATION_BIT(KDA_COMMIT);
constexpr uint32_t kConvTokenOps = KDA_OPERATION_BIT(KDA_CONV_EXTEND) | KDA_OPERATION_BIT(KDA_CONV_DECODE) |
                                   KDA_OPERATION_BIT(KDA_CONV_VERIFY) | KDA_OPERATION_BIT(KDA_CONV_VERIFY_PENDING) |
                                   KDA_OPERATION_BIT(KDA_CONV_COMMIT);
constexpr uint32_t kPending = KDA_OPERATION_BIT(KDA_VERIFY_PENDING) | KDA_OPERATION_BIT(KDA_CONV_VERIFY_PENDING);
constexpr uint32_t kVerify = KDA_OPERATION_BIT(KDA_VERIFY) | KDA_OPERATION_BIT(KDA_CONV_VERIFY) | kPending;
constexpr uint32_t kCommit = KDA_OPERATION_BIT(KDA_COMMIT) | KDA_OPERATION_BIT(KDA_CONV_COMMIT);
constexpr uint32_t kMove = KDA_OPERATION_BIT(KDA_MOVE) | KDA_OPERATION_BIT(KDA_CONV_MOVE);
constexpr uint32_t kExtend = KDA_OPERATION_BIT(KDA_EXTEND) | KDA_OPERATION_BIT(KDA_CONV_EXTEND);
constexpr uint32_t kState = KDA_ALL_STATE_OPERATIONS, kConv = KDA_ALL_CONV_OPERATIONS, kAll = kState | kConv;

using TypeTest = bool (*)(io::TensorType);
bool is_byte(io::TensorType type) { return type == io::TensorType::kU8; }

struct TensorRow {
  const char* name;
  uint32_t operations;  // that use it
  TypeTest accepts;
  const char* types;
};
constexpr char kFloatTypes[] = "F32, BF16 or F16";
constexpr char kIndexTypes[] = "I32 or I64";
constexpr TensorRow kTensors[] = {
    {"q", kTokenOps, is_float, kFloatTypes},
    {"k", kTokenOps, is_float, kFloatTypes},
    {"v", kTokenOps, is_float, kFloatTypes},
    {"a", kTokenOps, is_float, kFloatTypes},
    {"b", kTokenOps, is_float, kFloatTypes},
    {"A_log", kTokenOps, is_float, kFloatTypes},
    {"dt_bias", kTokenOps, is_float, kFloatTypes},
    {"x", kConvTokenOps, is_float, kFloatTypes},
    {"w", kConvTokenOps, is_float, kFloatTypes},
    {"bias", kConvTokenOps, is_float, kFloatTypes},
    {"state", kState, is_float, kFloatTypes},
    {"conv_state", kConv, is_float, kFloatTypes},
    {"dst_state", kAll, is_float, kFloatTypes},
    {"cu_seqlens", kTokenOps | kConvTokenOps, is_index, kIndexTypes},
    {"slots", kAll, is_index, kIndexTypes},
    {"has_state", kAll & ~kMove, is_flag, "U8 or BOOL"},
    {"dst_slots", kAll, is_index, kIndexTypes},
    {"parents", kVerify | kCommit, is_index, kIndexTypes},
    {"tips", kVerify | kCommit, is_index, kIndexTypes},
    {"node_slots", kVerify& kState, is_index, kIndexTypes},
    {"records", kVerify | kCommit, is_byte, "U8"},
    {"record_rows", kVerify | kCommit, is_index, kIndexTypes},
    {"pending_tips", kPending, is_index, kIndexTypes},
    {"pending_record_rows", kPending, is_index, kIndexTypes},
    {"snapshot_rows", kExtend | kVerify | kCommit, is_index, kIndexTypes},
    {"snapshot_positions", kExtend | kVerify | kCommit, is_index, kIndexTypes},
    {"snapshot_slots", kExtend | kVerify | kCommit, is_index, kIndexTypes},
    {"expect.out", kTokenOps | kConvTokenOps, is_float, kFloatTypes},
    {"expect.state", kState, is_float, kFloatTypes},
    {"expect.conv_state", kConv, is_float, kFloatTypes},
    {"expect.dst_state", kAll, is_float, kFloatTypes},
    {"expect.records", kVerify, is_byte, "U8"},
    {"expect.snapshots", kExtend | kVerify | kCommit, is_float, kFloatTypes},
};

// Reads the tensors of one case. The first fault ends it; each step returns false then.
class TensorReader {
 public:
  explicit TensorReader(Case& replay) : case_(replay) {}
  const std::string& error() const { return error_; }

  bool read() {
    return name_operation() && known_tensors() && geometry() && rows() && per_row_lists() && drafts() && snapshots() &&
           expectations() && small_enough();
  }

 private:
  const TensorInfo* find(const char* name) const { return case_.file.find(name); }

  bool fail(std::string_view tensor, const std::string& text) {
    error_ = io::printable(case_.file.path()) + ": tensor '" + io::printable(tensor) + "': " + text;
    return false;
  }
  bool expected_shape(const TensorInfo& tensor, const std::string& expected) {
    return fail(tensor.name, "expected " + expected + ", found " + io::shape_text(tensor.shape));
  }
  bool require(const char* name, const TensorInfo** tensor) {
    *tensor = find(name);
    return *tensor != nullptr ||
           fail(name, std::string("expected for ") + operation_name(case_.operation) + ", found none");
  }

  // One name serves two operations where the file's tensors tell them apart.
  bool name_operation() {
    if (case_.operation == KDA_MOVE && case_.has("conv_state")) case_.operation = KDA_CONV_MOVE;
    if (case_.operation == KDA_CONV_VERIFY && case_.has("pending_tips")) case_.operation = KDA_CONV_VERIFY_PENDING;
    return true;
  }

  bool known_tensors() {
    for (const TensorInfo& tensor : case_.file.tensors()) {
      const auto row = std::find_if(std::begin(kTensors), std::end(kTensors),
                                    [&](const TensorRow& r) { return tensor.name == r.name; });
      if (row == std::end(kTensors)) return fail(tensor.name, "expected only tensors of the replay form");
      if (!row->accepts(tensor.type)) {
        return fail(tensor.name, std::string("expected ") + row->types + ", found " + io::name_of(tensor.type));
      }
      if ((row->operations & KDA_OPERATION_BIT(case_.operation)) == 0) case_.unused_tensors.push_back(tensor.name);
    }
    return true;
  }

  bool geometry() {
    if (case_.has_tokens()) {
      if (!(case_.is_conv() ? conv_geometry() : token_geometry())) return false;
    } else if (!case_.is_commit() && !case_.is_move()) {
      return fail(case_.is_conv() ? "x" : "q",
                  std::string("expected for ") + operation_name(case_.operation) + ", found none");
    } else if (case_.is_commit() && !case_.has("records")) {
      return fail("records", "expected for a commit without tokens, found none");
    }
    return pools();
  }

  bool token_geometry() {
    const TensorInfo *q, *k, *v, *a, *b;
    if (!require("q", &q) || !require("k", &k) || !require("v", &v) || !require("a", &a) || !require("b", &b)) {
      return false;
    }
    const Shape q_shape = without_leading_ones(q->shape, 3);
    if (q_shape.size() != 3 || q_shape[1] < 1 || q_shape[2] < 1) return expected_shape(*q, "[T, H, K]");
    const int64_t tokens = q_shape[0], heads = q_shape[1], key_dim = q_shape[2];
    if (without_leading_ones(k->shape, 3) != q_shape) return expected_shape(*k, io::shape_text(q_shape));
    const Shape v_shape = without_leading_ones(v->shape, 3);
    if (v_shape.size() != 3 || v_shape[0] != tokens || v_shape[1] < 1 || v_shape[1] % heads != 0 || v_shape[2] < 1) {
      return expected_shape(*v, "[" + std::to_string(tokens) + ", a multiple of " + std::to_string(heads) + ", V]");
    }
    const int64_t value_heads = v_shape[1];
    const Shape a_shape = {tokens, value_heads, key_dim};
    const Shape a_packed = {tokens, product_or_negative({value_heads, key_dim})};
    if (without_leading_ones(a->shape, 3) != a_shape && without_leading_ones(a->shape, 2) != a_packed) {
      return expected_shape(*a, io::shape_text(a_shape) + " or " + io::shape_text(a_packed));
    }
    const Shape b_shape = {tokens, value_heads};
    if (without_leading_ones(b->shape, 2) != b_shape) return expected_shape(*b, io::shape_text(b_shape));
    const TensorInfo* A_log = find("A_log");
    if (case_.gate == KDA_GATE_SOFTPLUS && !require("A_log", &A_log)) return false;
    if (A_log != nullptr && A_log->elements != value_heads) {
      return expected_shape(*A_log, std::to_string(value_heads) + " elements");
    }
    const TensorInfo* dt_bias = find("dt_bias");
    if (dt_bias != nullptr && dt_bias->elements != a_packed[1]) {
      return expected_shape(*dt_bias, std::to_string(a_packed[1]) + " elements");
    }
    case_.tokens = tokens;
    case_.heads = heads;
    case_.key_dim = key_dim;
    case_.value_heads = value_heads;
    case_.value_dim = v_shape[2];
    return true;
  }

  bool conv_geometry() {
    const TensorInfo *x, *w;
    if (!require("x", &x) || !require("w", &w)) return false;
    const Shape x_shape = without_leading_ones(x->shape, 2);
    if (x_shape.size() != 2 || x_shape[1] < 1) return expected_shape(*x, "[T, C]");
    if (w->shape.size() != 2 || w->shape[0] != x_shape[1] || w->shape[1] < 2) {
      return expected_shape(*w, "[" + std::to_string(x_shape[1]) + ", W]");
    }
    const TensorInfo* bias = find("bias");
    if (bias != nullptr && bias->shape != Shape{x_shape[1]}) {
      return expected_shape(*bias, io::shape_text({x_shape[1]}));
    }
    case_.tokens = x_shape[0];
    case_.channels = x_shape[1];
    case_.conv_width = w->shape[1];
    return true;
  }

  bool pools() {
    const TensorInfo* pool = find(case_.pool_name());
    if (pool == nullptr) {
      if (case_.has("slots") || case_.is_commit() || case_.is_move()) return require(case_.pool_name(), &pool);
      pool = find("dst_state");
    }
    if (pool != nullptr && !(case_.is_conv() ? conv_pool(*pool) : state_pool(*pool))) return false;
    const TensorInfo* destination = find("dst_state");
    if (destination == nullptr || destination == pool) return true;
    Shape expected = pool->shape;
    if (destination->shape.size() != expected.size()) return expected_shape(*destination, io::shape_text(expected));
    expected[0] = destination->shape[0];  // the other pool may have another number of slots
    return destination->shape == expected || expected_shape(*destination, io::shape_text(expected));
  }

  bool state_pool(const TensorInfo& pool) {
    if (pool.shape.size() != 4 || *std::min_element(pool.shape.begin() + 1, pool.shape.end()) < 1) {
      return expected_shape(pool, case_.state_layout == KDA_STATE_VK ? "[slots, HV, V, K]" : "[slots, HV, K, V]");
    }
    const bool vk = case_.state_layout == KDA_STATE_VK;
    const Shape& s = pool.shape;
    const int64_t value_heads = s[1], value_dim = vk ? s[2] : s[3], key_dim = vk ? s[3] : s[2];
    if (!case_.has_tokens()) {
      case_.value_heads = value_heads;
      case_.heads = case_.plan.heads > 0 ? case_.plan.heads : value_heads;
      case_.key_dim = key_dim;
      case_.value_dim = value_dim;
      return true;
    }
    const Shape expected = {s[0], case_.value_heads, vk ? case_.value_dim : case_.key_dim,
                            vk ? case_.key_dim : case_.value_dim};
    return s == expected || expected_shape(pool, io::shape_text(expected));
  }

  bool conv_pool(const TensorInfo& pool) {
    const Shape& s = pool.shape;
    if (s.size() != 3 || s[1] < 1 || s[2] < 1) return expected_shape(pool, "[slots, W-1, C] or [slots, C, W-1]");
    if (!case_.has_tokens()) {
      // A window is at most 3 long; without other tensors the shorter side is the window.
      case_.conv_layout = s[1] <= s[2] ? KDA_CONV_WC : KDA_CONV_CW;
      case_.channels = std::max(s[1], s[2]);
      case_.conv_width = std::min(s[1], s[2]) + 1;
      return true;
    }
    const Shape windows = {s[0], case_.conv_width - 1, case_.channels};
    const Shape channels = {s[0], case_.channels, case_.conv_width - 1};
    case_.conv_layout = s == windows ? KDA_CONV_WC : KDA_CONV_CW;
    return s == windows || s == channels ||
           expected_shape(pool, io::shape_text(windows) + " or " + io::shape_text(channels));
  }

  bool rows() {
    if (const TensorInfo* slots = find("slots")) {
      if (slots->shape.size() != 1) return expected_shape(*slots, "[N]");
      case_.slots = indices_of(*slots);
    } else if (case_.is_commit() || case_.is_move()) {
      return require("slots", &slots);
    }
    const auto named = static_cast<int64_t>(case_.slots.size());
    if (!case_.has_tokens()) {
      case_.rows = named;
      return true;
    }
    const TensorInfo* cu = find("cu_seqlens");
    if (cu != nullptr) {
      if (cu->shape.size() != 1 || cu->elements < 1) return expected_shape(*cu, "[N+1]");
      case_.cu_seqlens = indices_of(*cu);
    } else if (case_.operation == KDA_DECODE || case_.operation == KDA_CONV_DECODE) {
      for (int64_t t = 0; t <= case_.tokens; ++t) case_.cu_seqlens.push_back(t);
    } else {
      case_.cu_seqlens = {0, case_.tokens};
    }
    for (size_t i = 0; i < case_.cu_seqlens.size(); ++i) {
      const int64_t first = i == 0 ? 0 : case_.cu_seqlens[i - 1];
      if (case_.cu_seqlens[i] < first || case_.cu_seqlens[i] > case_.tokens) {
        return fail("cu_seqlens", "entry " + std::to_string(i) + ": expected from " + std::to_string(first) + " to " +
                                      std::to_string(case_.tokens) + ", found " + std::to_string(case_.cu_seqlens[i]));
      }
    }
    case_.rows = static_cast<int64_t>(case_.cu_seqlens.size()) - 1;
    const TensorInfo* slots = find("slots");
    return slots == nullptr || named == case_.rows || expected_shape(*slots, io::shape_text({case_.rows}));
  }

  bool per_row_lists() {
    for (const char* name : {"has_state", "dst_slots", "tips", "record_rows", "pending_tips", "pending_record_rows"}) {
      const TensorInfo* list = find(name);
      if (list != nullptr && list->shape != Shape{case_.rows})
        return expected_shape(*list, io::shape_text({case_.rows}));
    }
    const TensorInfo* needed;
    if (case_.is_commit() && !require("tips", &needed)) return false;
    if (case_.is_move() && !require("dst_slots", &needed)) return false;
    if (((KDA_OPERATION_BIT(case_.operation) & kPending) != 0) &&
        (!require("pending_tips", &needed) || !require("pending_record_rows", &needed) ||
         !require("records", &needed))) {
      return false;
    }
    if (const TensorInfo* node_slots = find("node_slots")) {
      if (node_slots->shape.size() != 2 || node_slots->shape[0] != case_.rows) {
        return expected_shape(*node_slots, "[" + std::to_string(case_.rows) + ", D]");
      }
    }
    if (const TensorInfo* records = find("records")) {
      if (records->shape.size() != 2) return expected_shape(*records, "[rows, bytes]");
    }
    return true;
  }

  // Longest row and longest path. Entries of null rows are not looked at, as in the library.
  bool drafts() {
    if (!case_.has_tokens() || !(case_.is_verify() || case_.is_commit())) return true;
    const TensorInfo* parents = find("parents");
    std::vector<int64_t> values;
    int64_t row_stride = 0;
    if (parents != nullptr) {
      values = indices_of(*parents);
      const bool by_row = parents->shape.size() == 2;
      if (by_row ? parents->shape[0] != case_.rows : parents->shape != Shape{case_.tokens}) {
        return expected_shape(*parents,
                              "[" + std::to_string(case_.tokens) + "] or [" + std::to_string(case_.rows) + ", D]");
      }
      if (by_row) row_stride = parents->shape[1];
      for (int64_t row = 0; by_row && row < case_.rows; ++row) {
        if (length(row) > row_stride)
          return expected_shape(*parents, "at least " + std::to_string(length(row)) + " columns");
      }
    }
    std::vector<int> depth;
    for (int64_t row = 0; row < case_.rows; ++row) {
      if (case_.is_null_row(row)) continue;
      const int64_t nodes = length(row);
      depth.assign(static_cast<size_t>(nodes), 1);
      for (int64_t node = 0; node < nodes; ++node) {
        const int64_t at = row_stride > 0 ? row * row_stride + node : case_.cu_seqlens[static_cast<size_t>(row)] + node;
        int64_t parent = values.empty() ? node - 1 : values[static_cast<size_t>(at)];
        if (node == 0 && case_.single_root) parent = -1;
        if (parent < -1 || parent >= node) {
          return fail("parents", "row " + std::to_string(row) + ", node " + std::to_string(node) +
                                     ": expected from -1 to " + std::to_string(node - 1) + ", found " +
                                     std::to_string(parent));
        }
        if (parent >= 0) depth[static_cast<size_t>(node)] = depth[static_cast<size_t>(parent)] + 1;
        case_.depth = std::max(case_.depth, depth[static_cast<size_t>(node)]);
      }
      case_.max_nodes = static_cast<int>(std::max<int64_t>(case_.max_nodes, std::min<int64_t>(nodes, kManyNodes)));
    }
    return true;
  }

  bool snapshots() {
    const TensorInfo* list = find("snapshot_rows");
    for (const char* name : {"snapshot_positions", "snapshot_slots"}) {
      const TensorInfo* other = find(name);
      if (other == nullptr && (list == nullptr || std::string_view(name) == "snapshot_slots")) continue;
      if (list == nullptr) return fail("snapshot_rows", std::string("expected with ") + name + ", found none");
      if (other == nullptr) return fail(name, "expected with snapshot_rows, found none");
      if (other->shape != list->shape) return expected_shape(*other, io::shape_text(list->shape));
    }
    return list == nullptr || list->shape.size() == 1 || expected_shape(*list, "[S]");
  }

  // An expectation is as large as what it is compared with.
  bool expectations() {
    const auto same = [&](const char* name, const char* model, size_t rank) {
      const TensorInfo* expected = find(name);
      if (expected == nullptr) return true;
      const TensorInfo* tensor;
      if (!require(model, &tensor)) return false;
      const Shape shape = without_leading_ones(tensor->shape, rank);
      return without_leading_ones(expected->shape, rank) == shape || expected_shape(*expected, io::shape_text(shape));
    };
    const bool conv = case_.is_conv();
    if (!case_.has_tokens() && case_.has("expect.out")) {
      return fail("expect.out", "expected only where the file has tokens, found it without");
    }
    if (case_.has_tokens() && !same("expect.out", conv ? "x" : "v", conv ? 2 : 3)) return false;
    if (!same(conv ? "expect.conv_state" : "expect.state", case_.pool_name(), conv ? 3 : 4)) return false;
    if (!same("expect.dst_state", "dst_state", conv ? 3 : 4)) return false;
    if (case_.has("records") && !same("expect.records", "records", 2)) return false;
    const TensorInfo* expected = find("expect.snapshots");
    if (expected == nullptr) return true;
    const TensorInfo* list;
    const TensorInfo* pool = find(case_.pool_name());
    if (pool == nullptr) pool = find("dst_state");
    if (!require("snapshot_rows", &list) || (pool == nullptr && !require(case_.pool_name(), &pool))) return false;
    Shape shape = pool->shape;
    shape[0] = list->elements;
    return expected->shape == shape || expected_shape(*expected, io::shape_text(shape));
  }

  // The ABI's geometry is 32 bits wide.
  bool small_enough() {
    for (const int64_t number : {case_.heads, case_.value_heads, case_.key_dim, case_.value_dim, case_.conv_width,
                                 case_.channels, case_.rows, case_.tokens}) {
      if (number > std::numeric_limits<int32_t>::max()) {
        error_ = io::printable(case_.file.path()) + ": expected dimensions below 2^31, found " + std::to_string(number);
        return false;
      }
    }
    return true;
  }

  int64_t length(int64_t row) const {
    return case_.cu_seqlens[static_cast<size_t>(row) + 1] - case_.cu_seqlens[static_cast<size_t>(row)];
  }

  static constexpr int64_t kManyNodes = 1 << 20;  // the planner says how many it can serve
  Case& case_;
  std::string error_;
};

}  // namespace

bool Case::is_verify() const { return (kVerify & KDA_OPERATION_BIT(operation)) != 0; }
bool Case::is_commit() const { return (kCommit & KDA_OPERATION_BIT(operation)) != 0; }
bool Case::is_move() const { return (kMove & KDA_OPERATION_BIT(operation)) != 0; }

bool Case::is_null_row(int64_t row) const {
  if (slots.empty()) return false;
  const int64_t slot = slots[static_cast<size_t>(row)];
  return slot < 0 || (null_slot0 && slot == 0);
}

io::Outcome read_tensors(Case& replay) {
  TensorReader reader(replay);
  if (reader.read()) return io::Done{};
  return io::Error{reader.error()};
}

io::Result<Case> read_case(io::SafetensorsFile file) {
  Case replay;
  const std::string& path = file.path();
  replay.name = path.substr(path.find_last_of('/') + 1);
  replay.file = std::move(file);
  io::Outcome outcome = read_metadata(replay);
  if (outcome) outcome = read_tensors(replay);
  if (!outcome) return io::Error{outcome.error()};
  return replay;
}

io::Result<Case> read_case(const std::string& path) {
  io::Result<io::SafetensorsFile> file = io::SafetensorsFile::open(path);
  if (!file) return io::Error{file.error()};
  return read_case(std::move(*file));
}

}  // namespace kda::cli::replay
