// The ABI functions of the state pool: check, translate, answer. Nothing escapes as an exception.
#include <cstring>
#include <new>

#include "plan/struct_size.h"
#include "runtime/exported_state.h"
#include "runtime/pool.h"

using namespace kda;

namespace {

using Answer = SlotTable::Answer;

Status report(Answer answer, kda_slot slot, const ErrorSink& sink) {
  switch (answer) {
    case Answer::ok:
      return KDA_OK;
    case Answer::exhausted:
      return sink.fail(KDA_E_POOL_EXHAUSTED, "one more slot", "as many as the pool was made for");
    case Answer::stale:
      return sink.failf(KDA_E_POOL_STALE, "slot %d of generation %u", "the handle of a live slot", slot.id,
                        slot.generation);
    case Answer::pending:
      return sink.failf(KDA_E_POOL_PENDING, "slot %d, which has a pending commit", "a slot with nothing pending",
                        slot.id);
  }
  return KDA_E_INTERNAL;
}

template <class F>
Status guarded(const ErrorSink& sink, F&& body) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return sink.fail(KDA_E_OUT_OF_MEMORY, "memory for the pool", "the planned bytes");
  } catch (...) {
    return sink.fail(KDA_E_INTERNAL, "an exception inside the pool", "none");
  }
}

Status null_argument(const ErrorSink& sink, const char* what) { return sink.fail(KDA_E_NULL, what, "a valid pointer"); }

// Accepts the options of an older caller (shorter struct) and of a newer one whose unknown tail is zero.
Status read_options(const kda_pool_options* given, kda_pool_options* out, const ErrorSink& sink) {
  return read_struct(given, "kda_pool_options", out, sink);
}

DLTensor tensor_of(const kda_pool& pool, const kda_pool::Extents& extents, DLDataType dtype, int64_t offset) {
  DLTensor t{};
  t.data = pool.memory.base() + offset;
  t.device = pool.device;
  t.ndim = extents.rank;
  t.dtype = dtype;
  t.shape = const_cast<int64_t*>(extents.shape);
  t.strides = const_cast<int64_t*>(extents.strides);
  return t;
}

DLDataType data_type_of(DType t) {
  if (t == DType::bf16) return {kDLBfloat, 16, 1};
  return {kDLFloat, static_cast<uint8_t>(size_of(t) * 8), 1};
}

Status layer_tensor(const kda_pool* pool, int32_t layer, const kda_pool::Extents& extents, DLDataType dtype,
                    int64_t offset, int64_t layer_stride, const char* what, DLTensor* out, const ErrorSink& sink) {
  if (layer < 0 || layer >= pool->layout.layers) {
    return sink.failf(KDA_E_NUMBER, "layer %d of a pool of %d layers", "a layer of the pool", layer,
                      pool->layout.layers);
  }
  if (extents.rank == 0 || extents.shape[0] == 0) {
    return sink.failf(KDA_E_COMBINATION, "%s of a pool made without them", "a pool made with them", what);
  }
  *out = tensor_of(*pool, extents, dtype, offset + layer * layer_stride);
  return KDA_OK;
}

// Calls body(address, bytes, slot stride) for each piece of a slot in the order of the image: state, then window, layer
// by layer.
template <class Body>
void for_each_piece(const kda_pool& pool, kda_slot slot, const Body& body) {
  const Problem& p = pool.plan.problem;
  const PoolLayout& l = pool.layout;
  const int64_t state_bytes = p.slot_elements() * size_of(p.state);
  const int64_t conv_bytes = p.conv_width ? (p.conv_width - 1) * p.conv_channels() * size_of(p.conv_state) : 0;
  for (int32_t layer = 0; layer < l.layers; ++layer) {
    std::byte* base = pool.memory.base();
    body(base + l.state_offset + layer * l.state_layer_stride + slot.id * l.state_slot_bytes, state_bytes,
         l.state_slot_bytes);
    if (conv_bytes)
      body(base + l.conv_offset + layer * l.conv_layer_stride + slot.id * l.conv_slot_bytes, conv_bytes,
           l.conv_slot_bytes);
  }
}

Status require_host(const kda_pool* pool, const char* what, const ErrorSink& sink) {
  if (pool->on_host) return KDA_OK;
  return sink.fail(KDA_E_DEVICE, what, "a pool in host memory",
                   "move the slot to a host pool first, or copy the pool tensors with the device's own copies");
}

Status copy_on_host(const kda_pool& pool, kda_slot from, kda_slot to) {
  for_each_piece(pool, from, [&](std::byte* piece, int64_t bytes, int64_t slot_stride) {
    std::memcpy(piece + (int64_t{to.id} - from.id) * slot_stride, piece, static_cast<size_t>(bytes));
  });
  return KDA_OK;
}

// On a device the plan's own move kernels copy, on the caller's stream.
Status copy_on_device(const kda_pool& pool, kda_slot from_slot, kda_slot to_slot, const kda_call* call,
                      kda_error* error) {
  const PoolLayout& l = pool.layout;
  const Problem& p = pool.plan.problem;
  int64_t one[1] = {1};
  int32_t from = from_slot.id, to = to_slot.id;
  DLTensor from_slots{}, to_slots{};
  for (auto [tensor, value] : {std::pair{&from_slots, &from}, std::pair{&to_slots, &to}}) {
    tensor->data = value;
    tensor->device = {kDLCPU, 0};
    tensor->ndim = 1;
    tensor->dtype = {kDLInt, 32, 1};
    tensor->shape = one;
  }
  const DLTensor state = tensor_of(pool, pool.state, data_type_of(p.state), l.state_offset);
  kda_move_args args{};
  args.struct_size = sizeof args;
  args.layers = l.layers;
  args.source = &state;
  args.source_slots = &from_slots;
  args.destination_slots = &to_slots;
  args.source_layers.stride = args.destination_layers.stride = l.state_layer_stride;
  if (const Status status = kda_move(&pool.plan, &args, call, error)) return status;
  if (p.conv_width == 0) return KDA_OK;
  const DLTensor conv = tensor_of(pool, pool.conv, data_type_of(p.conv_state), l.conv_offset);
  args.source = &conv;
  args.source_layers.stride = args.destination_layers.stride = l.conv_layer_stride;
  return kda_conv_move(&pool.plan, &args, call, error);
}

}  // namespace

extern "C" {

kda_status kda_pool_planned_bytes(const kda_plan* plan, const kda_pool_options* options, size_t* bytes,
                                  kda_error* error) {
  const ErrorSink sink{error};
  if (plan == nullptr || bytes == nullptr) return null_argument(sink, "plan or bytes is null");
  kda_pool_options o;
  if (const Status status = read_options(options, &o, sink)) return status;
  PoolLayout layout;
  if (const Status status = plan_pool(*plan, o, &layout, sink)) return status;
  *bytes = static_cast<size_t>(layout.total_bytes);
  return KDA_OK;
}

kda_status kda_pool_create(const kda_plan* plan, const kda_pool_options* options, kda_pool** out, kda_error* error) {
  const ErrorSink sink{error};
  if (plan == nullptr || out == nullptr) return null_argument(sink, "plan or out is null");
  kda_pool_options o;
  if (const Status status = read_options(options, &o, sink)) return status;
  PoolLayout layout;
  if (const Status status = plan_pool(*plan, o, &layout, sink)) return status;
  if (o.memory != nullptr) {
    if (o.memory_bytes < static_cast<size_t>(layout.total_bytes) ||
        reinterpret_cast<uintptr_t>(o.memory) % kPoolAlignment != 0) {
      return sink.failf(KDA_E_POOL_MEMORY, "%zu bytes at %p", "the planned bytes, aligned to 64", o.memory_bytes,
                        o.memory);
    }
  } else if (plan->choice.backend == Backend::cuda) {
    return sink.fail(KDA_E_POOL_MEMORY, "a pool of a CUDA plan without memory", "device memory of the planned bytes",
                     "allocate kda_pool_planned_bytes on the device and pass it as kda_pool_options.memory");
  }
  return guarded(sink, [&] {
    *out = new kda_pool(*plan, layout, o.memory);
    return KDA_OK;
  });
}

void kda_pool_destroy(kda_pool* pool) { delete pool; }

kda_status kda_pool_acquire(kda_pool* pool, kda_slot* out, kda_error* error) {
  const ErrorSink sink{error};
  if (pool == nullptr || out == nullptr) return null_argument(sink, "pool or out is null");
  return report(pool->slots.acquire(out), {}, sink);
}

kda_status kda_pool_release(kda_pool* pool, kda_slot slot, kda_error* error) {
  const ErrorSink sink{error};
  if (pool == nullptr) return null_argument(sink, "pool is null");
  return report(pool->slots.release(slot), slot, sink);
}

kda_status kda_pool_fork(kda_pool* pool, kda_slot source, const kda_call* call, kda_slot* out, kda_error* error) {
  const ErrorSink sink{error};
  if (pool == nullptr || out == nullptr) return null_argument(sink, "pool or out is null");
  if (const Status status = report(pool->slots.check_settled(source), source, sink)) return status;
  kda_slot fork{};
  if (const Status status = report(pool->slots.acquire(&fork), source, sink)) return status;

  const Status status =
      pool->on_host ? copy_on_host(*pool, source, fork) : copy_on_device(*pool, source, fork, call, error);
  if (status != KDA_OK) {
    pool->slots.release(fork);
    return status;
  }
  *out = fork;
  return KDA_OK;
}

kda_status kda_pool_count(const kda_pool* pool, int32_t* free_slots, int32_t* live_slots) {
  if (pool == nullptr || free_slots == nullptr || live_slots == nullptr) return KDA_E_NULL;
  pool->slots.count(free_slots, live_slots);
  return KDA_OK;
}

kda_status kda_pool_check(const kda_pool* pool, kda_slot slot, kda_error* error) {
  const ErrorSink sink{error};
  if (pool == nullptr) return null_argument(sink, "pool is null");
  return report(pool->slots.check(slot), slot, sink);
}

kda_status kda_pool_snapshot(const kda_pool* pool, kda_slot slot, void* buffer, size_t capacity, size_t* needed,
                             kda_error* error) {
  const ErrorSink sink{error};
  if (pool == nullptr || needed == nullptr) return null_argument(sink, "pool or needed is null");
  if (const Status status = require_host(pool, "a snapshot of a device pool", sink)) return status;
  if (const Status status = report(pool->slots.check_settled(slot), slot, sink)) return status;
  ExportedStateHeader header = exported_state_header(pool->plan.problem, pool->layout.layers);
  *needed = sizeof header + header.payload_bytes;
  if (buffer == nullptr && capacity == 0) return KDA_OK;
  if (buffer == nullptr || capacity < *needed) {
    return sink.failf(KDA_E_POOL_MEMORY, "a buffer of %zu bytes", "a buffer of the needed bytes", capacity);
  }
  auto* write = static_cast<std::byte*>(buffer) + sizeof header;
  header.checksum = kExportedStateSeed;
  for_each_piece(*pool, slot, [&](const std::byte* piece, int64_t bytes, int64_t) {
    std::memcpy(write, piece, static_cast<size_t>(bytes));
    header.checksum = exported_state_checksum(write, static_cast<uint64_t>(bytes), header.checksum);
    write += bytes;
  });
  std::memcpy(buffer, &header, sizeof header);
  return KDA_OK;
}

kda_status kda_pool_restore(kda_pool* pool, kda_slot slot, const void* buffer, size_t bytes, kda_error* error) {
  const ErrorSink sink{error};
  if (pool == nullptr || buffer == nullptr) return null_argument(sink, "pool or buffer is null");
  if (const Status status = require_host(pool, "a restore to a device pool", sink)) return status;
  if (const Status status = report(pool->slots.check_settled(slot), slot, sink)) return status;
  const ExportedStateHeader wanted = exported_state_header(pool->plan.problem, pool->layout.layers);
  ExportedStateHeader header{};
  if (bytes < sizeof header) {
    return sink.failf(KDA_E_POOL_IMAGE, "%zu bytes", "an image of exported state", bytes);
  }
  std::memcpy(&header, buffer, sizeof header);
  if (header.magic != wanted.magic || header.version != wanted.version) {
    return sink.failf(KDA_E_POOL_IMAGE, "magic %08x, version %u", "an image of exported state, version 1", header.magic,
                      header.version);
  }
  const uint64_t checksum = header.checksum;
  header.checksum = 0;
  if (header != wanted || bytes != sizeof header + wanted.payload_bytes) {
    return sink.failf(KDA_E_POOL_IMAGE, "%d layers, H=%d HV=%d K=%d V=%d W=%d, %zu bytes",
                      "the geometry, dtypes, layouts and size of this pool", header.layers, header.heads,
                      header.value_heads, header.key_dim, header.value_dim, header.conv_width, bytes);
  }
  // The whole image is checked before the first byte of the slot changes.
  const std::byte* const payload = static_cast<const std::byte*>(buffer) + sizeof header;
  const std::byte* read = payload;
  uint64_t found = kExportedStateSeed;
  for_each_piece(*pool, slot, [&](const std::byte*, int64_t piece_bytes, int64_t) {
    found = exported_state_checksum(read, static_cast<uint64_t>(piece_bytes), found);
    read += piece_bytes;
  });
  if (found != checksum) return sink.fail(KDA_E_POOL_IMAGE, "a checksum that does not match", "an undamaged image");
  read = payload;
  for_each_piece(*pool, slot, [&](std::byte* piece, int64_t piece_bytes, int64_t) {
    std::memcpy(piece, read, static_cast<size_t>(piece_bytes));
    read += piece_bytes;
  });
  return KDA_OK;
}

kda_status kda_pool_set_pending(kda_pool* pool, kda_slot slot, int32_t tip, int32_t record_row, kda_error* error) {
  const ErrorSink sink{error};
  if (pool == nullptr) return null_argument(sink, "pool is null");
  if (tip < 0 || tip >= pool->plan.problem.max_nodes) {
    return sink.failf(KDA_E_TIP, "tip %d", "a node below the plan's max_nodes", tip);
  }
  if (record_row < 0 || record_row >= pool->layout.record_rows) {
    return sink.failf(KDA_E_RECORD_ROW, "record row %d of %d", "a record row of the pool", record_row,
                      pool->layout.record_rows);
  }
  return report(pool->slots.set_pending(slot, {tip, record_row}), slot, sink);
}

kda_status kda_pool_get_pending(const kda_pool* pool, kda_slot slot, int32_t* tip, int32_t* record_row,
                                kda_error* error) {
  const ErrorSink sink{error};
  if (pool == nullptr || tip == nullptr || record_row == nullptr) return null_argument(sink, "a pointer is null");
  PendingMark mark;
  if (const Status status = report(pool->slots.get_pending(slot, &mark), slot, sink)) return status;
  *tip = mark.tip;
  *record_row = mark.record_row;
  return KDA_OK;
}

kda_status kda_pool_clear_pending(kda_pool* pool, kda_slot slot, kda_error* error) {
  const ErrorSink sink{error};
  if (pool == nullptr) return null_argument(sink, "pool is null");
  return report(pool->slots.set_pending(slot, {}), slot, sink);
}

kda_status kda_pool_state(const kda_pool* pool, int32_t layer, DLTensor* out, kda_error* error) {
  const ErrorSink sink{error};
  if (pool == nullptr || out == nullptr) return null_argument(sink, "pool or out is null");
  const PoolLayout& l = pool->layout;
  return layer_tensor(pool, layer, pool->state, data_type_of(pool->plan.problem.state), l.state_offset,
                      l.state_layer_stride, "states", out, sink);
}

kda_status kda_pool_conv_state(const kda_pool* pool, int32_t layer, DLTensor* out, kda_error* error) {
  const ErrorSink sink{error};
  if (pool == nullptr || out == nullptr) return null_argument(sink, "pool or out is null");
  const PoolLayout& l = pool->layout;
  return layer_tensor(pool, layer, pool->conv, data_type_of(pool->plan.problem.conv_state), l.conv_offset,
                      l.conv_layer_stride, "conv windows", out, sink);
}

kda_status kda_pool_records(const kda_pool* pool, int32_t layer, DLTensor* out, kda_error* error) {
  const ErrorSink sink{error};
  if (pool == nullptr || out == nullptr) return null_argument(sink, "pool or out is null");
  const PoolLayout& l = pool->layout;
  return layer_tensor(pool, layer, pool->records, {kDLUInt, 8, 1}, l.record_offset, l.record_layer_stride, "records",
                      out, sink);
}

kda_status kda_pool_conv_records(const kda_pool* pool, int32_t layer, DLTensor* out, kda_error* error) {
  const ErrorSink sink{error};
  if (pool == nullptr || out == nullptr) return null_argument(sink, "pool or out is null");
  const PoolLayout& l = pool->layout;
  return layer_tensor(pool, layer, pool->conv_records, {kDLUInt, 8, 1}, l.conv_record_offset,
                      l.conv_record_layer_stride, "conv records", out, sink);
}

kda_status kda_pool_layer_strides(const kda_pool* pool, int64_t* state, int64_t* conv_state, int64_t* records,
                                  int64_t* conv_records, kda_error* error) {
  const ErrorSink sink{error};
  if (pool == nullptr) return null_argument(sink, "pool is null");
  const PoolLayout& l = pool->layout;
  if (state) *state = l.state_layer_stride;
  if (conv_state) *conv_state = l.conv_layer_stride;
  if (records) *records = l.record_layer_stride;
  if (conv_records) *conv_records = l.conv_record_layer_stride;
  return KDA_OK;
}

}  // extern "C"
