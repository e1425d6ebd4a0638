#include "cli/selftest.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <random>

#include "cli/replay/judge.h"
#include "cli/replay/memory.h"
#include "cli/replay/tensor.h"

namespace kda::cli {
namespace {

using io::TensorType;

struct TestShape {
  const char* text;
  int64_t heads, value_heads, key_dim, value_dim;
  TensorType io;
};
constexpr TestShape kShapes[] = {
    {"bf16 H1 HV2 K64 V64", 1, 2, 64, 64, TensorType::kBF16},
    {"bf16 H2 HV2 K128 V128", 2, 2, 128, 128, TensorType::kBF16},
    {"fp32 H2 HV4 K32 V48", 2, 4, 32, 48, TensorType::kF32},
};
// Rows of one token for decode; drafts and prompts otherwise. The third row is null.
constexpr int64_t kLengths[] = {9, 1, 2, 33};
constexpr int64_t kSlots[] = {3, 0, -1, 2};
constexpr int64_t kPoolSlots = 5;
constexpr int64_t kRows = 4;
constexpr int64_t kDraftNodes = 9;
constexpr int64_t kConvWidth = 4;

// A replay file being put together in memory.
class MemoryCase {
 public:
  explicit MemoryCase(uint64_t seed) : random_(seed) {}

  void key(const char* name, std::string value) { metadata_[name] = std::move(value); }
  void floats(const std::string& name, TensorType type, const io::Shape& shape, double mean, double deviation) {
    std::normal_distribution<float> normal(static_cast<float>(mean), static_cast<float>(deviation));
    std::vector<std::byte>& bytes = storage_.emplace_back();
    int64_t count = 1;
    for (const int64_t dim : shape) count *= dim;
    for (int64_t i = 0; i < count; ++i) {
      const float value = normal(random_);
      uint32_t bits;
      std::memcpy(&bits, &value, sizeof bits);
      // Cutting to bf16 is as good as rounding: these are random numbers.
      const auto* begin = reinterpret_cast<const std::byte*>(&bits) + (type == TensorType::kBF16 ? 2 : 0);
      bytes.insert(bytes.end(), begin, reinterpret_cast<const std::byte*>(&bits) + sizeof bits);
    }
    tensors_.push_back({name, type, shape, bytes});
  }
  void indices(const char* name, const std::vector<int64_t>& values) {
    raw(name, TensorType::kI64, {static_cast<int64_t>(values.size())}, std::as_bytes(std::span(values)));
  }
  void raw(const std::string& name, TensorType type, const io::Shape& shape, std::span<const std::byte> bytes) {
    tensors_.push_back({name, type, shape, storage_.emplace_back(bytes.begin(), bytes.end())});
  }
  void expect(const char* name, const replay::HostTensor& tensor) {
    if (tensor.present()) raw(std::string("expect.") + name, tensor.type(), tensor.shape(), tensor.bytes());
  }
  int64_t below(int64_t limit) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(limit)); }

  io::Result<replay::Case> read() {
    const io::Result<std::string> bytes = io::safetensors_bytes(tensors_, metadata_);
    if (!bytes) return io::Error{bytes.error()};
    bytes_.push_back(*bytes);
    io::Result<io::SafetensorsFile> file =
        io::SafetensorsFile::parse(std::as_bytes(std::span(bytes_.back())), "self-test");
    if (!file) return io::Error{file.error()};
    return replay::read_case(std::move(*file));
  }

 private:
  std::mt19937_64 random_;
  std::deque<std::vector<std::byte>> storage_;  // stable addresses
  std::deque<std::string> bytes_;
  std::vector<io::TensorToWrite> tensors_;
  std::map<std::string, std::string> metadata_;
};

bool is_conv(int operation) { return operation >= KDA_CONV_EXTEND; }
bool has_draft(int operation) {
  return operation != KDA_EXTEND && operation != KDA_DECODE && operation != KDA_CONV_EXTEND &&
         operation != KDA_CONV_DECODE;
}

void add_tokens(MemoryCase& made, const TestShape& shape, int operation, int64_t tokens) {
  const TensorType io = shape.io;
  if (is_conv(operation)) {
    const int64_t channels = 2 * shape.heads * shape.key_dim + shape.value_heads * shape.value_dim;
    made.floats("x", io, {tokens, channels}, 0, 1);
    made.floats("w", TensorType::kF32, {channels, kConvWidth}, 0, 0.7);
    made.floats("bias", TensorType::kF32, {channels}, 0, 0.5);
    return;
  }
  made.floats("q", io, {tokens, shape.heads, shape.key_dim}, 0, 1);
  made.floats("k", io, {tokens, shape.heads, shape.key_dim}, 0.5, 1);  // keys with a common part
  made.floats("v", io, {tokens, shape.value_heads, shape.value_dim}, 0, 1);
  made.floats("a", io, {tokens, shape.value_heads, shape.key_dim}, 0, 3);
  made.floats("b", io, {tokens, shape.value_heads}, 0, 2);
  made.floats("A_log", TensorType::kF32, {shape.value_heads}, 0, 1);
  made.floats("dt_bias", TensorType::kF32, {shape.value_heads, shape.key_dim}, -1, 1.5);
}

// Inputs of one call; `records` are of an earlier verify, for the pending commit.
void add_inputs(MemoryCase& made, const TestShape& shape, int operation, const replay::HostTensor* records) {
  made.key("kda.replay", "1");
  made.key("kda.op", replay::operation_name(operation));
  const char* pool = is_conv(operation) ? "conv_state" : "state";
  if (is_conv(operation)) {
    const int64_t channels = 2 * shape.heads * shape.key_dim + shape.value_heads * shape.value_dim;
    made.floats(pool, shape.io, {kPoolSlots, kConvWidth - 1, channels}, 0, 1);
  } else {
    made.floats(pool, TensorType::kF32, {kPoolSlots, shape.value_heads, shape.value_dim, shape.key_dim}, 0, 0.5);
  }
  if (operation == KDA_MOVE || operation == KDA_CONV_MOVE) {
    made.indices("slots", {0, 1, 2, 4});
    made.indices("dst_slots", {1, 2, 0, 3});
    return;
  }
  made.indices("slots", {std::begin(kSlots), std::end(kSlots)});
  const bool decode = operation == KDA_DECODE || operation == KDA_CONV_DECODE;
  std::vector<int64_t> cu = {0}, parents, tips, rows;
  for (int64_t row = 0; row < kRows; ++row) {
    const int64_t nodes = decode ? 1 : has_draft(operation) ? std::min(kLengths[row], kDraftNodes) : kLengths[row];
    cu.push_back(cu.back() + nodes);
    for (int64_t node = 0; node < nodes; ++node) parents.push_back(made.below(node + 1) - 1);
    tips.push_back(nodes - 1);
    rows.push_back(row);
  }
  made.indices("cu_seqlens", cu);
  add_tokens(made, shape, operation, cu.back());
  if (!has_draft(operation)) return;
  made.indices("parents", parents);
  made.indices("tips", tips);
  if (records == nullptr) return;
  // The earlier round's rows, doubled: this round writes behind what it reads.
  std::vector<std::byte> twice(records->bytes().begin(), records->bytes().end());
  twice.insert(twice.end(), records->bytes().begin(), records->bytes().end());
  made.raw("records", TensorType::kU8, {2 * kRows, records->shape()[1]}, twice);
  made.indices("pending_tips", tips);
  made.indices("pending_record_rows", rows);
  made.indices("record_rows", {kRows, kRows + 1, kRows + 2, kRows + 3});
}

io::Result<replay::Outputs> outputs_of(const replay::Case& replay, const kda_context* context, int backend,
                                       int numerics) {
  const io::Result<replay::PreparedPlan> plan = replay::prepare(replay, context, backend, numerics);
  if (!plan) return io::Error{plan.error()};
  const std::unique_ptr<replay::CallMemory> memory = replay::memory_for(backend);
  return replay::run(replay, *plan, *memory);
}

// Records of an earlier verify, for the pending commit.
io::Result<replay::HostTensor> earlier_records(const kda_context* context, int operation, const TestShape& shape,
                                               uint64_t seed, int backend, int numerics) {
  MemoryCase earlier(seed);
  add_inputs(earlier, shape, is_conv(operation) ? KDA_CONV_VERIFY : KDA_VERIFY, nullptr);
  const io::Result<replay::Case> round = earlier.read();
  if (!round) return io::Error{round.error()};
  io::Result<replay::Outputs> outputs = outputs_of(*round, context, backend, numerics);
  if (!outputs) return io::Error{outputs.error()};
  return std::move(outputs->records);
}

// Runs one kernel on one shape and compares with the reference, which computes exactly; an error is a refusal. Fast
// records are of another form than the reference's, so a fast kernel reads its own backend's.
io::Result<std::vector<replay::Verdict>> compare(const kda_context* context, const std::string& forced, int operation,
                                                 const TestShape& shape, int backend, int numerics) {
  constexpr uint64_t kSeed = 1;
  const bool pending = operation == KDA_VERIFY_PENDING || operation == KDA_CONV_VERIFY_PENDING;
  replay::HostTensor exact_records, own_records;
  if (pending) {
    io::Result<replay::HostTensor> records =
        earlier_records(context, operation, shape, kSeed + 1, KDA_BACKEND_REFERENCE, KDA_EXACT);
    if (!records) return io::Error{records.error()};
    exact_records = std::move(*records);
  }
  const bool has_own = pending && numerics == KDA_FAST;
  if (has_own) {
    io::Result<replay::HostTensor> records = earlier_records(context, operation, shape, kSeed + 1, backend, numerics);
    if (!records) return io::Error{records.error()};
    own_records = std::move(*records);
  }
  MemoryCase exact(kSeed), made(kSeed);
  add_inputs(exact, shape, operation, pending ? &exact_records : nullptr);
  add_inputs(made, shape, operation, has_own ? &own_records : pending ? &exact_records : nullptr);
  const io::Result<replay::Case> inputs = exact.read();
  if (!inputs) return io::Error{inputs.error()};
  const io::Result<replay::Outputs> wanted = outputs_of(*inputs, context, KDA_BACKEND_REFERENCE, KDA_EXACT);
  if (!wanted) return io::Error{wanted.error()};
  made.expect("out", wanted->out);
  made.expect(inputs->pool_name(), wanted->pool);
  const io::Result<replay::Case> replay = made.read();
  if (!replay) return io::Error{replay.error()};
  const io::Result<replay::PreparedPlan> plan = replay::prepare(*replay, context, backend, numerics, forced.c_str());
  if (!plan) return io::Error{plan.error()};
  const std::unique_ptr<replay::CallMemory> memory = replay::memory_for(plan->backend);
  const io::Result<replay::Outputs> outputs = replay::run(*replay, *plan, *memory);
  if (!outputs) return io::Error{outputs.error()};
  return replay::judge(*replay, *plan, "", *outputs);
}

}  // namespace

std::vector<SelfTestResult> self_test(const kda_context* context, const std::string& kernel,
                                      const std::string& operation_name, int backend) {
  std::vector<SelfTestResult> results;
  int operation = 0;
  while (operation < KDA_OPERATION_COUNT && operation_name != replay::operation_name(operation)) ++operation;
  if (operation == KDA_OPERATION_COUNT) return results;
  for (const TestShape& shape : kShapes) {
    SelfTestResult result{kernel, operation_name, shape.text};
    for (const int numerics : {KDA_EXACT, KDA_FAST}) {
      const auto verdicts = compare(context, operation_name + "=" + kernel, operation, shape, backend, numerics);
      if (!verdicts) {
        if (result.detail.empty()) result.detail = verdicts.error();
        continue;
      }
      result.ran = true;
      result.detail.clear();
      result.pass = std::all_of(verdicts->begin(), verdicts->end(), [](const auto& verdict) { return verdict.pass; });
      for (const replay::Verdict& verdict : *verdicts) {
        if (verdict.limit > 0) result.error = std::max(result.error, verdict.error / verdict.limit);
        if (!verdict.pass && result.detail.empty()) {
          result.detail = verdict.tensor + (verdict.fault.empty() ? ": beyond its limit" : ": " + verdict.fault);
        }
      }
      break;
    }
    results.push_back(result);
  }
  return results;
}

}  // namespace kda::cli
