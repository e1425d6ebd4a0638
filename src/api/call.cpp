#include "api/call.h"

#include <iterator>

namespace kda {
namespace {

struct TypeRow {
  DLDataType dl;
  const char* name;
  int64_t bytes;
};
constexpr TypeRow kTypes[] = {
    {{kDLFloat, 32, 1}, "fp32", 4}, {{kDLBfloat, 16, 1}, "bf16", 2}, {{kDLFloat, 16, 1}, "fp16", 2},
    {{kDLInt, 32, 1}, "int32", 4},  {{kDLInt, 64, 1}, "int64", 8},   {{kDLUInt, 8, 1}, "uint8", 1},
    {{kDLBool, 8, 1}, "bool", 1},   {{kDLUInt, 64, 1}, "uint64", 8},
};
static_assert(std::size(kTypes) == static_cast<size_t>(ElementType::unsupported));

ElementType type_of(DLDataType dl) {
  size_t i = 0;
  while (i < std::size(kTypes) &&
         !(kTypes[i].dl.code == dl.code && kTypes[i].dl.bits == dl.bits && kTypes[i].dl.lanes == dl.lanes)) {
    ++i;
  }
  return static_cast<ElementType>(i);
}

FixedText<64> types_text(uint32_t types) {
  FixedText<64> text;
  for (size_t i = 0; i < std::size(kTypes); ++i) {
    if ((types >> i & 1) != 0) text.add("%s%s", text.empty() ? "" : "|", kTypes[i].name);
  }
  return text;
}

constexpr int64_t kLargestElements = int64_t{1} << 56;  // beyond it, byte counts and offsets could overflow

// Fills shape and strides from the DLTensor, dropping leading 1s down to `rank`. False if a number is absurd.
bool read_dimensions(const DLTensor& tensor, int rank, CheckedTensor* out) {
  const int drop_at_most = tensor.ndim - rank;
  int dropped = 0;
  while (dropped < drop_at_most && tensor.shape[dropped] == 1) ++dropped;
  out->rank = tensor.ndim - dropped;
  int64_t compact = 1;
  for (int d = out->rank - 1; d >= 0; --d) {
    const int64_t size = tensor.shape[dropped + d];
    if (size < 0 || size > kLargestElements || compact > kLargestElements / (size == 0 ? 1 : size)) return false;
    int64_t stride = tensor.strides == nullptr || size <= 1 ? compact : tensor.strides[dropped + d];
    if (size > 1 && (stride > kLargestElements / size || stride < -kLargestElements / size)) return false;
    out->shape[d] = size;
    out->strides[d] = stride;
    compact *= size == 0 ? 1 : size;
  }
  return true;
}

alignas(16) std::byte g_nothing[16];  // where empty tensors point

}  // namespace

int64_t size_of(ElementType type) {
  return type == ElementType::unsupported ? 1 : kTypes[static_cast<int>(type)].bytes;
}
const char* name_of(ElementType type) {
  return type == ElementType::unsupported ? "unsupported dtype" : kTypes[static_cast<int>(type)].name;
}

FixedText<> text_of(const TensorSpec& spec) {
  FixedText<> text("%s: %s [", spec.name, types_text(spec.types).c_str());
  for (int d = 0; d < spec.rank; ++d) {
    const Dim& dim = spec.dims[static_cast<size_t>(d)];
    text.add("%s%s", d == 0 ? "" : ", ", dim.label);
    if (dim.size != kAny) text.add("=%lld", static_cast<long long>(dim.size));
  }
  return text.add("]");
}

FixedText<> text_of(const CheckedTensor& tensor) {
  FixedText<> text("%s: %s [", tensor.name, name_of(tensor.type));
  for (int d = 0; d < tensor.rank; ++d) {
    text.add("%s%lld", d == 0 ? "" : ", ", static_cast<long long>(tensor.shape[d]));
  }
  return text.add("]");
}

Status Call::check_device(const DLTensor& tensor, const TensorSpec& spec) const {
  const DLDeviceType type = tensor.device.device_type;
  const bool by_host = type == kDLCPU || type == kDLCUDAHost, by_both = type == kDLCUDAManaged;
  const bool by_gpu = type == kDLCUDA && tensor.device.device_id == plan.context->capabilities.gpu_device;
  if (by_both || (memory_on_host() ? by_host : by_gpu || (spec.index_list && by_host))) return KDA_OK;
  return fail(KDA_E_DEVICE,
              FixedText<>("%s: DLPack device type %d, device %d", spec.name, type, tensor.device.device_id),
              FixedText<>("memory that backend %s reaches", name_of(plan.choice.backend)));
}

Status Call::open(const DLTensor* tensor, const TensorSpec& spec, CheckedTensor* out) {
  if (tensor == nullptr) return fail(KDA_E_NULL, FixedText<>("%s: NULL", spec.name), text_of(spec));
  out->name = spec.name;
  out->type = type_of(tensor->dtype);
  if (tensor->ndim < 0 || tensor->ndim > kMaxRank || (tensor->ndim > 0 && tensor->shape == nullptr)) {
    return fail(KDA_E_SHAPE, FixedText<>("%s: %d dimensions", spec.name, tensor->ndim), text_of(spec));
  }
  if (!read_dimensions(*tensor, spec.rank, out)) {
    return fail(KDA_E_SHAPE, FixedText<>("%s: a negative or absurd size or stride", spec.name), text_of(spec));
  }
  if (out->type == ElementType::unsupported || (spec.types >> static_cast<int>(out->type) & 1) == 0) {
    return fail(KDA_E_DTYPE, text_of(*out), text_of(spec));
  }
  bool fits = out->rank == spec.rank;
  int64_t elements = 1;
  for (int d = 0; fits && d < spec.rank; ++d) {
    const int64_t expected = spec.dims[static_cast<size_t>(d)].size;
    fits = expected == kAny || out->shape[d] == expected;
    elements *= out->shape[d];
  }
  if (!fits) return fail(KDA_E_SHAPE, text_of(*out), text_of(spec));
  KDA_TRY(check_device(*tensor, spec));
  const DLDeviceType device = tensor->device.device_type;
  out->on_host = memory_on_host() || device == kDLCPU || device == kDLCUDAHost;
  if (spec.index_list) (out->on_host ? has_host_list_ : has_device_list_) = true;

  if (!spec.self_addressed || (elements == 0 && tensor->data == nullptr)) {
    out->data = tensor->data == nullptr ? g_nothing : static_cast<std::byte*>(tensor->data) + tensor->byte_offset;
    return KDA_OK;
  }
  if (tensor->data == nullptr) return fail(KDA_E_NULL, FixedText<>("%s: data is NULL", spec.name), text_of(spec));
  out->data = static_cast<std::byte*>(tensor->data) + tensor->byte_offset;
  const int64_t bytes = size_of(out->type);
  if (reinterpret_cast<uintptr_t>(out->data) % static_cast<uintptr_t>(bytes) != 0) {
    return fail(KDA_E_ALIGNMENT, FixedText<>("%s: address %p", spec.name, static_cast<void*>(out->data)),
                FixedText<>("an address that is a multiple of %lld", static_cast<long long>(bytes)));
  }
  if (spec.access != Access::read && !is_self_disjoint(out->rank, out->shape, out->strides)) {
    return fail(KDA_E_STRIDE, FixedText<>("%s: elements share an address", spec.name),
                "strides with an address for every element");
  }
  if (used_ < kMaxTensors) {
    const Region one = make_region(out->data, bytes, out->rank, out->shape, out->strides);
    uses_[static_cast<size_t>(used_++)] = {spec.name, spec.access, repeat_region(one, spec.layers, spec.layer_stride)};
  }
  return KDA_OK;
}

Status Call::open_list(const DLTensor* tensor, const char* name, uint32_t types, Dim length, CheckedTensor* out) {
  TensorSpec spec(name, types, {length}, Access::read);
  spec.index_list = true;
  if (tensor != nullptr && tensor->ndim >= 2 && tensor->shape != nullptr && tensor->shape[tensor->ndim - 1] == 1) {
    TensorSpec column(name, types, {length, {"1", 1}}, Access::read);
    column.index_list = true;
    KDA_TRY(open(tensor, column, out));
    out->rank = 1;
    return KDA_OK;
  }
  return open(tensor, spec, out);
}

Status Call::open_table(const DLTensor* tensor, const char* name, Dim layers, CheckedTensor* out) {
  has_device_list_ = has_device_list_ || !memory_on_host();  // slots cannot be told apart without the addresses
  return open(tensor, TensorSpec(name, bit(ElementType::i64) | bit(ElementType::u64), {layers}, Access::read), out);
}

Status Call::check_overlaps() const {
  for (int i = 0; i < used_; ++i) {
    const Use& x = uses_[static_cast<size_t>(i)];
    for (int j = i + 1; j < used_; ++j) {
      const Use& y = uses_[static_cast<size_t>(j)];
      const bool one_is_written = x.access != Access::read || y.access != Access::read;
      const bool both_pools = x.access == Access::pool && y.access == Access::pool;
      if (!one_is_written || both_pools || !regions_overlap(x.region, y.region)) continue;
      return fail(KDA_E_OVERLAP, FixedText<>("%s and %s share memory", x.name, y.name),
                  "outputs and pools with memory of their own");
    }
  }
  return KDA_OK;
}

}  // namespace kda
