// Weights packed for products of few rows.
//
// A panel holds 32 outputs: for each input k in turn their 32 weights side by side, so that a vector of sums belongs to
// as many outputs and no sum is ever added across lanes. bf16 panels store 16 words an input, output j in the lower
// half of word j and output j + 16 in the upper one: a shift and a mask widen two vectors of weights. The last panel is
// filled up with zeros.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "model/matmul.h"

namespace kda::model {

inline constexpr int64_t kPanelOutputs = 32;

// Owns packed weights, in a few large blocks that the system can back with large pages.
class PanelStorage {
 public:
  // A zeroed block, 64-byte aligned, that lives as long as this.
  void* allocate(int64_t bytes);

 private:
  struct Free {
    void operator()(void* p) const;
  };
  std::vector<std::unique_ptr<void, Free>> blocks_;
  std::byte* next_ = nullptr;
  int64_t left_ = 0;
};

// The matrix with its weights packed into `storage`, which must outlive it.
Matrix packed(const Matrix& matrix, PanelStorage* storage);
// The same of the transposed matrix: outputs and inputs change places. It has panels only, `data` stays null.
Matrix packed_transposed(const Matrix& matrix, PanelStorage* storage);

}  // namespace kda::model
