// Index lists in host memory, brought to the GPU before a kernel reads them. Their values travel as kernel arguments:
// the call neither waits nor reads the host's memory later, and a captured graph keeps the values of its capture.
#pragma once

#include "core/launch_lists.h"

namespace kda {

// A piece of packed lists as an argument of a kernel; those are limited to 4 KiB.
struct HostListChunk {
  static constexpr int kBytes = 3584;
  std::byte bytes[kBytes];
};

// Packs lists into `area` (16-byte aligned device memory of `bytes` bytes; host_list_bytes, workspace.h, is enough), in
// the order of the stream.
class HostListStager {
 public:
  HostListStager(const Problem& problem, std::byte* area, int64_t bytes, void* stream)
      : most_columns_(problem.max_nodes), area_(area), bytes_(bytes), stream_(stream) {}

  // A list in host memory is queued and the view made to name its copy; other views stay as they are.
  void stage(IndexView& view);
  void stage(FlagView& view, int64_t count);
  // Sends what is queued. KDA_E_PLAN_LIMIT if the lists did not fit, KDA_E_CUDA_DEVICE if a launch failed.
  Status finish();
  int64_t bytes_needed() const { return used_; }

 private:
  std::byte* begin_list();
  void push(const void* value, int size);
  void flush();

  int64_t most_columns_;
  std::byte* area_;
  int64_t bytes_;
  void* stream_;
  int64_t used_ = 0;         // bytes of the area, queued or sent
  int64_t chunk_begin_ = 0;  // place of the chunk in the area
  HostListChunk chunk_;
  Status status_ = KDA_OK;
};

template <class Launch>
Status stage_host_lists(Launch* launch, HostListStager& stager) {
  int64_t rows = 0;
  if constexpr (requires { launch->rows; }) rows = launch->rows.count;
  struct Visitor {
    HostListStager& stager;
    int64_t rows;
    void operator()(IndexView& view) const { stager.stage(view); }
    void operator()(FlagView& view) const { stager.stage(view, rows); }
  };
  for_each_list(*launch, Visitor{stager, rows});
  return stager.finish();
}

}  // namespace kda
