// The state pool as a Python object; its tensors come out as zero-copy DLPack producers.
#include <nanobind/ndarray.h>

#include "errors.h"
#include "plan.h"

namespace kda_python {
namespace {

struct Slot {
  kda_slot slot;
};

struct Pool {
  Pool(std::shared_ptr<Plan> the_plan, const kda_pool_options& options) : plan(std::move(the_plan)) {
    kda_pool* handle = nullptr;
    check([&](kda_error* e) { return kda_pool_create(plan->handle.get(), &options, &handle, e); });
    pool.reset(handle);
  }
  struct Delete {
    void operator()(kda_pool* p) const { kda_pool_destroy(p); }
  };
  std::shared_ptr<Plan> plan;  // outlives the pool
  std::unique_ptr<kda_pool, Delete> pool;
};

kda_pool_options read_options(int32_t slots, int32_t layers, int32_t record_rows) {
  auto options = kda::args<kda_pool_options>();
  options.slots = slots;
  options.layers = layers;
  options.record_rows = record_rows;
  return options;
}

using TensorFunction = kda_status (*)(const kda_pool*, int32_t, DLTensor*, kda_error*);

// A view of the pool's memory that keeps the pool alive.
template <TensorFunction function>
nb::object tensor(nb::handle self, int32_t layer) {
  const Pool& pool = *nb::inst_ptr<Pool>(self);
  DLTensor t{};
  check([&](kda_error* e) { return function(pool.pool.get(), layer, &t, e); });
  size_t shape[4];
  for (int i = 0; i < t.ndim; ++i) shape[i] = static_cast<size_t>(t.shape[i]);
  nb::dlpack::dtype dtype{static_cast<uint8_t>(t.dtype.code), t.dtype.bits, t.dtype.lanes};
  return nb::cast(nb::ndarray<nb::array_api>(static_cast<char*>(t.data) + t.byte_offset, static_cast<size_t>(t.ndim),
                                             shape, self, t.strides, dtype, t.device.device_type, t.device.device_id));
}

}  // namespace

void bind_pool(nb::module_& m) {
  nb::class_<Slot>(m, "Slot", "A live sequence's place in a pool. Stale after release: every use is then an error.")
      .def_prop_ro(
          "id", [](const Slot& s) { return s.slot.id; }, "The slot's index in the pool's tensors.")
      .def_prop_ro("generation", [](const Slot& s) { return s.slot.generation; })
      .def("__repr__",
           [](const Slot& s) { return nb::str("Slot(id={}, generation={})").format(s.slot.id, s.slot.generation); });

  nb::class_<Pool>(m, "Pool", "Slots of state and conv windows for every layer, records beside them. Thread-safe.")
      .def(
          "__init__",
          [](Pool* self, std::shared_ptr<Plan> plan, int32_t slots, int32_t layers, int32_t record_rows) {
            new (self) Pool(std::move(plan), read_options(slots, layers, record_rows));
          },
          nb::arg("plan"), nb::arg("slots"), nb::arg("layers") = 0, nb::arg("record_rows") = 0)
      .def_static(
          "planned_bytes",
          [](const Plan& plan, int32_t slots, int32_t layers, int32_t record_rows) {
            const kda_pool_options options = read_options(slots, layers, record_rows);
            size_t bytes = 0;
            check([&](kda_error* e) { return kda_pool_planned_bytes(plan.handle.get(), &options, &bytes, e); });
            return bytes;
          },
          nb::arg("plan"), nb::arg("slots"), nb::arg("layers") = 0, nb::arg("record_rows") = 0,
          "Bytes that a pool would take, asked before it is made.")
      .def("acquire",
           [](Pool& p) {
             Slot slot{};
             check([&](kda_error* e) { return kda_pool_acquire(p.pool.get(), &slot.slot, e); });
             return slot;
           })
      .def(
          "release",
          [](Pool& p, const Slot& s) {
            check([&](kda_error* e) { return kda_pool_release(p.pool.get(), s.slot, e); });
          },
          nb::arg("slot"))
      .def(
          "fork",
          [](Pool& p, const Slot& s) {
            Slot slot{};
            check([&](kda_error* e) { return kda_pool_fork(p.pool.get(), s.slot, nullptr, &slot.slot, e); });
            return slot;
          },
          nb::arg("slot"), "A new slot with the same bits. Refused while a commit is pending.")
      .def(
          "check",
          [](const Pool& p, const Slot& s) {
            check([&](kda_error* e) { return kda_pool_check(p.pool.get(), s.slot, e); });
          },
          nb::arg("slot"), "Raises what a use of the handle would raise.")
      .def_prop_ro("free_slots",
                   [](const Pool& p) {
                     int32_t free_slots = 0, live = 0;
                     kda_pool_count(p.pool.get(), &free_slots, &live);
                     return free_slots;
                   })
      .def(
          "snapshot",
          [](const Pool& p, const Slot& s) {
            size_t needed = 0;
            check([&](kda_error* e) { return kda_pool_snapshot(p.pool.get(), s.slot, nullptr, 0, &needed, e); });
            nb::object bytes = nb::steal(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(needed)));
            if (!bytes.is_valid()) throw nb::python_error();
            check([&](kda_error* e) {
              return kda_pool_snapshot(p.pool.get(), s.slot, PyBytes_AsString(bytes.ptr()), needed, &needed, e);
            });
            return bytes;
          },
          nb::arg("slot"), "The slot as bytes: versioned and self-describing.")
      .def(
          "restore",
          [](Pool& p, const Slot& s, const nb::bytes& image) {
            check([&](kda_error* e) { return kda_pool_restore(p.pool.get(), s.slot, image.c_str(), image.size(), e); });
          },
          nb::arg("slot"), nb::arg("image"))
      .def(
          "set_pending",
          [](Pool& p, const Slot& s, int32_t tip, int32_t record_row) {
            check([&](kda_error* e) { return kda_pool_set_pending(p.pool.get(), s.slot, tip, record_row, e); });
          },
          nb::arg("slot"), nb::arg("tip"), nb::arg("record_row"))
      .def(
          "pending",
          [](const Pool& p, const Slot& s) -> nb::object {
            int32_t tip = -1, record_row = -1;
            check([&](kda_error* e) { return kda_pool_get_pending(p.pool.get(), s.slot, &tip, &record_row, e); });
            if (tip < 0) return nb::none();
            return nb::make_tuple(tip, record_row);
          },
          nb::arg("slot"), "(tip, record row) of a commit that has not been applied, or None.")
      .def(
          "clear_pending",
          [](Pool& p, const Slot& s) {
            check([&](kda_error* e) { return kda_pool_clear_pending(p.pool.get(), s.slot, e); });
          },
          nb::arg("slot"))
      .def("state", &tensor<kda_pool_state>, nb::arg("layer") = 0, "[slots, HV, V, K] of one layer, zero copy.")
      .def("conv_state", &tensor<kda_pool_conv_state>, nb::arg("layer") = 0)
      .def("records", &tensor<kda_pool_records>, nb::arg("layer") = 0)
      .def("conv_records", &tensor<kda_pool_conv_records>, nb::arg("layer") = 0);
}

}  // namespace kda_python
