// The state pool: memory of `layers` layers of state and conv windows, records beside them, and who holds which slot.
#pragma once

#include <memory>
#include <string>

#include "core/status.h"
#include "plan/plan.h"
#include "runtime/pool_layout.h"
#include "runtime/slot_table.h"

namespace kda {

// Checks the options against the plan and computes the layout; refuses what does not fit.
Status plan_pool(const kda_plan& plan, const kda_pool_options& options, PoolLayout* layout, ErrorSink sink);

// Host memory of the pool, or a borrowed pointer.
class PoolMemory {
 public:
  explicit PoolMemory(void* borrowed) : base_(static_cast<std::byte*>(borrowed)) {}
  explicit PoolMemory(int64_t bytes);  // throws std::bad_alloc
  std::byte* base() const { return base_; }

 private:
  struct Free {
    void operator()(std::byte* p) const;
  };
  std::unique_ptr<std::byte, Free> owned_;
  std::byte* base_;
};

}  // namespace kda

struct kda_pool {
  kda_pool(const kda_plan& plan, const kda::PoolLayout& layout, void* borrowed_memory);

  const kda_plan& plan;
  const kda::PoolLayout layout;
  const bool on_host;
  const DLDevice device;
  kda::PoolMemory memory;
  kda::SlotTable slots;

  // Shapes and strides of the tensors handed out; DLTensors point here.
  struct Extents {
    int64_t shape[4], strides[4];
    int rank;
  };
  Extents state{}, conv{}, records{}, conv_records{};
};
