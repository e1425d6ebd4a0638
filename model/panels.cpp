#include "model/panels.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

namespace kda::model {
namespace {

constexpr int64_t kLargePage = int64_t{2} << 20;
constexpr int64_t kBlock = 4 * kLargePage;
constexpr int64_t kAlignment = 64;  // a cache line, and the widest vector

constexpr int64_t round_up(int64_t value, int64_t step) { return (value + step - 1) / step * step; }

// element(n, k): the stored element of output n and input k.
template <class T, class Element>
void fill_panels(int64_t outputs, int64_t inputs, const Element& element, T* panels) {
  constexpr bool kPairs = sizeof(T) == 2;
  for (int64_t n = 0; n < outputs; ++n) {
    const int64_t lane = n % kPanelOutputs, half = kPanelOutputs / 2;
    const int64_t place = kPairs ? lane % half * 2 + lane / half : lane;
    T* const panel = panels + n / kPanelOutputs * kPanelOutputs * inputs + place;
    for (int64_t k = 0; k < inputs; ++k) panel[k * kPanelOutputs] = element(n, k);
  }
}

void* pack(const Matrix& matrix, bool transposed, PanelStorage* storage) {
  const int64_t outputs = transposed ? matrix.inputs : matrix.outputs;
  const int64_t inputs = transposed ? matrix.outputs : matrix.inputs;
  void* const panels =
      storage->allocate(round_up(outputs, kPanelOutputs) * inputs * static_cast<int64_t>(matrix.bf16 ? 2 : 4));
  const auto fill = [&](auto* to) {
    const auto* from = static_cast<decltype(to)>(const_cast<void*>(matrix.data));
    fill_panels(
        outputs, inputs,
        [&](int64_t n, int64_t k) { return transposed ? from[k * matrix.stride + n] : from[n * matrix.stride + k]; },
        to);
  };
  if (matrix.bf16) {
    fill(static_cast<uint16_t*>(panels));
  } else {
    fill(static_cast<float*>(panels));
  }
  return panels;
}

}  // namespace

void PanelStorage::Free::operator()(void* p) const { std::free(p); }

void* PanelStorage::allocate(int64_t bytes) {
  const int64_t size = round_up(std::max<int64_t>(bytes, 1), kAlignment);
  if (size > left_) {
    const int64_t block = round_up(std::max(size, kBlock), kLargePage);
    void* const memory = std::aligned_alloc(kLargePage, static_cast<size_t>(block));
    if (memory == nullptr) throw std::bad_alloc();
    blocks_.emplace_back(memory);
    madvise(memory, static_cast<size_t>(block), MADV_HUGEPAGE);  // a wish: without it only the speed differs
    next_ = static_cast<std::byte*>(memory);
    left_ = block;
  }
  void* const result = next_;
  std::memset(result, 0, static_cast<size_t>(size));
  next_ += size;
  left_ -= size;
  return result;
}

Matrix packed(const Matrix& matrix, PanelStorage* storage) {
  Matrix result = matrix;
  if (!matrix.empty()) result.panels = pack(matrix, false, storage);
  return result;
}

Matrix packed_transposed(const Matrix& matrix, PanelStorage* storage) {
  Matrix result{nullptr, matrix.bf16, matrix.inputs, matrix.outputs, matrix.outputs};
  result.panels = pack(matrix, true, storage);
  return result;
}

}  // namespace kda::model
