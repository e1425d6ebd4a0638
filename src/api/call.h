// One call while it is checked: what the plan expects, where errors go, which memory is read and written.
#pragma once

#include <array>
#include <initializer_list>

#include "api/overlap.h"
#include "core/text.h"
#include "plan/plan.h"

// Returns from the function if a check fails.
#define KDA_TRY(expression)                                                            \
  do {                                                                                 \
    if (const ::kda::Status status_ = (expression); status_ != KDA_OK) return status_; \
  } while (false)

namespace kda {

constexpr int kMaxRank = 8;
constexpr int64_t kAny = -1;

enum class ElementType : uint8_t { fp32, bf16, fp16, i32, i64, u8, boolean, u64, unsupported };
int64_t size_of(ElementType type);
const char* name_of(ElementType type);
constexpr ElementType element_type(DType dtype) { return static_cast<ElementType>(dtype); }
constexpr uint32_t type_bit(DType dtype) { return bit(element_type(dtype)); }
constexpr uint32_t kFloatTypes = bit(ElementType::fp32) | bit(ElementType::bf16) | bit(ElementType::fp16);
constexpr uint32_t kIndexTypes = bit(ElementType::i32) | bit(ElementType::i64);

// What the call does with a tensor's memory. A pool's slots are checked one by one, so two pools may be one memory.
enum class Access : uint8_t { read, write, pool };

struct Dim {
  const char* label;
  int64_t size;  // kAny: what the tensor has
};

struct TensorSpec {
  TensorSpec(const char* tensor_name, uint32_t element_types, std::initializer_list<Dim> dimensions, Access use)
      : name(tensor_name), types(element_types), rank(static_cast<int>(dimensions.size())), access(use) {
    int d = 0;
    for (const Dim& dim : dimensions) dims[static_cast<size_t>(d++)] = dim;
  }
  const char* name;
  uint32_t types;  // bit(ElementType)
  std::array<Dim, 5> dims{};
  int rank;
  Access access;
  bool index_list = false;     // slots, lengths, parents and such: in host or device memory
  bool self_addressed = true;  // false: a table of addresses replaces the data pointer, which may be null
  int layers = 1;              // the tensor is repeated so often, `layer_stride` bytes apart
  int64_t layer_stride = 0;
};

// A tensor that meets its spec: leading 1s dropped, strides filled in. The stride of a dimension of 0 or 1 elements
// says nothing, so it is replaced by the compact one.
struct CheckedTensor {
  const char* name = "";
  std::byte* data = nullptr;  // never null for a tensor that was given, even an empty one
  ElementType type = ElementType::unsupported;
  bool on_host = true;
  int rank = 0;
  int64_t shape[kMaxRank] = {};
  int64_t strides[kMaxRank] = {};  // elements
};

class Call {
 public:
  Call(const kda_plan& call_plan, const ErrorSink& errors) : plan(call_plan), problem(plan.problem), sink(errors) {}

  const kda_plan& plan;
  const Problem& problem;
  const ErrorSink sink;

  // Tensors lie in host memory, but for index lists, which may lie in either on CUDA.
  bool memory_on_host() const { return plan.choice.backend != Backend::cuda; }
  // Every index list opened so far can be read here. Kernels check what cannot.
  bool lists_on_host() const { return memory_on_host() || !has_device_list_; }
  bool has_host_list() const { return has_host_list_; }

  // Checks presence, rank, shape, dtype, device, element alignment; notes the memory for check_overlaps.
  Status open(const DLTensor* tensor, const TensorSpec& spec, CheckedTensor* out);
  // A list of indices [N], also given as [N, 1].
  Status open_list(const DLTensor* tensor, const char* name, uint32_t types, Dim length, CheckedTensor* out);
  // Base addresses of layers: int64 or uint64, in the memory that the backend's kernels read.
  Status open_table(const DLTensor* tensor, const char* name, Dim layers, CheckedTensor* out);

  // No memory that the call writes is memory of another tensor of the call.
  Status check_overlaps() const;

  Status fail(Status code, const char* asked, const char* supported, const char* way_out = nullptr) const {
    return sink.fail(code, asked, supported, way_out);
  }

 private:
  struct Use {
    const char* name;
    Access access;
    Region region;
  };
  Status check_device(const DLTensor& tensor, const TensorSpec& spec) const;
  bool has_host_list_ = false, has_device_list_ = false;
  static constexpr int kMaxTensors = 32;
  std::array<Use, kMaxTensors> uses_{};
  int used_ = 0;
};

// "q: bf16 [T=128, 4, 64]"
FixedText<> text_of(const TensorSpec& spec);
FixedText<> text_of(const CheckedTensor& tensor);

}  // namespace kda
