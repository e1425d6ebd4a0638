#include <algorithm>
#include <cstring>

#include "cuda/host.h"
#include "cuda/host_lists.h"
#include "cuda/workspace.h"

namespace kda {
namespace cuda {

constexpr int kListThreads = 256;

struct HostListArgs {
  HostListChunk chunk;
  std::byte* to;
  int count;
};

__global__ void __launch_bounds__(kListThreads) write_host_lists_kernel(const __grid_constant__ HostListArgs args) {
  for (int i = threadIdx.x; i < args.count; i += kListThreads) args.to[i] = args.chunk.bytes[i];
}

}  // namespace cuda

std::byte* HostListStager::begin_list() {
  const int64_t begin = cuda::align_host_list(used_);
  constexpr std::byte kZero{};
  while (used_ < begin) push(&kZero, 1);
  return area_ + begin;
}

void HostListStager::push(const void* value, int size) {
  if (used_ + size <= bytes_) {
    if (used_ + size - chunk_begin_ > HostListChunk::kBytes) flush();
    std::memcpy(chunk_.bytes + (used_ - chunk_begin_), value, static_cast<size_t>(size));
  }
  used_ += size;
}

void HostListStager::flush() {
  if (status_ == KDA_OK && used_ > chunk_begin_) {
    const cuda::HostListArgs args{chunk_, area_ + chunk_begin_, static_cast<int>(used_ - chunk_begin_)};
    Execution execution;
    execution.stream = stream_;
    status_ = cuda::launch<cuda::write_host_lists_kernel>(1, 1, cuda::kListThreads, 0, execution, args);
  }
  chunk_begin_ = used_;
}

void HostListStager::stage(IndexView& view) {
  if (!view.present() || !view.on_host) return;
  const int64_t columns = std::min(view.columns, std::max<int64_t>(most_columns_, 1));
  std::byte* copy = begin_list();
  for (int64_t row = 0; row < view.count; ++row) {
    for (int64_t column = 0; column < columns; ++column) {
      const int64_t wide = view.at(row, column);
      const auto narrow = static_cast<int32_t>(wide);
      view.wide ? push(&wide, sizeof(wide)) : push(&narrow, sizeof(narrow));
    }
  }
  view = {.data = copy, .wide = view.wide, .count = view.count, .columns = columns, .stride = columns};
}

void HostListStager::stage(FlagView& view, int64_t count) {
  if (!view.present() || !view.on_host) return;
  std::byte* copy = begin_list();
  for (int64_t i = 0; i < count; ++i) {
    const uint8_t flag = view.at(i) ? 1 : 0;
    push(&flag, 1);
  }
  view = {.data = reinterpret_cast<const uint8_t*>(copy)};
}

Status HostListStager::finish() {
  if (used_ > bytes_) return KDA_E_PLAN_LIMIT;
  flush();
  return status_;
}

}  // namespace kda
