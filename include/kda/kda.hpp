// libkda: the C++ layer. Header-only, over the C ABI of kda.h; needs nothing but C++17.
//
//   kda::Context context;                                   // this machine
//   kda_problem problem = kda::problem();                    // zeroed, struct_size set
//   problem.heads = 4; problem.key_dim = 128; problem.io_dtype = KDA_FP32;
//   kda::Plan plan(context, problem);                        // throws kda::Error with code, asked, supported, way out
//   kda::Tensor q(q_data, KDA_FP32, {tokens, 4, 128});       // borrows q_data
//   auto args = kda::args<kda_decode_args>(); args.tokens.q = q; ...
//   plan.decode(args);
//
// Ownership: Context, Plan and Pool own their handles; a Plan keeps its Context alive no longer than you do, so declare
// the Context first. Tensors own their shape and strides and borrow their data.
#ifndef KDA_KDA_HPP_
#define KDA_KDA_HPP_

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>

#include "kda/kda.h"

namespace kda {
inline namespace cxx0 {

// A zeroed ABI struct with struct_size set.
template <class T>
T args() {
  T value;
  std::memset(&value, 0, sizeof(value));
  value.struct_size = static_cast<uint32_t>(sizeof(T));
  return value;
}
inline kda_problem problem() { return args<kda_problem>(); }

// The first address at or after p that is a multiple of alignment (a power of two).
inline void* aligned(void* p, size_t alignment) {
  return reinterpret_cast<void*>((reinterpret_cast<uintptr_t>(p) + alignment - 1) / alignment * alignment);
}

// A refusal or failure: the catalogue's status with the texts of kda_error. what() is the whole message.
class Error : public std::exception {
 public:
  explicit Error(const kda_error& error)
      : status_(error.status),
        message_(error.message),
        asked_(error.asked),
        supported_(error.supported),
        way_out_(error.way_out) {}
  const char* what() const noexcept override { return message_.c_str(); }
  kda_status status() const noexcept { return status_; }
  const char* code() const noexcept { return kda_status_code(status_); }  // "KDA-nnnn"
  const std::string& asked() const noexcept { return asked_; }
  const std::string& supported() const noexcept { return supported_; }
  const std::string& way_out() const noexcept { return way_out_; }

 private:
  kda_status status_;
  std::string message_, asked_, supported_, way_out_;
};

// Calls f(&error) and throws Error unless it returns KDA_OK.
template <class F>
void check(F&& f) {
  kda_error error = args<kda_error>();
  const kda_status status = std::forward<F>(f)(&error);
  if (status == KDA_OK) return;
  error.status = status;
  if (error.message[0] == 0) std::strncpy(error.message, kda_status_message(status), sizeof(error.message) - 1);
  throw Error(error);
}

// Element types beyond kda_dtype, for index and record tensors.
enum class Element : uint8_t { fp32, bf16, fp16, int32, int64, uint8, boolean, uint64 };

constexpr DLDataType data_type(Element element) {
  switch (element) {
    case Element::fp32:
      return {kDLFloat, 32, 1};
    case Element::bf16:
      return {kDLBfloat, 16, 1};
    case Element::fp16:
      return {kDLFloat, 16, 1};
    case Element::int32:
      return {kDLInt, 32, 1};
    case Element::int64:
      return {kDLInt, 64, 1};
    case Element::uint8:
      return {kDLUInt, 8, 1};
    case Element::boolean:
      return {kDLBool, 8, 1};
    case Element::uint64:
      return {kDLUInt, 64, 1};
  }
  return {kDLFloat, 32, 1};
}
constexpr Element element(kda_dtype dtype) {
  return dtype == KDA_BF16 ? Element::bf16 : dtype == KDA_FP16 ? Element::fp16 : Element::fp32;
}

// A DLTensor that owns its shape and strides (in elements) and borrows its data. Converts to const DLTensor*.
class Tensor {
 public:
  static constexpr int kMaxRank = 8;
  Tensor() = default;
  Tensor(const void* data, Element element, std::initializer_list<int64_t> shape, DLDevice device = {kDLCPU, 0}) {
    set(data, element, shape, device);
    int64_t stride = 1;
    for (int i = tensor_.ndim; i-- > 0;) {
      strides_[i] = stride;
      stride *= shape_[i];
    }
  }
  Tensor(const void* data, Element element, std::initializer_list<int64_t> shape,
         std::initializer_list<int64_t> strides, DLDevice device = {kDLCPU, 0}) {
    set(data, element, shape, device);
    int i = 0;
    for (int64_t stride : strides) strides_[i++] = stride;
  }
  Tensor(const void* data, kda_dtype dtype, std::initializer_list<int64_t> shape, DLDevice device = {kDLCPU, 0})
      : Tensor(data, kda::element(dtype), shape, device) {}
  Tensor(const void* data, kda_dtype dtype, std::initializer_list<int64_t> shape,
         std::initializer_list<int64_t> strides, DLDevice device = {kDLCPU, 0})
      : Tensor(data, kda::element(dtype), shape, strides, device) {}
  explicit Tensor(const DLTensor& other) : tensor_(other) {
    for (int i = 0; i < other.ndim && i < kMaxRank; ++i) {
      shape_[i] = other.shape[i];
      strides_[i] = other.strides ? other.strides[i] : 0;
    }
    if (!other.strides) {
      int64_t stride = 1;
      for (int i = other.ndim; i-- > 0;) {
        strides_[i] = stride;
        stride *= shape_[i];
      }
    }
    point();
  }
  Tensor(const Tensor& other) : tensor_(other.tensor_), shape_(other.shape_), strides_(other.strides_) { point(); }
  Tensor& operator=(const Tensor& other) {
    tensor_ = other.tensor_;
    shape_ = other.shape_;
    strides_ = other.strides_;
    point();
    return *this;
  }

  operator const DLTensor*() const { return tensor_.ndim > 0 ? &tensor_ : nullptr; }
  bool present() const { return tensor_.ndim > 0; }
  int rank() const { return tensor_.ndim; }
  int64_t size(int dimension) const { return shape_[dimension]; }
  int64_t stride(int dimension) const { return strides_[dimension]; }
  template <class T = void>
  T* data() const {
    return reinterpret_cast<T*>(static_cast<char*>(tensor_.data) + tensor_.byte_offset);
  }
  // The same memory, elements [begin, end) of one dimension.
  Tensor slice(int dimension, int64_t begin, int64_t end) const {
    Tensor part(*this);
    part.shape_[dimension] = end - begin;
    part.tensor_.byte_offset +=
        static_cast<uint64_t>(begin * strides_[dimension]) * (tensor_.dtype.bits * tensor_.dtype.lanes / 8);
    return part;
  }

 private:
  void set(const void* data, Element element, std::initializer_list<int64_t> shape, DLDevice device) {
    tensor_.data = const_cast<void*>(data);
    tensor_.device = device;
    tensor_.ndim = static_cast<int32_t>(shape.size());
    tensor_.dtype = data_type(element);
    tensor_.byte_offset = 0;
    int i = 0;
    for (int64_t extent : shape) shape_[i++] = extent;
    point();
  }
  void point() {
    tensor_.shape = shape_.data();
    tensor_.strides = strides_.data();
  }
  DLTensor tensor_{};
  std::array<int64_t, kMaxRank> shape_{};
  std::array<int64_t, kMaxRank> strides_{};
};

class Context {
 public:
  explicit Context(const kda_context_options* options = nullptr) {
    kda_context* handle = nullptr;
    check([&](kda_error* e) { return kda_context_create(options, &handle, e); });
    handle_.reset(handle);
  }
  kda_context* get() const { return handle_.get(); }
  std::string describe() const {  // JSON
    size_t needed = 0;
    kda_context_describe(get(), nullptr, 0, &needed);
    std::string text(needed, '\0');
    check([&](kda_error*) { return kda_context_describe(get(), text.data(), text.size(), &needed); });
    text.resize(needed ? needed - 1 : 0);
    return text;
  }

 private:
  struct Delete {
    void operator()(kda_context* p) const { kda_context_destroy(p); }
  };
  std::unique_ptr<kda_context, Delete> handle_;
};

class Plan {
 public:
  Plan(const Context& context, const kda_problem& problem) {
    kda_plan* handle = nullptr;
    check([&](kda_error* e) { return kda_plan_create(context.get(), &problem, &handle, e); });
    handle_.reset(handle);
    info_ = args<kda_plan_info>();
    check([&](kda_error*) { return kda_plan_get_info(get(), &info_); });
  }
  kda_plan* get() const { return handle_.get(); }
  const kda_plan_info& info() const { return info_; }
  std::string describe() const {  // JSON
    size_t needed = 0;
    kda_plan_describe(get(), nullptr, 0, &needed);
    std::string text(needed, '\0');
    check([&](kda_error*) { return kda_plan_describe(get(), text.data(), text.size(), &needed); });
    text.resize(needed ? needed - 1 : 0);
    return text;
  }

  void extend(const kda_extend_args& a, const kda_call* c = nullptr) const { call(kda_extend, a, c); }
  void decode(const kda_decode_args& a, const kda_call* c = nullptr) const { call(kda_decode, a, c); }
  void verify(const kda_verify_args& a, const kda_call* c = nullptr) const { call(kda_verify, a, c); }
  void commit(const kda_commit_args& a, const kda_call* c = nullptr) const { call(kda_commit, a, c); }
  void move(const kda_move_args& a, const kda_call* c = nullptr) const { call(kda_move, a, c); }
  void conv_extend(const kda_conv_args& a, const kda_call* c = nullptr) const { call(kda_conv_extend, a, c); }
  void conv_decode(const kda_conv_args& a, const kda_call* c = nullptr) const { call(kda_conv_decode, a, c); }
  void conv_verify(const kda_conv_args& a, const kda_call* c = nullptr) const { call(kda_conv_verify, a, c); }
  void conv_commit(const kda_commit_args& a, const kda_call* c = nullptr) const { call(kda_conv_commit, a, c); }
  void conv_move(const kda_move_args& a, const kda_call* c = nullptr) const { call(kda_conv_move, a, c); }

 private:
  template <class Function, class Args>
  void call(Function function, const Args& a, const kda_call* c) const {
    check([&](kda_error* e) { return function(get(), &a, c, e); });
  }
  struct Delete {
    void operator()(kda_plan* p) const { kda_plan_destroy(p); }
  };
  std::unique_ptr<kda_plan, Delete> handle_;
  kda_plan_info info_{};
};

class Pool {
 public:
  Pool(const Plan& plan, const kda_pool_options& options) {
    kda_pool* handle = nullptr;
    check([&](kda_error* e) { return kda_pool_create(plan.get(), &options, &handle, e); });
    handle_.reset(handle);
  }
  static size_t planned_bytes(const Plan& plan, const kda_pool_options& options) {
    size_t bytes = 0;
    check([&](kda_error* e) { return kda_pool_planned_bytes(plan.get(), &options, &bytes, e); });
    return bytes;
  }
  kda_pool* get() const { return handle_.get(); }

  kda_slot acquire() {
    kda_slot slot{};
    check([&](kda_error* e) { return kda_pool_acquire(get(), &slot, e); });
    return slot;
  }
  void release(kda_slot slot) {
    check([&](kda_error* e) { return kda_pool_release(get(), slot, e); });
  }
  kda_slot fork(kda_slot source, const kda_call* c = nullptr) {
    kda_slot slot{};
    check([&](kda_error* e) { return kda_pool_fork(get(), source, c, &slot, e); });
    return slot;
  }
  void check_live(kda_slot slot) const {
    check([&](kda_error* e) { return kda_pool_check(get(), slot, e); });
  }
  std::string snapshot(kda_slot slot) const {
    size_t needed = 0;
    check([&](kda_error* e) { return kda_pool_snapshot(get(), slot, nullptr, 0, &needed, e); });
    std::string bytes(needed, '\0');
    check([&](kda_error* e) { return kda_pool_snapshot(get(), slot, bytes.data(), bytes.size(), &needed, e); });
    return bytes;
  }
  void restore(kda_slot slot, const void* bytes, size_t size) {
    check([&](kda_error* e) { return kda_pool_restore(get(), slot, bytes, size, e); });
  }
  void set_pending(kda_slot slot, int32_t tip, int32_t record_row) {
    check([&](kda_error* e) { return kda_pool_set_pending(get(), slot, tip, record_row, e); });
  }
  void clear_pending(kda_slot slot) {
    check([&](kda_error* e) { return kda_pool_clear_pending(get(), slot, e); });
  }
  struct Pending {
    int32_t tip = -1, record_row = -1;
  };
  Pending pending(kda_slot slot) const {
    Pending p;
    check([&](kda_error* e) { return kda_pool_get_pending(get(), slot, &p.tip, &p.record_row, e); });
    return p;
  }
  Tensor state(int32_t layer) const { return tensor(kda_pool_state, layer); }
  Tensor conv_state(int32_t layer) const { return tensor(kda_pool_conv_state, layer); }
  Tensor records(int32_t layer) const { return tensor(kda_pool_records, layer); }
  Tensor conv_records(int32_t layer) const { return tensor(kda_pool_conv_records, layer); }

 private:
  template <class Function>
  Tensor tensor(Function function, int32_t layer) const {
    DLTensor out{};
    check([&](kda_error* e) { return function(get(), layer, &out, e); });
    return Tensor(out);
  }
  struct Delete {
    void operator()(kda_pool* p) const { kda_pool_destroy(p); }
  };
  std::unique_ptr<kda_pool, Delete> handle_;
};

}  // namespace cxx0
}  // namespace kda
#endif  // KDA_KDA_HPP_
