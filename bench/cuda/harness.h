// Timing of launches in a CUDA graph over slots that rotate past the L2 cache.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "core/launch.h"
#include "core/record_format.h"

namespace bench {

inline void check(cudaError_t e, const char* what) {
  if (e == cudaSuccess) return;
  std::fprintf(stderr, "bench: %s: %s\n", what, cudaGetErrorString(e));
  std::exit(1);
}

// Device memory that lives as long as the program.
template <class T>
T* device_array(size_t count) {
  void* p = nullptr;
  check(cudaMalloc(&p, std::max<size_t>(count, 1) * sizeof(T)), "cudaMalloc");
  return static_cast<T*>(p);
}

struct Timing {
  double median_us, least_us, most_us;
};

// Captures `launch(round, stream)` for every round in one graph, replays it, and gives the time of one launch.
inline Timing time_rounds(int rounds, int replays, const std::function<void(int, cudaStream_t)>& launch) {
  cudaStream_t stream;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  launch(0, stream);  // loads the kernel outside the capture
  check(cudaStreamSynchronize(stream), "first launch");
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  for (int r = 0; r < rounds; ++r) launch(r, stream);
  check(cudaStreamEndCapture(stream, &graph), "capture");
  check(cudaGraphInstantiate(&executable, graph, 0), "instantiate");
  cudaEvent_t begin, end;
  check(cudaEventCreate(&begin), "event");
  check(cudaEventCreate(&end), "event");
  std::vector<double> times;
  for (int i = 0; i < replays + 3; ++i) {
    check(cudaEventRecord(begin, stream), "record");
    check(cudaGraphLaunch(executable, stream), "replay");
    check(cudaEventRecord(end, stream), "record");
    check(cudaStreamSynchronize(stream), "replay");
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end), "time");
    if (i >= 3) times.push_back(ms * 1e3 / rounds);
  }
  std::sort(times.begin(), times.end());
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  cudaStreamDestroy(stream);
  return {times[times.size() / 2], times.front(), times.back()};
}

// Fills with values of the normal kind; cheap, seeded, not constant.
void fill_random(void* data, kda::DType dtype, size_t count, float scale, uint32_t seed);

inline void report(const std::string& name, const Timing& t, double bytes, const std::string& extra = "") {
  std::printf("{\"name\": \"%s\", \"median_us\": %.3f, \"min_us\": %.3f, \"max_us\": %.3f, \"tb_per_s\": %.3f%s}\n",
              name.c_str(), t.median_us, t.least_us, t.most_us, bytes / t.median_us * 1e-6, extra.c_str());
  std::fflush(stdout);
}

}  // namespace bench
