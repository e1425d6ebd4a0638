#include "runtime/pool.h"

#include <cstdlib>
#include <new>

#include "core/text.h"

namespace kda {

Status plan_pool(const kda_plan& plan, const kda_pool_options& options, PoolLayout* layout, ErrorSink sink) {
  const Problem& problem = plan.problem;
  const int32_t layers = options.layers == 0 ? problem.layers : options.layers;
  if (options.slots < 1) return sink.failf(KDA_E_NUMBER, "slots = %d", "slots of at least 1", options.slots);
  if (layers < 1 || layers > problem.layers) {
    return sink.failf(KDA_E_PLAN_LIMIT, "layers = %d of a plan for %d", "layers from 1 to the plan's", layers,
                      problem.layers);
  }
  if (options.record_rows < 0) {
    return sink.failf(KDA_E_NUMBER, "record_rows = %d", "record_rows of 0 or more", options.record_rows);
  }
  if (!pool_layout(problem, options.slots, layers, options.record_rows, layout)) {
    return sink.failf(KDA_E_NUMBER, "slots = %d, layers = %d, record_rows = %d", "sizes below 2^63 bytes",
                      options.slots, layers, options.record_rows);
  }
  return KDA_OK;
}

PoolMemory::PoolMemory(int64_t bytes)
    : owned_(static_cast<std::byte*>(std::aligned_alloc(kPoolAlignment, static_cast<size_t>(bytes)))),
      base_(owned_.get()) {
  if (base_ == nullptr) throw std::bad_alloc();
}

void PoolMemory::Free::operator()(std::byte* p) const { std::free(p); }

}  // namespace kda

using namespace kda;

kda_pool::kda_pool(const kda_plan& the_plan, const PoolLayout& the_layout, void* borrowed_memory)
    : plan(the_plan),
      layout(the_layout),
      on_host(the_plan.choice.backend != Backend::cuda),
      device(on_host ? DLDevice{kDLCPU, 0} : DLDevice{kDLCUDA, the_plan.context->capabilities.gpu_device}),
      memory(borrowed_memory ? PoolMemory(borrowed_memory) : PoolMemory(the_layout.total_bytes)),
      slots(the_layout.first_slot, the_layout.slot_count - the_layout.first_slot) {
  const Problem& p = plan.problem;
  const int64_t rows = p.state_layout == StateLayout::vk ? p.value_dim : p.key_dim;
  const int64_t columns = p.state_layout == StateLayout::vk ? p.key_dim : p.value_dim;
  state = {{layout.slot_count, p.value_heads, rows, columns},
           {layout.state_slot_bytes / size_of(p.state), rows * columns, columns, 1},
           4};
  if (p.conv_width > 0) {
    const int64_t window = p.conv_width - 1, channels = p.conv_channels();
    const bool wc = p.conv_layout == ConvLayout::wc;
    conv = {{layout.slot_count, wc ? window : channels, wc ? channels : window},
            {layout.conv_slot_bytes / size_of(p.conv_state), wc ? channels : window, 1},
            3};
    conv_records = {{layout.record_rows, layout.conv_record_row_bytes}, {layout.conv_record_row_bytes, 1}, 2};
  }
  records = {{layout.record_rows, layout.record_row_bytes}, {layout.record_row_bytes, 1}, 2};
}
