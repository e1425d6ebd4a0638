#include <stdexcept>

#include "api/guard.h"
#include "api/refusals.h"
#include "api/world.h"
#include "plan/needs.h"
#include "plan/planner.h"

namespace kda_test {
namespace {

Refusal problem(const char* name, kda_status expected, std::function<void(kda_problem&)> spoil) {
  return {std::string("plan_") + name, expected, [=](kda_error* error) {
            kda::Context context;
            kda_problem p = World::default_problem();
            spoil(p);
            kda_plan* plan = nullptr;
            const kda_status status = kda_plan_create(context.get(), &p, &plan, error);
            kda_plan_destroy(plan);
            const kda_status asked = kda_can_run(context.get(), &p, error);
            return asked == status ? status : kda_status{-1};
          }};
}

// The first unmet need of a kernel that serves less than this build's.
Refusal narrow_kernel(const char* name, kda_status expected, kda::Needs needs, std::function<void(kda::Problem&)> ask) {
  return {std::string("kernel_") + name, expected, [=](kda_error* error) {
            kda::Problem p;
            p.key_dim = p.value_dim = 128;
            ask(p);
            kda::FixedText<> reason;
            const kda::KernelRow row{.name = "narrow",
                                     .backend = kda::Backend::cpu,
                                     .operation = kda::Operation::extend,
                                     .run = {},
                                     .needs = needs};
            const kda_status status = kda::first_unmet_need(row, p, kda::Capabilities{}, &reason);
            return status == KDA_OK ? status : kda::ErrorSink{error}.fail(status, "a narrow kernel", reason);
          }};
}

Refusal context(const char* name, kda_status expected, std::function<void(kda_context_options&)> spoil) {
  return {std::string("context_") + name, expected, [=](kda_error* error) {
            auto options = kda::args<kda_context_options>();
            spoil(options);
            kda_context* made = nullptr;
            const kda_status status = kda_context_create(&options, &made, error);
            kda_context_destroy(made);
            return status;
          }};
}

struct NewerProblem {
  kda_problem known;
  int64_t unknown;
};

}  // namespace

std::vector<Refusal> plan_refusals() {
  using P = kda_problem;
  return {
      problem("no_heads", KDA_E_DIMS, [](P& p) { p.heads = 0; }),
      problem("value_heads", KDA_E_DIMS, [](P& p) { p.value_heads = 3; }),
      problem("key_dim", KDA_E_DIMS, [](P& p) { p.key_dim = 257; }),
      problem("conv_width", KDA_E_DIMS, [](P& p) { p.conv_width = 5; }),
      problem("max_nodes", KDA_E_MAXIMA, [](P& p) { p.max_nodes = 65; }),
      problem("negative_rows", KDA_E_MAXIMA, [](P& p) { p.max_rows = -1; }),
      problem("alignment", KDA_E_MAXIMA, [](P& p) { p.alignment = 24; }),
      problem("state_fp16", KDA_E_DTYPES, [](P& p) { p.state_dtype = KDA_FP16; }),
      problem("gate_dtype", KDA_E_DTYPES, [](P& p) { p.io_dtype = KDA_BF16, p.gate_dtype = KDA_FP16; }),
      problem("dtype_value", KDA_E_OPTION, [](P& p) { p.io_dtype = 9; }),
      problem("gate_value", KDA_E_OPTION, [](P& p) { p.gate = 3; }),
      problem("operations_value", KDA_E_OPTION, [](P& p) { p.operations = 1u << 31; }),
      problem("conv_without_width", KDA_E_COMBINATION,
              [](P& p) { p.conv_width = 0, p.operations = KDA_ALL_CONV_OPERATIONS; }),
      problem("kernel_unknown", KDA_E_KERNEL_UNKNOWN, [](P& p) { p.kernels = "decode=no_such_kernel"; }),
      problem("kernel_operation_unknown", KDA_E_KERNEL_UNKNOWN, [](P& p) { p.kernels = "prefill=reference_extend"; }),
      problem("kernel_form", KDA_E_KERNEL_UNKNOWN, [](P& p) { p.kernels = "reference_extend"; }),
      problem("kernel_of_another_backend", KDA_E_KERNEL_UNFIT,
              [](P& p) { p.backend = KDA_BACKEND_CPU, p.kernels = "decode=reference_decode"; }),
      problem("kernel_with_unmet_need", KDA_E_KERNEL_UNFIT,
              [](P& p) { p.verify_numerics = KDA_FAST, p.kernels = "verify=reference_verify"; }),
      problem("kernel_of_operation_left_out", KDA_E_KERNEL_UNFIT,
              [](P& p) { p.operations = KDA_OPERATION_BIT(KDA_EXTEND), p.kernels = "decode=reference_decode"; }),
      problem("cuda_without_a_gpu", KDA_E_BACKEND, [](P& p) { p.backend = KDA_BACKEND_CUDA; }),
      problem("workspace_limit", KDA_E_WORKSPACE_LIMIT, [](P& p) { p.max_workspace_bytes = 16; }),
      problem("fast_verify_on_reference", KDA_E_NO_KERNEL, [](P& p) { p.verify_numerics = KDA_FAST; }),
      problem("struct_size", KDA_E_STRUCT_SIZE, [](P& p) { p.struct_size = 0; }),
      {"plan_newer_field", KDA_E_STRUCT_SIZE,
       [](kda_error* error) {
         kda::Context machine;
         NewerProblem newer{World::default_problem(), 1};
         newer.known.struct_size = sizeof(newer);
         return kda_can_run(machine.get(), &newer.known, error);
       }},
      narrow_kernel("numerics", KDA_E_NUMERICS, {.numerics = kda::bit(kda::Numerics::exact)},
                    [](kda::Problem& p) { p.extend_numerics = kda::Numerics::fast; }),
      narrow_kernel("gate", KDA_E_FORM, {.gates = kda::bit(kda::Gate::bounded)}, [](kda::Problem&) {}),
      narrow_kernel("layout", KDA_E_FORM, {.state_layouts = kda::bit(kda::StateLayout::kv)}, [](kda::Problem&) {}),
      narrow_kernel("l2norm", KDA_E_FORM, {.l2norm_only = true}, [](kda::Problem& p) { p.qk_l2norm = false; }),
      narrow_kernel("dims", KDA_E_DIMS, {.dim_multiple = 16}, [](kda::Problem& p) { p.value_dim = 24; }),
      narrow_kernel("equal_dims", KDA_E_DIMS, {.equal_dims = 64}, [](kda::Problem&) {}),
      narrow_kernel("io", KDA_E_DTYPES, {.io_dtypes = kda::bit(kda::DType::fp16)}, [](kda::Problem&) {}),
  };
}

std::vector<Refusal> pool_refusals() {
  const auto pool = [](const char* name, kda_status expected, std::function<kda_status(kda_pool*, kda_error*)> use) {
    return Refusal{std::string("pool_") + name, expected, [=](kda_error* error) {
                     World world;
                     auto options = kda::args<kda_pool_options>();
                     options.slots = 2, options.record_rows = 2;
                     kda::Pool made(world.plan, options);
                     return use(made.get(), error);
                   }};
  };
  return {
      pool("stale", KDA_E_POOL_STALE,
           [](kda_pool* p, kda_error* error) {
             kda_slot slot{};
             kda_pool_acquire(p, &slot, error);
             kda_pool_release(p, slot, error);
             return kda_pool_release(p, slot, error);
           }),
      pool("exhausted", KDA_E_POOL_EXHAUSTED,
           [](kda_pool* p, kda_error* error) {
             kda_slot slot{};
             for (int i = 0; i < 2; ++i) kda_pool_acquire(p, &slot, error);
             return kda_pool_acquire(p, &slot, error);
           }),
      pool("pending", KDA_E_POOL_PENDING,
           [](kda_pool* p, kda_error* error) {
             kda_slot slot{}, fork{};
             kda_pool_acquire(p, &slot, error);
             kda_pool_set_pending(p, slot, 0, 1, error);
             return kda_pool_fork(p, slot, nullptr, &fork, error);
           }),
      pool("image", KDA_E_POOL_IMAGE,
           [](kda_pool* p, kda_error* error) {
             kda_slot slot{};
             kda_pool_acquire(p, &slot, error);
             return kda_pool_restore(p, slot, "not an image", 12, error);
           }),
      {"pool_memory", KDA_E_POOL_MEMORY,
       [](kda_error* error) {
         World world;
         auto options = kda::args<kda_pool_options>();
         Bytes memory(64);
         options.slots = 2, options.memory = memory.data(), options.memory_bytes = 64;
         kda_pool* made = nullptr;
         return kda_pool_create(world.plan.get(), &options, &made, error);
       }},
  };
}

std::vector<Refusal> environment_refusals() {
  using O = kda_context_options;
  const auto thrown = [](auto exception) {
    return [=](kda_error* error) {
      return kda::guarded(error, [&](const kda::ErrorSink&) -> kda_status { throw exception; });
    };
  };
  return {
      context("threads", KDA_E_THREADS, [](O& o) { o.threads = -1; }),
      context("cpu_target", KDA_E_CPU_TARGET, [](O& o) { o.cpu_target = "Z80"; }),
      context("cuda_device", KDA_E_CUDA_DEVICE, [](O& o) { o.cuda_device = 1000; }),
      {"context_capture", KDA_E_CAPTURE,
       [](kda_error* error) {
         setenv("KDA_CAPTURE", "/proc/self/no_directory_here", 1);
         kda_context* made = nullptr;
         const kda_status status = kda_context_create(nullptr, &made, error);
         unsetenv("KDA_CAPTURE");
         kda_context_destroy(made);
         return status;
       }},
      {"no_memory", KDA_E_OUT_OF_MEMORY, thrown(std::bad_alloc())},
      {"exception", KDA_E_INTERNAL, thrown(std::runtime_error("a defect"))},
  };
}

}  // namespace kda_test
