#include "api/views.h"

#include <algorithm>
#include <cmath>

namespace kda {
namespace {

DType to_dtype(ElementType type) { return static_cast<DType>(type); }  // of a type in kFloatTypes

// The declared alignment holds for the address and for every stride that is used, except along the last dimension.
Status check_declared_alignment(const Call& call, const CheckedTensor& tensor) {
  const int64_t alignment = call.problem.alignment;
  if (alignment == 0) return KDA_OK;
  const int64_t bytes = size_of(tensor.type);
  bool aligned = reinterpret_cast<uintptr_t>(tensor.data) % static_cast<uintptr_t>(alignment) == 0;
  for (int d = 0; d + 1 < tensor.rank; ++d) {
    aligned = aligned && (tensor.shape[d] <= 1 || tensor.strides[d] * bytes % alignment == 0);
  }
  if (aligned) return KDA_OK;
  return call.fail(KDA_E_ALIGNMENT,
                   FixedText<>("%s: address %p or a stride", tensor.name, static_cast<void*>(tensor.data)),
                   FixedText<>("multiples of %lld bytes, as the plan declares", static_cast<long long>(alignment)));
}

Status check_contiguous(const Call& call, const CheckedTensor& tensor, int dim) {
  if (tensor.shape[dim] <= 1 || tensor.strides[dim] == 1) return KDA_OK;
  return call.fail(KDA_E_STRIDE,
                   FixedText<>("%s: stride %lld along dimension %d of %d", tensor.name,
                               static_cast<long long>(tensor.strides[dim]), dim, tensor.rank),
                   FixedText<>("%s contiguous along dimension %d", tensor.name, dim));
}

// Dimensions from `first` on are compact.
Status check_compact(const Call& call, const CheckedTensor& tensor, int first) {
  int64_t compact = 1;
  for (int d = tensor.rank - 1; d >= first; --d) {
    if (tensor.shape[d] > 1 && tensor.strides[d] != compact) {
      return call.fail(
          KDA_E_STRIDE,
          FixedText<>("%s: stride %lld along dimension %d", tensor.name, static_cast<long long>(tensor.strides[d]), d),
          FixedText<>("%s compact from dimension %d on: stride %lld", tensor.name, first,
                      static_cast<long long>(compact)));
    }
    compact *= std::max<int64_t>(tensor.shape[d], 1);
  }
  return KDA_OK;
}

Status view_heads(Call& call, const DLTensor* from, const TensorSpec& spec, TokenView* to, int64_t* tokens) {
  CheckedTensor tensor;
  KDA_TRY(call.open(from, spec, &tensor));
  KDA_TRY(check_contiguous(call, tensor, 2));
  KDA_TRY(check_declared_alignment(call, tensor));
  *tokens = tensor.shape[0];
  *to = {tensor.data, to_dtype(tensor.type), tensor.strides[0], tensor.strides[1]};
  return KDA_OK;
}

// a: [T, HV, K], or [T, HV*K] with the value heads side by side.
Status view_gate(Call& call, const DLTensor* from, int64_t tokens, TokenView* to) {
  const Problem& p = call.problem;
  const int64_t joined = int64_t{p.value_heads} * p.key_dim;
  const bool by_head = from != nullptr && from->ndim >= 3 && from->shape != nullptr &&
                       from->shape[from->ndim - 1] == p.key_dim && from->shape[from->ndim - 2] == p.value_heads;
  const bool by_row =
      from != nullptr && from->ndim >= 2 && from->shape != nullptr && from->shape[from->ndim - 1] == joined && !by_head;
  if (!by_row) {
    return view_heads(
        call, from,
        {"a", type_bit(p.gate_input), {{"T", tokens}, {"HV", p.value_heads}, {"K", p.key_dim}}, Access::read}, to,
        &tokens);
  }
  CheckedTensor tensor;
  KDA_TRY(call.open(from, {"a", type_bit(p.gate_input), {{"T", tokens}, {"HV*K", joined}}, Access::read}, &tensor));
  KDA_TRY(check_contiguous(call, tensor, 1));
  KDA_TRY(check_declared_alignment(call, tensor));
  *to = {tensor.data, to_dtype(tensor.type), tensor.strides[0], p.key_dim};
  return KDA_OK;
}

Status view_step(Call& call, const DLTensor* from, int64_t tokens, TokenView* to) {
  const Problem& p = call.problem;
  CheckedTensor tensor;
  KDA_TRY(
      call.open(from, {"b", type_bit(p.beta_input), {{"T", tokens}, {"HV", p.value_heads}}, Access::read}, &tensor));
  *to = {tensor.data, to_dtype(tensor.type), tensor.strides[0], tensor.strides[1]};
  return KDA_OK;
}

// A parameter of `count` elements, whatever its shape.
Status view_parameter(Call& call, const DLTensor* from, const char* name, const char* label, int64_t count,
                      VectorView* to) {
  if (from == nullptr) return KDA_OK;
  int64_t elements = 1;
  const int rank = std::clamp(from->ndim, 0, kMaxRank);
  for (int d = 0; d < rank && from->shape != nullptr; ++d) {
    elements = from->shape[d] < 0 || from->shape[d] > count ? -1 : elements * from->shape[d];
    if (elements < 0 || elements > count) break;
  }
  if (elements != count || from->ndim != rank) {
    FixedText<> asked("%s: [", name);
    for (int d = 0; d < rank && from->shape != nullptr; ++d) {
      asked.add("%s%lld", d == 0 ? "" : ", ", static_cast<long long>(from->shape[d]));
    }
    return call.fail(KDA_E_SHAPE, asked.add("]"),
                     FixedText<>("%s: %s=%lld elements, any shape", name, label, static_cast<long long>(count)));
  }
  TensorSpec spec(name, kFloatTypes, {}, Access::read);
  spec.rank = rank;
  for (int d = 0; d < rank; ++d) spec.dims[static_cast<size_t>(std::min(d, 4))] = {label, kAny};
  if (rank > 5) return call.fail(KDA_E_SHAPE, FixedText<>("%s: %d dimensions", name, rank), "at most 5 dimensions");
  CheckedTensor tensor;
  KDA_TRY(call.open(from, spec, &tensor));
  KDA_TRY(check_compact(call, tensor, 0));
  *to = {tensor.data, to_dtype(tensor.type)};
  return KDA_OK;
}

Status check_numbers(const Call& call, const kda_tokens& from, TokenInputs* to) {
  if (!std::isfinite(from.scale)) {
    return call.fail(KDA_E_NUMBER, FixedText<>("scale = %g", from.scale), "a finite scale; 0 = K^-0.5");
  }
  const bool bounded = call.problem.gate == Gate::bounded;
  if (bounded && !(std::isfinite(from.lower_bound) && from.lower_bound <= 0)) {
    return call.fail(KDA_E_NUMBER, FixedText<>("lower_bound = %g", from.lower_bound),
                     "a finite lower_bound below 0; 0 = -5");
  }
  const double scale = from.scale != 0 ? from.scale : 1.0 / std::sqrt(static_cast<double>(call.problem.key_dim));
  to->scale = static_cast<float>(scale);
  to->lower_bound = static_cast<float>(from.lower_bound != 0 ? from.lower_bound : kDefaultLowerBound);
  return KDA_OK;
}

Status view_layers(Call& call, const LayersArgument& argument, int64_t element_bytes, LayerAddresses* to) {
  if (argument.addresses == nullptr) return KDA_OK;
  const kda_layer_addresses& from = *argument.addresses;
  to->stride = from.stride;
  if (from.table == nullptr) {
    if (argument.layers > 1 && from.stride == 0) {
      return call.fail(KDA_E_COMBINATION, FixedText<>("%s: neither a table nor a stride", argument.name),
                       FixedText<>("one of them for %d layers", argument.layers));
    }
    if (from.stride % element_bytes != 0) {
      return call.fail(KDA_E_ALIGNMENT,
                       FixedText<>("%s.stride = %lld", argument.name, static_cast<long long>(from.stride)),
                       FixedText<>("a multiple of %lld bytes", static_cast<long long>(element_bytes)));
    }
    return KDA_OK;
  }
  CheckedTensor table;
  KDA_TRY(call.open_table(from.table, argument.name, {"layers", argument.layers}, &table));
  KDA_TRY(check_contiguous(call, table, 0));
  to->table = reinterpret_cast<const uint64_t*>(table.data);
  for (int l = 0; call.memory_on_host() && l < argument.layers; ++l) {
    if (to->table[l] == 0 || to->table[l] % static_cast<uint64_t>(element_bytes) != 0) {
      return call.fail(
          KDA_E_ALIGNMENT,
          FixedText<>("%s: layer %d at address %llu", argument.name, l, static_cast<unsigned long long>(to->table[l])),
          FixedText<>("addresses that are multiples of %lld", static_cast<long long>(element_bytes)));
    }
  }
  return KDA_OK;
}

void set_layers(const LayersArgument& argument, TensorSpec* spec) {
  if (argument.addresses == nullptr) return;
  spec->self_addressed = argument.addresses->table == nullptr;
  spec->layers = argument.layers;
  spec->layer_stride = argument.addresses->stride;
}

}  // namespace

uint32_t state_destination_types() { return bit(ElementType::fp32) | bit(ElementType::bf16); }
uint32_t conv_destination_types(const Problem& problem) { return bit(ElementType::fp32) | type_bit(problem.io); }

Status view_tokens(Call& call, const kda_tokens& from, TokenInputs* to, int64_t* tokens) {
  const Problem& p = call.problem;
  const uint32_t io = type_bit(p.io);
  int64_t T = kAny;
  KDA_TRY(view_heads(call, from.q, {"q", io, {{"T", T}, {"H", p.heads}, {"K", p.key_dim}}, Access::read}, &to->q, &T));
  KDA_TRY(view_heads(call, from.k, {"k", io, {{"T", T}, {"H", p.heads}, {"K", p.key_dim}}, Access::read}, &to->k, &T));
  KDA_TRY(view_heads(call, from.v, {"v", io, {{"T", T}, {"HV", p.value_heads}, {"V", p.value_dim}}, Access::read},
                     &to->v, &T));
  KDA_TRY(view_gate(call, from.a, T, &to->a));
  KDA_TRY(view_step(call, from.b, T, &to->b));
  KDA_TRY(view_heads(call, from.out, {"out", io, {{"T", T}, {"HV", p.value_heads}, {"V", p.value_dim}}, Access::write},
                     &to->out, &T));
  if (from.A_log == nullptr && p.gate == Gate::softplus) {
    return call.fail(KDA_E_NULL, "A_log: NULL with the softplus gate",
                     "A_log: HV elements; absent only with another gate");
  }
  KDA_TRY(view_parameter(call, from.A_log, "A_log", "HV", p.value_heads, &to->A_log));
  KDA_TRY(view_parameter(call, from.dt_bias, "dt_bias", "HV*K", int64_t{p.value_heads} * p.key_dim, &to->dt_bias));
  *tokens = T;
  return check_numbers(call, from, to);
}

Status view_channels(Call& call, const DLTensor* from, const char* name, Access access, int64_t* tokens,
                     int64_t* channels, TokenView* to) {
  CheckedTensor tensor;
  KDA_TRY(call.open(from, {name, type_bit(call.problem.io), {{"T", *tokens}, {"C", *channels}}, access}, &tensor));
  KDA_TRY(check_contiguous(call, tensor, 1));
  KDA_TRY(check_declared_alignment(call, tensor));
  *tokens = tensor.shape[0];
  *channels = tensor.shape[1];
  *to = {tensor.data, to_dtype(tensor.type), tensor.strides[0], 0};
  return KDA_OK;
}

Status view_list(Call& call, const DLTensor* from, const char* name, Dim length, IndexView* to) {
  if (from == nullptr) return KDA_OK;
  CheckedTensor tensor;
  KDA_TRY(call.open_list(from, name, kIndexTypes, length, &tensor));
  *to = {tensor.data, tensor.type == ElementType::i64, tensor.shape[0], 1, tensor.strides[0], 1, tensor.on_host};
  return KDA_OK;
}

Status view_table(Call& call, const DLTensor* from, const char* name, Dim rows, Dim columns, IndexView* to) {
  if (from == nullptr) return KDA_OK;
  CheckedTensor tensor;
  TensorSpec spec(name, kIndexTypes, {rows, columns}, Access::read);
  spec.index_list = true;
  KDA_TRY(call.open(from, spec, &tensor));
  *to = {tensor.data,       tensor.type == ElementType::i64,
         tensor.shape[0],   tensor.shape[1],
         tensor.strides[0], tensor.strides[1],
         tensor.on_host};
  return KDA_OK;
}

Status view_flags(Call& call, const DLTensor* from, const char* name, Dim length, FlagView* to) {
  if (from == nullptr) return KDA_OK;
  CheckedTensor tensor;
  KDA_TRY(call.open_list(from, name, bit(ElementType::u8) | bit(ElementType::boolean), length, &tensor));
  *to = {reinterpret_cast<const uint8_t*>(tensor.data), tensor.strides[0], tensor.on_host};
  return KDA_OK;
}

Status view_pool(Call& call, const DLTensor* from, const char* name, uint32_t types, const LayersArgument& layers,
                 StatePool* to) {
  const Problem& p = call.problem;
  const Dim V{"V", p.value_dim}, K{"K", p.key_dim};
  const bool vk = p.state_layout == StateLayout::vk;
  TensorSpec spec(name, types, {{"slots", kAny}, {"HV", p.value_heads}, vk ? V : K, vk ? K : V}, Access::pool);
  set_layers(layers, &spec);
  CheckedTensor tensor;
  KDA_TRY(call.open(from, spec, &tensor));
  KDA_TRY(check_compact(call, tensor, 1));
  *to = {
      .base = tensor.data, .dtype = to_dtype(tensor.type), .slots = tensor.shape[0], .slot_stride = tensor.strides[0]};
  return view_layers(call, layers, size_of(tensor.type), &to->layers);
}

Status view_pool(Call& call, const DLTensor* from, const char* name, uint32_t types, const LayersArgument& layers,
                 int64_t* channels, ConvPool* to) {
  const Problem& p = call.problem;
  const Dim window{"W-1", p.conv_width - 1}, channel{"C", *channels};
  const bool wc = p.conv_layout == ConvLayout::wc;
  TensorSpec spec(name, types, {{"slots", kAny}, wc ? window : channel, wc ? channel : window}, Access::pool);
  set_layers(layers, &spec);
  CheckedTensor tensor;
  KDA_TRY(call.open(from, spec, &tensor));
  const int window_dim = wc ? 1 : 2, channel_dim = wc ? 2 : 1;
  const auto contiguous = [&](int d) { return tensor.shape[d] <= 1 || tensor.strides[d] == 1; };
  if ((!contiguous(window_dim) && !contiguous(channel_dim)) || tensor.strides[1] < 0 || tensor.strides[2] < 0) {
    return call.fail(KDA_E_STRIDE,
                     FixedText<>("%s: strides %lld, %lld within a slot", name,
                                 static_cast<long long>(tensor.strides[1]), static_cast<long long>(tensor.strides[2])),
                     "windows or channels contiguous, no negative stride within a slot");
  }
  *channels = tensor.shape[channel_dim];
  *to = {.base = tensor.data,
         .dtype = to_dtype(tensor.type),
         .slots = tensor.shape[0],
         .slot_stride = tensor.strides[0],
         .window_stride = tensor.strides[window_dim],
         .channel_stride = tensor.strides[channel_dim]};
  return view_layers(call, layers, size_of(tensor.type), &to->layers);
}

Status view_records(Call& call, const DLTensor* from, int64_t row_bytes, Access access, const LayersArgument& layers,
                    RecordBuffer* to) {
  TensorSpec spec("records", bit(ElementType::u8), {{"R", kAny}, {"row bytes", kAny}}, access);
  set_layers(layers, &spec);
  CheckedTensor tensor;
  KDA_TRY(call.open(from, spec, &tensor));
  if (tensor.shape[1] < row_bytes) {
    return call.fail(KDA_E_SHAPE, text_of(tensor),
                     FixedText<>("records: uint8 [R, at least %lld]", static_cast<long long>(row_bytes)));
  }
  KDA_TRY(check_contiguous(call, tensor, 1));
  const auto address = reinterpret_cast<uintptr_t>(tensor.data);
  if ((spec.self_addressed && address % kRecordAlignment != 0) ||
      (tensor.shape[0] > 1 && tensor.strides[0] % kRecordAlignment != 0)) {
    return call.fail(KDA_E_ALIGNMENT,
                     FixedText<>("records: address %p, row stride %lld", static_cast<void*>(tensor.data),
                                 static_cast<long long>(tensor.strides[0])),
                     FixedText<>("multiples of %lld bytes", static_cast<long long>(kRecordAlignment)));
  }
  *to = {.base = tensor.data, .rows = tensor.shape[0], .row_stride = tensor.strides[0]};
  return view_layers(call, layers, kRecordAlignment, &to->layers);
}

Status view_node_states(Call& call, const DLTensor* from, VerifyLaunch* to) {
  if (from == nullptr) return KDA_OK;
  const Problem& p = call.problem;
  const Dim V{"V", p.value_dim}, K{"K", p.key_dim};
  const bool vk = p.state_layout == StateLayout::vk;
  CheckedTensor tensor;
  KDA_TRY(call.open(from,
                    {"node_states",
                     state_destination_types(),
                     {{"R", kAny}, {"D", kAny}, {"HV", p.value_heads}, vk ? V : K, vk ? K : V},
                     Access::write},
                    &tensor));
  KDA_TRY(check_compact(call, tensor, 2));
  to->node_states = tensor.data;
  to->node_states_dtype = to_dtype(tensor.type);
  to->node_states_rows = tensor.shape[0];
  to->node_states_nodes = tensor.shape[1];
  to->node_states_row_stride = tensor.strides[0];
  to->node_states_node_stride = tensor.strides[1];
  return KDA_OK;
}

}  // namespace kda
