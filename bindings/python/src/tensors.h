// Python tensors as DLTensors for the length of one call: torch, NumPy, CuPy, JAX and anything else with DLPack.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>

#include "kda/kda.h"

namespace kda_python {

namespace nb = nanobind;

// An array whose producer lacks a dtype, seen with that dtype: NumPy has no bfloat16, so its bits lie in a uint16
// array.
struct TypedView {
  nb::object array;
  DLDataType dtype;
};
void bind_view(nb::module_& m);

// A borrowed tensor. Null for None. Throws libkda.Error for what is not a tensor, and for a read-only array where
// `writable` is asked.
class Borrowed {
 public:
  Borrowed() = default;
  Borrowed(nb::handle object, const char* name, bool writable);
  ~Borrowed();
  Borrowed(const Borrowed&) = delete;
  Borrowed& operator=(const Borrowed&) = delete;

  const DLTensor* get() const { return present_ ? &tensor_ : nullptr; }
  operator const DLTensor*() const { return get(); }

 private:
  void read_exchange_api(nb::handle object, const void* api, const char* name);
  void read_protocol(nb::handle object, const char* name, bool writable);

  DLTensor tensor_{};
  bool present_ = false;
  nb::object owner_;  // the capsule, or nothing where the exchange API was used
};

// The stream that the producer of CUDA tensors works on, from its exchange API; null on the CPU.
void* current_stream(nb::handle object, const DLTensor& tensor);

}  // namespace kda_python
