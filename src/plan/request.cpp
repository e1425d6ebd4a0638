#include "plan/request.h"

#include <string_view>

#include "core/text.h"
#include "plan/names.h"
#include "plan/registry.h"
#include "plan/struct_size.h"

namespace kda {
namespace {

constexpr int64_t kLargestCount = INT32_MAX;  // rows, tokens, snapshots: index tensors may be int32
constexpr int kMostHeads = 1 << 16, kMostLayers = 1 << 16;
constexpr int kLargestAlignment = 256;
constexpr int64_t kLargestWorkspaceLimit = int64_t{1} << 40;

struct Range {
  const char* field;
  int64_t value, least, most;
  Status refusal;
};

Status check_ranges(const kda_problem& p, const ErrorSink& sink) {
  const Range ranges[] = {
      {"backend", p.backend, KDA_BACKEND_AUTO, KDA_BACKEND_CUDA, KDA_E_OPTION},
      {"operations", p.operations, 0, (1u << kOperationCount) - 1, KDA_E_OPTION},
      {"state_layout", p.state_layout, KDA_STATE_VK, KDA_STATE_KV, KDA_E_OPTION},
      {"conv_layout", p.conv_layout, KDA_CONV_WC, KDA_CONV_CW, KDA_E_OPTION},
      {"gate", p.gate, KDA_GATE_SOFTPLUS, KDA_GATE_PRECOMPUTED, KDA_E_OPTION},
      {"beta", p.beta, KDA_BETA_SIGMOID, KDA_BETA_NONE, KDA_E_OPTION},
      {"no_qk_l2norm", p.no_qk_l2norm, 0, 1, KDA_E_OPTION},
      {"extend_numerics", p.extend_numerics, KDA_EXACT, KDA_FAST, KDA_E_OPTION},
      {"verify_numerics", p.verify_numerics, KDA_EXACT, KDA_FAST, KDA_E_OPTION},
      {"null_slot0", p.null_slot0, 0, 1, KDA_E_OPTION},
      {"single_root", p.single_root, 0, 1, KDA_E_OPTION},
      {"check_values", p.check_values, 0, 1, KDA_E_OPTION},
      {"layers", p.layers, 0, kMostLayers, KDA_E_MAXIMA},
      {"max_rows", p.max_rows, 0, kLargestCount, KDA_E_MAXIMA},
      {"max_tokens", p.max_tokens, 0, kLargestCount, KDA_E_MAXIMA},
      {"max_nodes", p.max_nodes, 0, kMaxDraftNodes, KDA_E_MAXIMA},
      {"max_snapshots", p.max_snapshots, 0, kLargestCount, KDA_E_MAXIMA},
      {"alignment", p.alignment, 0, kLargestAlignment, KDA_E_MAXIMA},
      {"max_workspace_bytes", p.max_workspace_bytes, 0, kLargestWorkspaceLimit, KDA_E_MAXIMA},
      {"heads", p.heads, 1, kMostHeads, KDA_E_DIMS},
      {"value_heads", p.value_heads, 0, kMostHeads, KDA_E_DIMS},
      {"key_dim", p.key_dim, 1, kMaxHeadDim, KDA_E_DIMS},
      {"value_dim", p.value_dim, 0, kMaxHeadDim, KDA_E_DIMS},
  };
  for (const Range& r : ranges) {
    if (r.value >= r.least && r.value <= r.most) continue;
    return sink.fail(r.refusal, FixedText<96>("%s = %lld", r.field, static_cast<long long>(r.value)),
                     FixedText<96>("%s from %lld to %lld", r.field, static_cast<long long>(r.least),
                                   static_cast<long long>(r.most)));
  }
  if (p.conv_width != 0 && (p.conv_width < kMinConvWidth || p.conv_width > kMaxConvWidth)) {
    return sink.failf(KDA_E_DIMS, "conv_width = %d", "conv_width 2, 3 or 4; 0 = no convolution", p.conv_width);
  }
  if (p.value_heads % p.heads != 0) {
    return sink.failf(KDA_E_DIMS, "heads = %d, value_heads = %d", "value_heads a multiple of heads", p.heads,
                      p.value_heads);
  }
  if ((p.alignment & (p.alignment - 1)) != 0) {
    return sink.failf(KDA_E_MAXIMA, "alignment = %d", "a power of two up to 256; 0 = the element size", p.alignment);
  }
  if (p.conv_width == 0 && (p.operations & KDA_ALL_CONV_OPERATIONS) != 0) {
    return sink.failf(KDA_E_COMBINATION, "operations = 0x%x with conv_width = 0",
                      "convolution operations only with conv_width 2, 3 or 4", p.operations);
  }
  return KDA_OK;
}

constexpr const char* kDTypeNames[] = {"default", "fp32", "bf16", "fp16"};

struct DTypeField {
  const char* field;
  int32_t value;       // a kda_dtype
  int32_t standard;    // what 0 means
  uint32_t supported;  // bit(DType)
  DType* to;
};

DType to_dtype(int32_t value) { return static_cast<DType>(value - KDA_FP32); }

Status read_dtypes(const kda_problem& p, Problem* out, const ErrorSink& sink) {
  const int32_t io = p.io_dtype == KDA_DTYPE_DEFAULT ? KDA_BF16 : p.io_dtype;
  const uint32_t io_or_fp32 = bit(DType::fp32) | (io >= KDA_FP32 && io <= KDA_FP16 ? bit(to_dtype(io)) : 0);
  const DTypeField fields[] = {
      {"io_dtype", p.io_dtype, KDA_BF16, bit(DType::fp32) | bit(DType::bf16) | bit(DType::fp16), &out->io},
      {"gate_dtype", p.gate_dtype, io, io_or_fp32, &out->gate_input},
      {"beta_dtype", p.beta_dtype, io, io_or_fp32, &out->beta_input},
      {"state_dtype", p.state_dtype, KDA_FP32, bit(DType::fp32) | bit(DType::bf16), &out->state},
      {"conv_state_dtype", p.conv_state_dtype, io, io_or_fp32, &out->conv_state},
      {"conv_weight_dtype", p.conv_weight_dtype, io, io_or_fp32, &out->conv_weight},
  };
  for (const DTypeField& f : fields) {
    if (f.value < KDA_DTYPE_DEFAULT || f.value > KDA_FP16) {
      return sink.fail(KDA_E_OPTION, FixedText<64>("%s = %d", f.field, f.value), "a kda_dtype");
    }
    const DType dtype = to_dtype(f.value == KDA_DTYPE_DEFAULT ? f.standard : f.value);
    if ((f.supported & bit(dtype)) == 0) {
      FixedText<96> supported;
      for (DType t : {DType::fp32, DType::bf16, DType::fp16}) {
        if ((f.supported & bit(t)) != 0) supported.add("%s%s", supported.empty() ? "" : " or ", name_of(t));
      }
      return sink.fail(KDA_E_DTYPES,
                       FixedText<96>("%s %s with io_dtype %s", f.field, kDTypeNames[f.value], kDTypeNames[io]),
                       supported);
    }
    *f.to = dtype;
  }
  return KDA_OK;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

int printed(std::string_view text) { return static_cast<int>(text.size()); }

Status read_forced_kernels(const char* pairs, std::span<const KernelRow> rows, Request* request,
                           const ErrorSink& sink) {
  std::string_view rest = pairs == nullptr ? "" : pairs;
  while (!trimmed(rest).empty()) {
    const size_t comma = rest.find(',');
    const std::string_view pair = trimmed(rest.substr(0, comma));
    rest = comma == std::string_view::npos ? std::string_view() : rest.substr(comma + 1);
    const size_t equals = pair.find('=');
    if (equals == std::string_view::npos) {
      return sink.failf(KDA_E_KERNEL_UNKNOWN, "kernels: \"%.*s\"", "\"operation=kernel\" pairs separated by commas",
                        printed(pair), pair.data());
    }
    const std::string_view operation_name = trimmed(pair.substr(0, equals)), kernel = trimmed(pair.substr(equals + 1));
    const int operation = operation_named(operation_name);
    if (operation == kOperationCount) {
      return sink.failf(KDA_E_KERNEL_UNKNOWN, "kernels: operation \"%.*s\"",
                        "extend, decode, verify, verify_pending, commit, move, and the conv_ forms of these",
                        printed(operation_name), operation_name.data());
    }
    const KernelRow* row = find_kernel(rows, static_cast<Operation>(operation), kernel);
    if (row == nullptr) {
      FixedText<> known("kernels of %s:", name_of(static_cast<Operation>(operation)));
      for (const KernelRow& r : rows) {
        if (static_cast<int>(r.operation) == operation) known.add(" %s", r.name);
      }
      return sink.failf(KDA_E_KERNEL_UNKNOWN, "kernels: \"%.*s\"", known, printed(pair), pair.data());
    }
    request->forced[static_cast<size_t>(operation)] = row;
  }
  return KDA_OK;
}

}  // namespace

Status read_problem(const kda_problem* caller, std::span<const KernelRow> rows, Request* request,
                    const ErrorSink& sink) {
  kda_problem p;
  if (Status s = read_struct(caller, "kda_problem", &p, sink)) return s;
  if (Status s = check_ranges(p, sink)) return s;

  Problem& out = request->problem;
  if (Status s = read_dtypes(p, &out, sink)) return s;
  const auto value_or = [](auto value, auto standard) { return value == 0 ? standard : value; };
  out.operations = value_or(p.operations, KDA_ALL_STATE_OPERATIONS | (p.conv_width > 0 ? KDA_ALL_CONV_OPERATIONS : 0u));
  out.layers = value_or(p.layers, 1);
  out.max_rows = value_or(p.max_rows, int64_t{1});
  out.max_tokens = value_or(p.max_tokens, out.max_rows);
  out.max_nodes = value_or(p.max_nodes, 1);
  out.max_snapshots = p.max_snapshots;
  out.heads = p.heads;
  out.value_heads = value_or(p.value_heads, p.heads);
  out.key_dim = p.key_dim;
  out.value_dim = value_or(p.value_dim, p.key_dim);
  out.conv_width = p.conv_width;
  out.state_layout = static_cast<StateLayout>(p.state_layout);
  out.conv_layout = static_cast<ConvLayout>(p.conv_layout);
  out.gate = static_cast<Gate>(p.gate);
  out.beta = static_cast<Beta>(p.beta);
  out.qk_l2norm = p.no_qk_l2norm == 0;
  out.extend_numerics = static_cast<Numerics>(p.extend_numerics);
  out.verify_numerics = static_cast<Numerics>(p.verify_numerics);
  out.null_slot0 = p.null_slot0 != 0;
  out.single_root = p.single_root != 0;
  out.check_values = p.check_values != 0;
  out.alignment = p.alignment;
  out.max_workspace_bytes = value_or(p.max_workspace_bytes, kDefaultWorkspaceLimit);
  request->backend = p.backend;
  return read_forced_kernels(p.kernels, rows, request, sink);
}

}  // namespace kda
