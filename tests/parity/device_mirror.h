// Runs a call on the GPU for tests that think in host tensors: every tensor named by the arguments is copied to device
// memory (what overlaps on the host overlaps there), the call runs on the copies, and all of it is copied back. Space
// between the copies is filled and checked, so a stray write is found. KDA_MIRROR_HOST_LISTS=1 leaves index lists where
// they are.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <vector>

#include "kda/kda.h"

namespace parity {

inline void cuda_check(cudaError_t e, const char* what) {
  if (e == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(e));
  std::exit(3);
}

class DeviceMirror {
 public:
  ~DeviceMirror() {
    for (const Block& b : allocations_) free_blocks().push_back(b);
  }

  // Replaces the tensors of `args` by device tensors. Call finish() after the library's call.
  template <class Args>
  void start(Args& args) {
    visit(args,
          [&](const DLTensor*& t, int64_t layers, const kda_layer_addresses* addresses) { add(t, layers, addresses); });
    place();
    visit(args, [&](const DLTensor*& t, int64_t, const kda_layer_addresses*) { t = translate(t); });
    visit_tables(args, [&](kda_layer_addresses& addresses) { translate_table(addresses); });
  }

  // Device memory of its own, every byte `fill`.
  void* memory(size_t bytes, int fill) {
    void* p = allocate(bytes);
    cuda_check(cudaMemset(p, fill, bytes), "cudaMemset");
    return p;
  }

  // Waits, copies everything back; false if a byte outside every tensor changed.
  bool finish() {
    cuda_check(cudaDeviceSynchronize(), "call");
    bool clean = true;
    for (const Range& r : ranges_) {
      std::vector<std::byte> image(r.bytes() + 2 * kGuard);
      cuda_check(cudaMemcpy(image.data(), r.device - kGuard, image.size(), cudaMemcpyDeviceToHost), "copy back");
      for (size_t i = 0; i < kGuard; ++i) {
        clean = clean && image[i] == std::byte{kFill} && image[image.size() - 1 - i] == std::byte{kFill};
      }
      std::copy_n(image.data() + kGuard, r.bytes(), r.begin);
    }
    return clean;
  }

 private:
  static constexpr size_t kGuard = 4096;
  static constexpr int kFill = 0xff;
  struct Block {
    void* memory;
    size_t bytes;
  };
  static std::vector<Block>& free_blocks() {
    static std::vector<Block> blocks;
    return blocks;
  }
  struct Range {
    std::byte *begin, *end;
    std::byte* device = nullptr;
    size_t bytes() const { return static_cast<size_t>(end - begin); }
  };

  template <class F>
  static void visit(kda_tokens& t, const F& f) {
    for (const DLTensor** p : {&t.q, &t.k, &t.v, &t.a, &t.b, &t.A_log, &t.dt_bias, &t.out}) f(*p, 1, nullptr);
  }
  template <class F>
  static void visit(kda_rows& r, const F& f, int64_t layers = 1, const kda_layer_addresses* state = nullptr,
                    const kda_layer_addresses* dst = nullptr) {
    for (const DLTensor** p : {&r.cu_seqlens, &r.slots, &r.has_state, &r.dst_slots}) f(*p, 1, nullptr);
    f(r.state, layers, state);
    f(r.dst_state, layers, dst);
  }
  template <class F>
  static void visit(kda_snapshots& s, const F& f, int64_t layers = 1, const kda_layer_addresses* pool = nullptr) {
    for (const DLTensor** p : {&s.rows, &s.positions, &s.slots}) f(*p, 1, nullptr);
    f(s.pool, layers, pool);
  }
  template <class F>
  static void visit(kda_extend_args& a, const F& f) {
    visit(a.tokens, f);
    visit(a.rows, f);
    visit(a.snapshots, f);
  }
  template <class F>
  static void visit(kda_decode_args& a, const F& f) {
    visit(a.tokens, f);
    visit(a.rows, f);
  }
  template <class F>
  static void visit(kda_verify_args& a, const F& f) {
    visit(a.tokens, f);
    visit(a.rows, f);
    for (const DLTensor** p : {&a.parents, &a.records, &a.record_rows, &a.node_states, &a.node_slots, &a.node_pool,
                               &a.pending_tips, &a.pending_record_rows}) {
      f(*p, 1, nullptr);
    }
    visit(a.pending_snapshots, f);
  }
  template <class F>
  static void visit(kda_commit_args& a, const F& f) {
    const int64_t layers = std::max(a.layers, 1);
    visit(a.rows, f, layers, &a.state_layers, &a.dst_layers);
    f(a.tips, 1, nullptr);
    f(a.records, layers, &a.record_layers);
    f(a.record_rows, 1, nullptr);
    visit(a.snapshots, f, layers, &a.snapshot_layers);
  }
  template <class F>
  static void visit(kda_move_args& a, const F& f) {
    const int64_t layers = std::max(a.layers, 1);
    f(a.source, layers, &a.source_layers);
    f(a.destination, layers, &a.destination_layers);
    f(a.source_slots, 1, nullptr);
    f(a.destination_slots, 1, nullptr);
  }
  template <class F>
  static void visit(kda_conv_args& a, const F& f) {
    for (const DLTensor** p : {&a.x, &a.weight, &a.bias, &a.out, &a.parents, &a.records, &a.record_rows,
                               &a.pending_tips, &a.pending_record_rows}) {
      f(*p, 1, nullptr);
    }
    visit(a.rows, f);
    visit(a.snapshots, f);
  }
  template <class Args, class F>
  static void visit_tables(Args&, const F&) {}
  template <class F>
  static void visit_tables(kda_commit_args& a, const F& f) {
    for (kda_layer_addresses* l : {&a.state_layers, &a.dst_layers, &a.record_layers, &a.snapshot_layers}) f(*l);
  }
  template <class F>
  static void visit_tables(kda_move_args& a, const F& f) {
    for (kda_layer_addresses* l : {&a.source_layers, &a.destination_layers}) f(*l);
  }

  static std::byte* data_of(const DLTensor& t) { return static_cast<std::byte*>(t.data) + t.byte_offset; }
  static int64_t bytes_of(const DLTensor& t) {
    int64_t last = 0, compact = 1;
    for (int d = t.ndim - 1; d >= 0; --d) {
      if (t.shape[d] == 0) return 0;
      last += (t.shape[d] - 1) * (t.strides ? t.strides[d] : compact);
      compact *= t.shape[d];
    }
    return (last + 1) * t.dtype.bits / 8;
  }
  static int64_t table_entry(const DLTensor& table, int64_t i) {
    return reinterpret_cast<const int64_t*>(data_of(table))[i * (table.strides ? table.strides[0] : 1)];
  }

  // With KDA_MIRROR_HOST_LISTS set, index lists are given as they are: indices, and has_state, the one list of bytes.
  static bool stays_on_host(const DLTensor& t) {
    static const bool host_lists = std::getenv("KDA_MIRROR_HOST_LISTS") != nullptr;
    const bool bytes = t.dtype.code == kDLBool || (t.dtype.code == kDLUInt && t.dtype.bits == 8);
    return host_lists && (t.dtype.code == kDLInt || (bytes && t.ndim == 1));
  }

  void add(const DLTensor* t, int64_t layers, const kda_layer_addresses* addresses) {
    if (t == nullptr || stays_on_host(*t)) return;
    const int64_t bytes = bytes_of(*t);
    if (bytes == 0) return;
    const bool table = addresses != nullptr && addresses->table != nullptr;
    for (int64_t l = 0; table && l < layers; ++l) {
      std::byte* begin = reinterpret_cast<std::byte*>(table_entry(*addresses->table, l));
      ranges_.push_back({begin, begin + bytes});
    }
    if (table) return;  // the tensor's own pointer is not used
    // layers at a stride lie in one block, as they do on the host
    const int64_t more = addresses != nullptr ? (layers - 1) * addresses->stride : 0;
    ranges_.push_back({data_of(*t), data_of(*t) + bytes + more});
  }

  // Freed blocks are kept for later calls, unless KDA_MIRROR_FRESH is set (for memory checkers).
  void* allocate(size_t bytes) {
    size_t size = 8192;
    while (size < bytes) size *= 2;
    static const bool fresh = std::getenv("KDA_MIRROR_FRESH") != nullptr;
    if (fresh) size = std::max<size_t>(bytes, 1);
    for (Block& b : free_blocks()) {
      if (fresh || b.bytes != size) continue;
      allocations_.push_back(b);
      std::swap(b, free_blocks().back());
      free_blocks().pop_back();
      return allocations_.back().memory;
    }
    void* p = nullptr;
    cuda_check(cudaMalloc(&p, size), "cudaMalloc");
    allocations_.push_back({p, size});
    return p;
  }

  void place() {
    std::sort(ranges_.begin(), ranges_.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
    std::vector<Range> merged;
    for (const Range& r : ranges_) {
      if (!merged.empty() && r.begin < merged.back().end) {
        merged.back().end = std::max(merged.back().end, r.end);
      } else {
        merged.push_back(r);
      }
    }
    ranges_ = merged;
    for (Range& r : ranges_) {
      const size_t shift = reinterpret_cast<uintptr_t>(r.begin) % 256;  // keeps the host's alignment
      const size_t bytes = 2 * kGuard + 256 + r.bytes();
      std::byte* p = static_cast<std::byte*>(memory(bytes, kFill));
      r.device = p + kGuard + shift;
      cuda_check(cudaMemcpy(r.device, r.begin, r.bytes(), cudaMemcpyHostToDevice), "copy");
    }
  }

  std::byte* device_address(std::byte* host) const {
    for (const Range& r : ranges_) {
      if (host >= r.begin && host < r.end) return r.device + (host - r.begin);
    }
    return nullptr;
  }

  const DLTensor* translate(const DLTensor* t) {
    if (t == nullptr || stays_on_host(*t)) return t;
    DLTensor& copy = tensors_.emplace_back(*t);
    copy.data = bytes_of(*t) == 0 || t->data == nullptr ? nullptr : device_address(data_of(*t));
    copy.byte_offset = 0;
    copy.device = {kDLCUDA, 0};
    return &copy;
  }

  void translate_table(kda_layer_addresses& addresses) {
    if (addresses.table == nullptr) return;
    const int64_t layers = addresses.table->shape[0];
    std::vector<std::byte*> table;
    for (int64_t l = 0; l < layers; ++l) {
      table.push_back(device_address(reinterpret_cast<std::byte*>(table_entry(*addresses.table, l))));
    }
    void* p = memory(table.size() * sizeof(table[0]), 0);
    cuda_check(cudaMemcpy(p, table.data(), table.size() * sizeof(table[0]), cudaMemcpyHostToDevice), "copy table");
    DLTensor& copy = tensors_.emplace_back(*addresses.table);
    copy.data = p;
    copy.byte_offset = 0;
    copy.strides = nullptr;
    copy.device = {kDLCUDA, 0};
    addresses.table = &copy;
  }

  std::vector<Range> ranges_;
  std::vector<Block> allocations_;
  std::deque<DLTensor> tensors_;
};

}  // namespace parity
