#include "cuda/probe.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <charconv>

namespace kda {

namespace {

constexpr std::string_view kBuiltArchitectures = KDA_CUDA_ARCHITECTURES;  // comma-separated
// Where the whole test bundle of tools/gpu-bundle has passed.
constexpr std::string_view kRanOnHardware[] = {"90a"};

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  if (cudaDeviceGetAttribute(&value, which, device) != cudaSuccess) {
    (void)cudaGetLastError();
    return 0;
  }
  return value;
}

}  // namespace

int cuda_probe_device(int wanted) {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) {
    (void)cudaGetLastError();  // no driver, or no device: not an error of the program
    return -1;
  }
  if (wanted >= 0) return wanted < count ? wanted : -1;
  int current = 0;
  if (cudaGetDevice(&current) != cudaSuccess) {
    (void)cudaGetLastError();
    return -1;
  }
  return current;
}

int cuda_compute_capability(int device) {
  return 10 * attribute(cudaDevAttrComputeCapabilityMajor, device) +
         attribute(cudaDevAttrComputeCapabilityMinor, device);
}

int cuda_shared_memory_limit(int device) { return attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, device); }

std::vector<CudaArchitecture> cuda_architectures() {
  std::vector<CudaArchitecture> found;
  for (std::string_view rest = kBuiltArchitectures; !rest.empty();) {
    const std::string_view name = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), name.size() + 1));
    const bool ran = std::find(std::begin(kRanOnHardware), std::end(kRanOnHardware), name) != std::end(kRanOnHardware);
    found.push_back({name, ran});
  }
  return found;
}

bool cuda_has_code_for(int compute_capability) {
  for (const CudaArchitecture& built : cuda_architectures()) {
    int capability = 0;
    const auto [end, error] = std::from_chars(built.name.data(), built.name.data() + built.name.size(), capability);
    const bool has_suffix = error == std::errc() && end != built.name.data() + built.name.size();
    if (capability == compute_capability) return true;
    if (!has_suffix && capability / 10 == compute_capability / 10 && capability < compute_capability) return true;
  }
  return false;
}

bool cuda_launches_early() {
  static std::atomic<int> known[64];  // per device: 0 = not asked, 1 = no, 2 = yes
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess || device >= 64) return false;
  int answer = known[device].load(std::memory_order_relaxed);
  if (answer == 0) {
    answer = cuda_compute_capability(device) >= 90 ? 2 : 1;
    known[device].store(answer, std::memory_order_relaxed);
  }
  return answer == 2;
}

}  // namespace kda
