// The operations as methods of Plan. Every argument is a keyword; tensors are read where they lie, never copied.
#include <optional>
#include <string>
#include <string_view>

#include "call_docs.h"
#include "errors.h"
#include "plan.h"
#include "tensors.h"

namespace kda_python {
namespace {

// Which keyword fills which tensor of an argument struct, and whether the call writes it. One table per operation, so
// that a keyword is named once.
template <class Args>
struct TensorField {
  const char* keyword;
  const DLTensor** (*at)(Args&);
  bool written;
};
template <class Args>
struct NumberField {
  const char* keyword;
  void (*set)(Args&, double);
};

#define KDA_TENSOR(Args, keyword, path, written)                                    \
  TensorField<Args> {                                                               \
    keyword, [](Args& a) { return const_cast<const DLTensor**>(&a.path); }, written \
  }
#define KDA_READ(Args, keyword, path) KDA_TENSOR(Args, keyword, path, false)
#define KDA_WRITTEN(Args, keyword, path) KDA_TENSOR(Args, keyword, path, true)

#define KDA_TOKEN_FIELDS(Args)                                                                             \
  KDA_READ(Args, "q", tokens.q), KDA_READ(Args, "k", tokens.k), KDA_READ(Args, "v", tokens.v),             \
      KDA_READ(Args, "a", tokens.a), KDA_READ(Args, "b", tokens.b), KDA_READ(Args, "A_log", tokens.A_log), \
      KDA_READ(Args, "dt_bias", tokens.dt_bias), KDA_WRITTEN(Args, "out", tokens.out)
#define KDA_ROW_FIELDS(Args, state_written)                                                     \
  KDA_READ(Args, "cu_seqlens", rows.cu_seqlens), KDA_READ(Args, "slots", rows.slots),           \
      KDA_READ(Args, "has_state", rows.has_state), KDA_READ(Args, "dst_slots", rows.dst_slots), \
      KDA_TENSOR(Args, "state", rows.state, state_written), KDA_WRITTEN(Args, "dst_state", rows.dst_state)
#define KDA_SNAPSHOT_FIELDS(Args, path)                                                             \
  KDA_READ(Args, "snapshot_rows", path.rows), KDA_READ(Args, "snapshot_positions", path.positions), \
      KDA_READ(Args, "snapshot_slots", path.slots), KDA_WRITTEN(Args, "snapshots", path.pool)

const TensorField<kda_extend_args> kExtend[] = {KDA_TOKEN_FIELDS(kda_extend_args),
                                                KDA_ROW_FIELDS(kda_extend_args, false),
                                                KDA_SNAPSHOT_FIELDS(kda_extend_args, snapshots)};
const TensorField<kda_decode_args> kDecode[] = {KDA_TOKEN_FIELDS(kda_decode_args),
                                                KDA_ROW_FIELDS(kda_decode_args, false)};
const TensorField<kda_verify_args> kVerify[] = {KDA_TOKEN_FIELDS(kda_verify_args),
                                                KDA_ROW_FIELDS(kda_verify_args, false),
                                                KDA_READ(kda_verify_args, "parents", parents),
                                                KDA_WRITTEN(kda_verify_args, "records", records),
                                                KDA_READ(kda_verify_args, "record_rows", record_rows),
                                                KDA_WRITTEN(kda_verify_args, "node_states", node_states),
                                                KDA_READ(kda_verify_args, "node_slots", node_slots),
                                                KDA_WRITTEN(kda_verify_args, "node_pool", node_pool),
                                                KDA_READ(kda_verify_args, "pending_tips", pending_tips),
                                                KDA_READ(kda_verify_args, "pending_record_rows", pending_record_rows),
                                                KDA_SNAPSHOT_FIELDS(kda_verify_args, pending_snapshots)};
const TensorField<kda_commit_args> kCommit[] = {KDA_ROW_FIELDS(kda_commit_args, false),
                                                KDA_READ(kda_commit_args, "tips", tips),
                                                KDA_READ(kda_commit_args, "records", records),
                                                KDA_READ(kda_commit_args, "record_rows", record_rows),
                                                KDA_SNAPSHOT_FIELDS(kda_commit_args, snapshots),
                                                KDA_READ(kda_commit_args, "state_table", state_layers.table),
                                                KDA_READ(kda_commit_args, "dst_table", dst_layers.table),
                                                KDA_READ(kda_commit_args, "record_table", record_layers.table),
                                                KDA_READ(kda_commit_args, "snapshot_table", snapshot_layers.table)};
const TensorField<kda_move_args> kMove[] = {KDA_READ(kda_move_args, "source", source),
                                            KDA_WRITTEN(kda_move_args, "destination", destination),
                                            KDA_READ(kda_move_args, "source_slots", source_slots),
                                            KDA_READ(kda_move_args, "destination_slots", destination_slots),
                                            KDA_READ(kda_move_args, "source_table", source_layers.table),
                                            KDA_READ(kda_move_args, "destination_table", destination_layers.table)};
const TensorField<kda_conv_args> kConv[] = {KDA_READ(kda_conv_args, "x", x),
                                            KDA_READ(kda_conv_args, "weight", weight),
                                            KDA_READ(kda_conv_args, "bias", bias),
                                            KDA_WRITTEN(kda_conv_args, "out", out),
                                            KDA_ROW_FIELDS(kda_conv_args, false),
                                            KDA_SNAPSHOT_FIELDS(kda_conv_args, snapshots),
                                            KDA_READ(kda_conv_args, "parents", parents),
                                            KDA_WRITTEN(kda_conv_args, "records", records),
                                            KDA_READ(kda_conv_args, "record_rows", record_rows),
                                            KDA_READ(kda_conv_args, "pending_tips", pending_tips),
                                            KDA_READ(kda_conv_args, "pending_record_rows", pending_record_rows)};

template <class Args>
constexpr bool kHasTokens = requires(Args a) {
  a.tokens;
};
template <class Args>
constexpr bool kHasLayers = requires(Args a) {
  a.layers;
};
template <class Args>
constexpr bool kHasRows = requires(Args a) {
  a.rows;
};

// Whether a call stores into its source pool `state`: then the array must be writable. In place, or because a list of
// destinations comes without a pool of its own.
bool stores_to_source(const nb::kwargs& arguments, std::string_view operation) {
  const auto given = [&](const char* keyword) { return arguments.contains(keyword) && !arguments[keyword].is_none(); };
  const bool verify = operation.ends_with("verify");
  if (verify && given("node_slots") && !given("node_pool")) return true;
  if (verify && !given("pending_tips")) return false;
  if (given("snapshot_slots") && !given("snapshots")) return true;
  return !given("dst_slots") || !given("dst_state");
}

double number(const std::string& keyword, nb::handle value) {
  double result;
  if (!nb::try_cast(value, result))
    throw nb::type_error((keyword + ": a number, not " + nb::repr(value).c_str()).c_str());
  return result;
}

int64_t integer(const std::string& keyword, nb::handle value) {
  int64_t result;
  if (!nb::try_cast(value, result)) {
    throw nb::type_error((keyword + ": an integer, not " + nb::repr(value).c_str()).c_str());
  }
  return result;
}

// Numbers: scale and lower_bound of token operations, layers and byte strides of those over layers.
template <class Args>
bool set_number(Args& args, const std::string& keyword, nb::handle value) {
  if constexpr (kHasTokens<Args>) {
    if (keyword == "scale") return args.tokens.scale = number(keyword, value), true;
    if (keyword == "lower_bound") return args.tokens.lower_bound = number(keyword, value), true;
  }
  if constexpr (kHasLayers<Args>) {
    if (keyword == "layers") {
      const int64_t layers = integer(keyword, value);
      if (layers != static_cast<int32_t>(layers)) {
        throw_argument_error(KDA_E_NUMBER, "layers", nb::str(value).c_str(), "a number of 32 bits");
      }
      return args.layers = static_cast<int32_t>(layers), true;
    }
    if constexpr (kHasRows<Args>) {
      if (keyword == "state_layer_stride") return args.state_layers.stride = integer(keyword, value), true;
      if (keyword == "dst_layer_stride") return args.dst_layers.stride = integer(keyword, value), true;
      if (keyword == "record_layer_stride") return args.record_layers.stride = integer(keyword, value), true;
      if (keyword == "snapshot_layer_stride") return args.snapshot_layers.stride = integer(keyword, value), true;
    } else {
      if (keyword == "source_layer_stride") return args.source_layers.stride = integer(keyword, value), true;
      if (keyword == "destination_layer_stride") {
        return args.destination_layers.stride = integer(keyword, value), true;
      }
    }
  }
  return false;
}

// The bytes between a tensor's lowest and highest element, for strides of either sign; empty without elements.
struct Extent {
  const char *begin = nullptr, *end = nullptr;
  bool overlaps(const Extent& other) const { return begin < other.end && other.begin < end; }
};
Extent extent_of(const DLTensor& t) {
  const char* first = static_cast<const char*>(t.data) + t.byte_offset;
  const int64_t bytes = t.dtype.bits / 8;
  int64_t low = 0, high = 0, packed = 1;
  for (int32_t d = t.ndim - 1; d >= 0; --d) {
    if (t.shape[d] == 0) return {};
    const int64_t reach = (t.shape[d] - 1) * (t.strides != nullptr ? t.strides[d] : packed);
    packed *= t.shape[d];
    (reach < 0 ? low : high) += reach;
  }
  return {first + low * bytes, first + (high + 1) * bytes};
}

int64_t elements_of(const DLTensor& t) {
  int64_t count = 1;
  for (int32_t d = 0; d < t.ndim; ++d) count *= t.shape[d];
  return count;
}

void check_workspace(const DLTensor& t) {
  int64_t packed = 1;
  for (int32_t d = t.ndim - 1; d >= 0; --d) {
    if (t.shape[d] > 1 && t.strides != nullptr && t.strides[d] != packed) {
      throw_argument_error(KDA_E_STRIDE, "workspace", "an array with gaps, repeated or reversed", "a contiguous array");
    }
    packed *= t.shape[d];
  }
}

void check_device_status(const DLTensor& t) {
  const bool word = (t.dtype.code == kDLUInt || t.dtype.code == kDLInt) && t.dtype.bits == 32 && t.dtype.lanes == 1;
  if (!word) throw_argument_error(KDA_E_DTYPE, "device_status", "an array of another dtype", "uint32 or int32 [1]");
  if (elements_of(t) < 1) throw_argument_error(KDA_E_SHAPE, "device_status", "an empty array", "uint32 or int32 [1]");
}

template <class Args, size_t N>
void call(Plan& plan, const char* operation, const TensorField<Args> (&fields)[N],
          kda_status (*function)(const kda_plan*, const Args*, const kda_call*, kda_error*),
          const nb::kwargs& arguments) {
  Args args = kda::args<Args>();
  auto call_options = kda::args<kda_call>();
  std::optional<Borrowed> tensors[N + 2];  // workspace and device_status after the fields
  size_t used = 0, workspace_at = N + 2;
  Extent workspace;
  for (auto [key, value] : arguments) {
    if (value.is_none()) continue;
    const std::string keyword = nb::cast<std::string>(key);
    size_t i = 0;
    while (i < N && keyword != fields[i].keyword) ++i;
    if (i < N) {
      const bool in_place = keyword == "state" && stores_to_source(arguments, operation);
      const bool move_source =
          keyword == "source" && (!arguments.contains("destination") || arguments["destination"].is_none());
      const Borrowed& tensor =
          tensors[used++].emplace(value, fields[i].keyword, fields[i].written || in_place || move_source);
      *fields[i].at(args) = tensor.get();
      if (call_options.stream == nullptr && tensor.get()) call_options.stream = current_stream(value, *tensor.get());
    } else if (keyword == "stream") {
      call_options.stream = reinterpret_cast<void*>(integer(keyword, value));
    } else if (keyword == "workspace") {
      const Borrowed& tensor = tensors[used++].emplace(value, "workspace", true);
      const DLTensor& t = *tensor.get();
      check_workspace(t);
      workspace = extent_of(t);
      workspace_at = used - 1;
      call_options.workspace = static_cast<char*>(t.data) + t.byte_offset;
      call_options.workspace_bytes = static_cast<size_t>(elements_of(t) * (t.dtype.bits / 8));
    } else if (keyword == "device_status") {
      const Borrowed& tensor = tensors[used++].emplace(value, "device_status", true);
      check_device_status(*tensor.get());
      call_options.device_status =
          reinterpret_cast<uint32_t*>(static_cast<char*>(tensor.get()->data) + tensor.get()->byte_offset);
    } else if (!set_number(args, keyword, value)) {
      throw nb::type_error((std::string("unknown argument of ") + operation + ": " + keyword).c_str());
    }
  }
  for (size_t i = 0; i < used; ++i) {
    if (i != workspace_at && workspace.overlaps(extent_of(*tensors[i]->get()))) {
      throw_argument_error(KDA_E_OVERLAP, "workspace", "memory of another argument", "memory of its own");
    }
  }
  std::optional<WorkspaceCache::Lease> lease;
  if (call_options.workspace == nullptr && plan.handle.info().backend != KDA_BACKEND_CUDA) {
    lease.emplace(plan.workspaces);
    call_options.workspace = lease->address();
    call_options.workspace_bytes = plan.workspaces.bytes();
  }
  kda_error error = fresh_error();
  {
    const nb::gil_scoped_release release;
    error.status = function(plan.handle.get(), &args, &call_options, &error);
  }
  if (error.status != KDA_OK) throw_error(error);
}

}  // namespace

#define KDA_CALL(operation, fields, doc)                                                                           \
  plan.def(                                                                                                        \
      #operation,                                                                                                  \
      [](Plan& self, const nb::kwargs& arguments) { call(self, #operation, fields, kda_##operation, arguments); }, \
      nb::arg("kwargs"), doc)

template <class Args, size_t N>
nb::list describe(const TensorField<Args> (&fields)[N]) {
  nb::list rows;
  for (const TensorField<Args>& field : fields) rows.append(nb::make_tuple(field.keyword, field.written));
  return rows;
}

void bind_calls(nb::module_& m, nb::class_<Plan>& plan) {
  KDA_CALL(extend, kExtend, KDA_DOC_EXTEND);
  KDA_CALL(decode, kDecode, KDA_DOC_DECODE);
  KDA_CALL(verify, kVerify, KDA_DOC_VERIFY);
  KDA_CALL(commit, kCommit, KDA_DOC_COMMIT);
  KDA_CALL(move, kMove, KDA_DOC_MOVE);
  KDA_CALL(conv_extend, kConv, KDA_DOC_CONV("The short convolution, bias and SiLU over rows of any length."));
  KDA_CALL(conv_decode, kConv, KDA_DOC_CONV("The short convolution, one token a row."));
  KDA_CALL(conv_verify, kConv,
           KDA_DOC_CONV("The short convolution over drafts; windows stay as they are, x is kept in records."));
  KDA_CALL(conv_commit, kCommit, KDA_DOC_COMMIT);
  KDA_CALL(conv_move, kMove, KDA_DOC_MOVE);
  m.def(
      "tensor_arguments",
      [](const std::string& operation) -> nb::list {
        if (operation == "extend") return describe(kExtend);
        if (operation == "decode") return describe(kDecode);
        if (operation == "verify") return describe(kVerify);
        if (operation == "commit" || operation == "conv_commit") return describe(kCommit);
        if (operation == "move" || operation == "conv_move") return describe(kMove);
        if (operation == "conv_extend" || operation == "conv_decode" || operation == "conv_verify") {
          return describe(kConv);
        }
        throw nb::value_error(("no such operation: " + operation).c_str());
      },
      nb::arg("operation"), "Tensor keywords of a method of Plan, each with whether every call writes it.");
}

}  // namespace kda_python
