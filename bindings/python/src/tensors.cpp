#include "tensors.h"

#include <nanobind/stl/string.h>

#include <string>
#include <utility>

#include "errors.h"

namespace kda_python {
namespace {

constexpr const char* kVersionedCapsule = "dltensor_versioned";
constexpr const char* kCapsule = "dltensor";

// Frameworks publish a table of C functions on their tensor type; reading a tensor through it takes about 50 ns where
// __dlpack__ takes more than a microsecond, and a call has a dozen tensors.
const DLPackExchangeAPI* exchange_api(nb::handle object) {
  static PyObject* const attribute = PyUnicode_InternFromString("__dlpack_c_exchange_api__");
  static PyTypeObject* known_type = nullptr;  // the tensor type seen last; guarded by the GIL
  static const DLPackExchangeAPI* known_api = nullptr;
  PyTypeObject* type = Py_TYPE(object.ptr());
  if (type == known_type) return known_api;
  const DLPackExchangeAPI* api = nullptr;
  if (PyObject* capsule = PyObject_GetAttr(reinterpret_cast<PyObject*>(type), attribute)) {
    if (PyCapsule_CheckExact(capsule)) {
      api = static_cast<const DLPackExchangeAPI*>(PyCapsule_GetPointer(capsule, PyCapsule_GetName(capsule)));
    }
    Py_DECREF(capsule);
  }
  PyErr_Clear();
  if (api != nullptr && (api->header.version.major != DLPACK_MAJOR_VERSION || !api->dltensor_from_py_object_no_sync)) {
    api = nullptr;
  }
  if (api != nullptr) {
    Py_INCREF(reinterpret_cast<PyObject*>(type));  // so that the address stays this type's
    known_type = type;
    known_api = api;
  }
  return api;
}

}  // namespace

Borrowed::Borrowed(nb::handle object, const char* name, bool writable) {
  if (object.is_none()) return;
  if (const DLPackExchangeAPI* api = exchange_api(object)) {
    read_exchange_api(object, api, name);
  } else if (nb::isinstance<TypedView>(object) && nb::inst_ready(object)) {
    const TypedView& view = *nb::inst_ptr<TypedView>(object);
    read_protocol(view.array, name, writable);
    if (tensor_.dtype.bits != view.dtype.bits || tensor_.dtype.lanes != 1) {
      throw_argument_error(KDA_E_DTYPE, name, "a view of an array of another element size",
                           "a view of 16-bit elements");
    }
    tensor_.dtype = view.dtype;
  } else {
    read_protocol(object, name, writable);
  }
  present_ = true;
}

Borrowed::~Borrowed() = default;

void Borrowed::read_exchange_api(nb::handle object, const void* table, const char* name) {
  const auto* api = static_cast<const DLPackExchangeAPI*>(table);
  if (api->dltensor_from_py_object_no_sync(object.ptr(), &tensor_) != 0) {
    nb::python_error error;
    throw_argument_error(KDA_E_DTYPE, name, error.what(), "a tensor that DLPack can describe, detached from autograd");
  }
}

void Borrowed::read_protocol(nb::handle object, const char* name, bool writable) {
  if (!nb::hasattr(object, "__dlpack__")) {
    throw_argument_error(KDA_E_DTYPE, name, nb::str(nb::handle(Py_TYPE(object.ptr()))).c_str(),
                         "a tensor with __dlpack__ (torch, NumPy, CuPy, JAX), or None");
  }
  nb::object method = object.attr("__dlpack__");
  nb::object capsule;
  try {
    // Asking for version 1 lets the producer say that an array is read-only instead of refusing it.
    capsule = method(nb::arg("max_version") = nb::make_tuple(1, 0));
  } catch (nb::python_error& error) {
    if (!error.matches(PyExc_TypeError)) {
      throw_argument_error(KDA_E_DTYPE, name, error.what(), "a tensor that DLPack can describe");
    }
    try {
      capsule = method();  // a producer from before DLPack 1.0
    } catch (nb::python_error& older) {
      throw_argument_error(KDA_E_DTYPE, name, older.what(), "a tensor that DLPack can describe");
    }
  }
  if (PyCapsule_IsValid(capsule.ptr(), kVersionedCapsule)) {
    auto* managed = static_cast<DLManagedTensorVersioned*>(PyCapsule_GetPointer(capsule.ptr(), kVersionedCapsule));
    if (writable && (managed->flags & DLPACK_FLAG_BITMASK_READ_ONLY)) {
      throw_argument_error(KDA_E_COMBINATION, name, "a read-only array", "a writable array: this argument is written");
    }
    tensor_ = managed->dl_tensor;
  } else if (PyCapsule_IsValid(capsule.ptr(), kCapsule)) {
    tensor_ = static_cast<DLManagedTensor*>(PyCapsule_GetPointer(capsule.ptr(), kCapsule))->dl_tensor;
  } else {
    throw_argument_error(KDA_E_DTYPE, name, "a capsule that is not DLPack's", "a tensor with __dlpack__");
  }
  owner_ = std::move(capsule);
}

void bind_view(nb::module_& m) {
  nb::class_<TypedView>(m, "View", "An array seen with a dtype that its producer lacks. Made by libkda.view.")
      .def(
          "__init__",
          [](TypedView* self, nb::object array, const std::string& dtype) {
            if (dtype != "bfloat16") {
              throw_argument_error(KDA_E_DTYPE, "dtype", dtype.c_str(), "bfloat16, the dtype that NumPy lacks");
            }
            if (!nb::hasattr(array, "__dlpack__")) {
              throw_argument_error(KDA_E_DTYPE, "array", nb::str(nb::handle(Py_TYPE(array.ptr()))).c_str(),
                                   "an array with __dlpack__ and 16-bit elements");
            }
            new (self) TypedView{std::move(array), DLDataType{kDLBfloat, 16, 1}};
          },
          nb::arg("array"), nb::arg("dtype"))
      .def_prop_ro(
          "array", [](const TypedView& view) { return view.array; }, "The array itself.");
}

void* current_stream(nb::handle object, const DLTensor& tensor) {
  if (tensor.device.device_type == kDLCPU) return nullptr;
  const DLPackExchangeAPI* api = exchange_api(object);
  void* stream = nullptr;
  if (api != nullptr && api->current_work_stream != nullptr &&
      api->current_work_stream(tensor.device.device_type, tensor.device.device_id, &stream) != 0) {
    throw nb::python_error();
  }
  return stream;
}

}  // namespace kda_python
