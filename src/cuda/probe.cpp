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

namespace {

// What launchers ask of the current device, looked up once.
struct DeviceFacts {
  int capability = 0, multiprocessors = 0;
};
DeviceFacts current_device() {
  static std::atomic<uint32_t> known[64];  // capability << 16 | multiprocessors; 0 = not asked
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess || device < 0 || device >= 64) return {};
  uint32_t facts = known[device].load(std::memory_order_relaxed);
  if (facts == 0) {
    facts = static_cast<uint32_t>(cuda_compute_capability(device)) << 16 |
            static_cast<uint32_t>(attribute(cudaDevAttrMultiProcessorCount, device));
    known[device].store(facts, std::memory_order_relaxed);
  }
  return {static_cast<int>(facts >> 16), static_cast<int>(facts & 0xffff)};
}

}  // namespace

bool cuda_launches_early() { return current_device().capability >= 90; }

bool cuda_streams_verify() {
  static const bool built = [] {
    const std::vector<CudaArchitecture> all = cuda_architectures();
    return std::any_of(all.begin(), all.end(), [](const CudaArchitecture& a) { return a.name == "90a"; });
  }();
  return built && current_device().capability == 90;
}

int cuda_multiprocessors() { return current_device().multiprocessors; }

}  // namespace kda
