#include "cli/replay/run.h"

#include <algorithm>

#include "cli/context.h"

namespace kda::cli::replay {
namespace {

using io::TensorInfo;
using io::TensorType;

template <class T>
T abi_struct() {
  T value = {};
  value.struct_size = sizeof value;
  return value;
}

int32_t kda_dtype_of(const TensorInfo* tensor, int32_t otherwise) {
  if (tensor == nullptr) return otherwise;
  return tensor->type == TensorType::kF32 ? KDA_FP32 : tensor->type == TensorType::kBF16 ? KDA_BF16 : KDA_FP16;
}

uint32_t operations_of(const Case& replay) {
  uint32_t bits = KDA_OPERATION_BIT(replay.operation);
  const int commit = replay.is_conv() ? KDA_CONV_COMMIT : KDA_COMMIT;
  if (replay.is_verify() && replay.has("tips")) bits |= KDA_OPERATION_BIT(commit);
  if (replay.is_commit() && replay.has_tokens()) {
    bits |= KDA_OPERATION_BIT(replay.is_conv() ? KDA_CONV_VERIFY : KDA_VERIFY);
  }
  return bits;
}

// A conv file names channels, not heads. Any geometry with at least that many channels serves: channels may be a range.
void invent_conv_geometry(int64_t channels, kda_problem& problem) {
  constexpr int kDim = 64;
  problem.key_dim = problem.value_dim = kDim;
  problem.heads = problem.value_heads = static_cast<int32_t>((channels + 3 * kDim - 1) / (3 * kDim));
}

kda_problem problem_of(const Case& replay, int backend, int numerics) {
  const RecordedPlan& recorded = replay.plan;
  auto problem = abi_struct<kda_problem>();
  problem.backend = backend;
  problem.operations = operations_of(replay);
  problem.layers = 1;
  problem.max_rows = std::max({recorded.max_rows, replay.rows, int64_t{1}});
  problem.max_tokens = std::max({recorded.max_tokens, replay.tokens, problem.max_rows});
  problem.max_nodes = std::max(recorded.max_nodes, replay.max_nodes);
  const TensorInfo* snapshots = replay.file.find("snapshot_rows");
  const int64_t entries = snapshots != nullptr ? snapshots->elements : 0;
  problem.max_snapshots = std::max(recorded.max_snapshots, static_cast<int32_t>(std::min<int64_t>(entries, INT32_MAX)));
  if (!replay.is_conv()) {
    problem.heads = static_cast<int32_t>(replay.heads);
    problem.value_heads = static_cast<int32_t>(replay.value_heads);
    problem.key_dim = static_cast<int32_t>(replay.key_dim);
    problem.value_dim = static_cast<int32_t>(replay.value_dim);
  } else if (recorded.heads > 0 && recorded.key_dim > 0) {
    problem.heads = recorded.heads;
    problem.value_heads = recorded.value_heads;
    problem.key_dim = recorded.key_dim;
    problem.value_dim = recorded.value_dim;
  } else {
    invent_conv_geometry(replay.channels, problem);
  }
  problem.conv_width = static_cast<int32_t>(replay.is_conv() ? replay.conv_width : recorded.conv_width);

  const io::SafetensorsFile& file = replay.file;
  problem.io_dtype = kda_dtype_of(file.find(replay.is_conv() ? "x" : "q"), recorded.io_dtype);
  problem.gate_dtype = kda_dtype_of(file.find("a"), recorded.gate_dtype);
  problem.beta_dtype = kda_dtype_of(file.find("b"), recorded.beta_dtype);
  problem.state_dtype = kda_dtype_of(file.find("state"), KDA_DTYPE_DEFAULT);
  problem.conv_state_dtype = kda_dtype_of(file.find("conv_state"), KDA_DTYPE_DEFAULT);
  problem.conv_weight_dtype = kda_dtype_of(file.find("w"), KDA_DTYPE_DEFAULT);
  problem.state_layout = replay.state_layout;
  problem.conv_layout = replay.conv_layout;
  problem.gate = replay.gate;
  problem.beta = replay.beta;
  problem.no_qk_l2norm = replay.qk_l2norm ? 0 : 1;
  problem.extend_numerics = numerics;
  problem.verify_numerics = numerics;
  problem.null_slot0 = replay.null_slot0 ? 1 : 0;
  problem.single_root = replay.single_root ? 1 : 0;
  return problem;
}

io::Result<PreparedPlan> make_plan(const kda_context* context, const kda_problem& problem) {
  PreparedPlan prepared;
  kda_error error = empty_error();
  kda_plan* plan = nullptr;
  kda_status status = kda_plan_create(context, &problem, &plan, &error);
  if (status != KDA_OK) return io::Error{refusal(error, status)};
  prepared.plan.reset(plan);
  prepared.info = abi_struct<kda_plan_info>();
  status = kda_plan_get_info(plan, &prepared.info);
  if (status != KDA_OK) return io::Error{refusal(empty_error(), status)};
  prepared.backend = prepared.info.backend;
  prepared.numerics = problem.extend_numerics;
  return prepared;
}

size_t record_row_bytes(const Case& replay, const PreparedPlan& prepared) {
  return replay.is_conv() ? kda_plan_conv_record_row_bytes(prepared.plan.get(), replay.channels)
                          : prepared.info.record_row_bytes;
}

// The tensors of one case in memory that the calls may write, and the calls.
class Runner {
 public:
  Runner(const Case& replay, const PreparedPlan& prepared, CallMemory& memory)
      : case_(replay), prepared_(prepared), memory_(memory) {}

  io::Result<Outputs> run() {
    io::Outcome outcome = load();
    if (outcome) outcome = memory_.upload(tensors());
    if (outcome) outcome = make_calls();
    if (outcome) outcome = memory_.download(tensors());
    if (!outcome) return io::Error{io::printable(case_.file.path()) + ": " + outcome.error()};
    Outputs outputs;
    outputs.out = std::move(out_);
    outputs.pool = std::move(pool_);
    outputs.dst_pool = std::move(dst_pool_);
    outputs.snapshots = std::move(snapshots_);
    outputs.records = std::move(records_);
    outputs.status_bits = *reinterpret_cast<const uint32_t*>(status_.bytes().data());
    return outputs;
  }

 private:
  static constexpr const char* kInputNames[] = {"q",
                                                "k",
                                                "v",
                                                "a",
                                                "b",
                                                "A_log",
                                                "dt_bias",
                                                "x",
                                                "w",
                                                "bias",
                                                "slots",
                                                "parents",
                                                "tips",
                                                "cu_seqlens",
                                                "has_state",
                                                "dst_slots",
                                                "node_slots",
                                                "record_rows",
                                                "pending_tips",
                                                "pending_record_rows",
                                                "snapshot_rows",
                                                "snapshot_positions",
                                                "snapshot_slots"};
  static constexpr size_t kInputs = std::size(kInputNames);

  const DLTensor* input(std::string_view name) const {
    for (size_t i = 0; i < kInputs; ++i) {
      if (name == kInputNames[i]) return inputs_[i].view();
    }
    return nullptr;
  }

  std::vector<HostTensor*> tensors() {
    std::vector<HostTensor*> all = {&out_,       &pool_,        &dst_pool_,           &snapshots_,       &records_,
                                    &workspace_, &own_seqlens_, &own_snapshot_slots_, &later_has_state_, &status_};
    for (HostTensor& tensor : inputs_) all.push_back(&tensor);
    std::erase_if(all, [](const HostTensor* tensor) { return !tensor->present(); });
    return all;
  }

  io::Outcome load() {
    for (size_t i = 0; i < kInputs; ++i) copy(kInputNames[i], inputs_[i]);
    copy(case_.pool_name(), pool_);
    copy("dst_state", dst_pool_);
    if (case_.has_tokens() && !case_.has("cu_seqlens") && case_.operation != KDA_DECODE &&
        case_.operation != KDA_CONV_DECODE) {
      own_seqlens_ = HostTensor::of_indices(case_.cu_seqlens);
    }
    status_ = HostTensor::of_indices({0});
    const auto workspace_bytes = static_cast<int64_t>(prepared_.info.workspace_bytes);
    io::Outcome outcome = poison(workspace_, TensorType::kU8, {workspace_bytes}, "workspace");
    if (outcome && case_.has_tokens()) {
      const TensorInfo* like = case_.file.find(case_.is_conv() ? "x" : "v");
      outcome = poison(out_, like->type, like->shape, "out");
    }
    if (outcome) outcome = load_records();
    if (outcome) outcome = load_snapshots();
    if (outcome && case_.has("tips") && case_.has("pending_tips") && case_.has("has_state"))
      state_flags_after_pending();
    return outcome;
  }

  void copy(const char* name, HostTensor& tensor) const {
    if (const TensorInfo* found = case_.file.find(name)) tensor = HostTensor::copy_of(*found);
  }

  static io::Outcome poison(HostTensor& tensor, TensorType type, const io::Shape& shape, const char* what) {
    io::Result<HostTensor> made = HostTensor::poisoned(type, shape, what);
    if (!made) return io::Error{made.error()};
    tensor = std::move(*made);
    return io::Done{};
  }

  io::Outcome load_records() {
    if (!case_.is_verify() && !case_.is_commit()) return io::Done{};
    if (case_.has("records")) {
      copy("records", records_);
      return io::Done{};
    }
    if (const TensorInfo* expected = case_.file.find("expect.records")) {
      return poison(records_, TensorType::kU8, expected->shape, "records");
    }
    int64_t rows = case_.rows;
    if (const TensorInfo* record_rows = case_.file.find("record_rows")) {
      rows = 0;
      for (const int64_t row : indices_of(*record_rows)) {
        if (row == INT64_MAX)
          return io::Error{"tensor 'record_rows': expected a row number, found " + std::to_string(row)};
        rows = std::max(rows, row + 1);
      }
    }
    const auto row_bytes = static_cast<int64_t>(record_row_bytes(case_, prepared_));
    return poison(records_, TensorType::kU8, {rows, row_bytes}, "records");
  }

  io::Outcome load_snapshots() {
    const TensorInfo* list = case_.file.find("snapshot_rows");
    if (list == nullptr || case_.has("snapshot_slots")) return io::Done{};
    const HostTensor& pool = pool_.present() ? pool_ : dst_pool_;
    if (!pool.present())
      return io::Error{"tensor 'snapshot_rows': expected a pool that says a snapshot's shape, found none"};
    io::Shape shape = pool.shape();
    shape[0] = list->elements;
    std::vector<int64_t> slots(static_cast<size_t>(list->elements));
    for (size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<int64_t>(i);
    own_snapshot_slots_ = HostTensor::of_indices(slots);
    return poison(snapshots_, TensorType::kF32, shape, "snapshots");
  }

  // A pending commit fills slots that has_state called empty: the commit of `tips` afterwards must know.
  void state_flags_after_pending() {
    const auto flag_bytes = case_.file.find("has_state")->data;
    const std::vector<int64_t> tips = indices_of(*case_.file.find("pending_tips"));
    const std::vector<int64_t> rows = indices_of(*case_.file.find("pending_record_rows"));
    std::vector<uint8_t> flags(flag_bytes.size());
    for (size_t i = 0; i < flags.size(); ++i) {
      flags[i] = flag_bytes[i] != std::byte{0} || (tips[i] >= 0 && rows[i] >= 0) || case_.has("dst_slots") ? 1 : 0;
    }
    later_has_state_ = HostTensor::of_flags(flags);
  }

  kda_rows rows() const {
    kda_rows rows = {};
    rows.cu_seqlens = own_seqlens_.present() ? own_seqlens_.view() : input("cu_seqlens");
    rows.slots = input("slots");
    rows.has_state = input("has_state");
    rows.state = pool_.view();
    rows.dst_slots = input("dst_slots");
    rows.dst_state = dst_pool_.view();
    return rows;
  }

  kda_rows rows_in_place() const {
    kda_rows in_place = rows();
    in_place.dst_slots = in_place.dst_state = nullptr;
    return in_place;
  }

  kda_snapshots snapshots() const {
    kda_snapshots list = {};
    list.rows = input("snapshot_rows");
    list.positions = input("snapshot_positions");
    list.slots = own_snapshot_slots_.present() ? own_snapshot_slots_.view() : input("snapshot_slots");
    list.pool = snapshots_.view();
    return list;
  }

  kda_tokens tokens() const {
    kda_tokens tokens = {};
    tokens.q = input("q");
    tokens.k = input("k");
    tokens.v = input("v");
    tokens.a = input("a");
    tokens.b = input("b");
    tokens.A_log = input("A_log");
    tokens.dt_bias = input("dt_bias");
    tokens.out = out_.view();
    tokens.scale = case_.scale;
    tokens.lower_bound = case_.gate == KDA_GATE_BOUNDED ? case_.lower_bound : 0;
    return tokens;
  }

  // Makes one call and turns a refusal into an error.
  template <class Function, class Arguments>
  io::Outcome call(Function function, const Arguments& arguments) {
    auto resources = abi_struct<kda_call>();
    resources.workspace = workspace_.view()->data;
    resources.workspace_bytes = prepared_.info.workspace_bytes;
    resources.device_status = static_cast<uint32_t*>(status_.view()->data);
    kda_error error = empty_error();
    const kda_status status = function(prepared_.plan.get(), &arguments, &resources, &error);
    if (status != KDA_OK) return io::Error{refusal(error, status)};
    return io::Done{};
  }

  io::Outcome make_calls() {
    switch (case_.operation) {
      case KDA_EXTEND: {
        auto arguments = abi_struct<kda_extend_args>();
        arguments.tokens = tokens();
        arguments.rows = rows();
        arguments.snapshots = snapshots();
        return call(kda_extend, arguments);
      }
      case KDA_DECODE: {
        auto arguments = abi_struct<kda_decode_args>();
        arguments.tokens = tokens();
        arguments.rows = rows();
        return call(kda_decode, arguments);
      }
      case KDA_CONV_EXTEND:
      case KDA_CONV_DECODE: {
        kda_conv_args arguments = conv_arguments();
        arguments.rows = rows();
        if (case_.operation == KDA_CONV_DECODE) return call(kda_conv_decode, arguments);
        arguments.snapshots = snapshots();
        return call(kda_conv_extend, arguments);
      }
      case KDA_MOVE:
      case KDA_CONV_MOVE: {
        auto arguments = abi_struct<kda_move_args>();
        arguments.layers = 1;
        arguments.source = pool_.view();
        arguments.destination = dst_pool_.view();
        arguments.source_slots = input("slots");
        arguments.destination_slots = input("dst_slots");
        return case_.is_conv() ? call(kda_conv_move, arguments) : call(kda_move, arguments);
      }
      default:
        return verify_and_commit();
    }
  }

  // A file that verifies may name tips to commit afterwards; one that commits may bring tokens instead of records.
  io::Outcome verify_and_commit() {
    io::Outcome outcome = io::Done{};
    if (case_.has_tokens()) outcome = case_.is_conv() ? conv_verify() : verify();
    return outcome && case_.has("tips") ? commit() : outcome;
  }

  bool pending() const { return case_.is_verify() && case_.has("pending_tips"); }

  io::Outcome verify() {
    auto arguments = abi_struct<kda_verify_args>();
    arguments.tokens = tokens();
    arguments.rows = pending() ? rows() : rows_in_place();
    arguments.parents = input("parents");
    arguments.records = records_.view();
    arguments.record_rows = input("record_rows");
    arguments.node_slots = input("node_slots");
    if (pending()) {
      arguments.pending_tips = input("pending_tips");
      arguments.pending_record_rows = input("pending_record_rows");
      arguments.pending_snapshots = snapshots();
    }
    return call(kda_verify, arguments);
  }

  kda_conv_args conv_arguments() const {
    auto arguments = abi_struct<kda_conv_args>();
    arguments.x = input("x");
    arguments.weight = input("w");
    arguments.bias = input("bias");
    arguments.out = out_.view();
    return arguments;
  }

  io::Outcome conv_verify() {
    kda_conv_args arguments = conv_arguments();
    arguments.rows = pending() ? rows() : rows_in_place();
    arguments.parents = input("parents");
    arguments.records = records_.view();
    arguments.record_rows = input("record_rows");
    if (pending()) {
      arguments.pending_tips = input("pending_tips");
      arguments.pending_record_rows = input("pending_record_rows");
      arguments.snapshots = snapshots();
    }
    return call(kda_conv_verify, arguments);
  }

  io::Outcome commit() {
    auto arguments = abi_struct<kda_commit_args>();
    arguments.layers = 1;
    arguments.rows = rows();
    arguments.rows.cu_seqlens = nullptr;
    if (pending()) {
      // The pending commit has moved the rows to their destinations and taken the snapshots.
      if (input("dst_slots") != nullptr) {
        arguments.rows.slots = input("dst_slots");
        if (dst_pool_.present()) arguments.rows.state = dst_pool_.view();
      }
      arguments.rows.dst_slots = arguments.rows.dst_state = nullptr;
      if (later_has_state_.present()) arguments.rows.has_state = later_has_state_.view();
    } else {
      arguments.snapshots = snapshots();
    }
    arguments.tips = input("tips");
    arguments.records = records_.view();
    arguments.record_rows = input("record_rows");
    return case_.is_conv() ? call(kda_conv_commit, arguments) : call(kda_commit, arguments);
  }

  const Case& case_;
  const PreparedPlan& prepared_;
  CallMemory& memory_;
  HostTensor inputs_[kInputs];
  HostTensor out_, pool_, dst_pool_, snapshots_, records_, workspace_;
  HostTensor own_seqlens_, own_snapshot_slots_, later_has_state_, status_;
};

}  // namespace

io::Result<PreparedPlan> prepare(const Case& replay, const kda_context* context, int backend, int numerics,
                                 const char* kernels) {
  const auto fail = [&](const std::string& text) { return io::Error{io::printable(replay.file.path()) + ": " + text}; };
  kda_problem problem = problem_of(replay, backend, numerics);
  problem.kernels = kernels;
  io::Result<PreparedPlan> prepared = make_plan(context, problem);
  if (!prepared) return fail(prepared.error());
  // Records tell their plan's max_nodes only by their size: find it where the file does not say.
  const TensorInfo* records = replay.file.find("records");
  if (records == nullptr || replay.plan.present) return prepared;
  constexpr int kMostNodes = 64;
  for (int nodes = problem.max_nodes; nodes <= kMostNodes; ++nodes) {
    problem.max_nodes = nodes;
    io::Result<PreparedPlan> attempt = make_plan(context, problem);
    if (!attempt) return fail(attempt.error());
    if (record_row_bytes(replay, *attempt) == static_cast<size_t>(records->shape[1])) return attempt;
  }
  return fail("tensor 'records': expected rows of a record of at most 64 nodes, found rows of " +
              std::to_string(records->shape[1]) + " bytes");
}

io::Result<Outputs> run(const Case& replay, const PreparedPlan& prepared, CallMemory& memory) {
  return Runner(replay, prepared, memory).run();
}

}  // namespace kda::cli::replay
