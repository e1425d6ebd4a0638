#include "plan.h"

#include <cstring>

#include "errors.h"

namespace kda_python {
namespace {

struct Name {
  const char* text;
  int32_t value;
};

constexpr Name kBackends[] = {{"auto", KDA_BACKEND_AUTO},
                              {"reference", KDA_BACKEND_REFERENCE},
                              {"cpu", KDA_BACKEND_CPU},
                              {"cuda", KDA_BACKEND_CUDA}};
constexpr Name kDtypes[] = {{"float32", KDA_FP32}, {"bfloat16", KDA_BF16}, {"float16", KDA_FP16},
                            {"fp32", KDA_FP32},    {"bf16", KDA_BF16},     {"fp16", KDA_FP16}};
constexpr Name kGates[] = {
    {"softplus", KDA_GATE_SOFTPLUS}, {"bounded", KDA_GATE_BOUNDED}, {"precomputed", KDA_GATE_PRECOMPUTED}};
constexpr Name kBetas[] = {{"sigmoid", KDA_BETA_SIGMOID}, {"sigmoid2", KDA_BETA_SIGMOID2}, {"none", KDA_BETA_NONE}};
constexpr Name kStateLayouts[] = {{"vk", KDA_STATE_VK}, {"kv", KDA_STATE_KV}};
constexpr Name kConvLayouts[] = {{"wc", KDA_CONV_WC}, {"cw", KDA_CONV_CW}};
constexpr Name kNumerics[] = {{"exact", KDA_EXACT}, {"fast", KDA_FAST}};
constexpr Name kOperations[] = {{"extend", KDA_EXTEND},           {"decode", KDA_DECODE},
                                {"verify", KDA_VERIFY},           {"verify_pending", KDA_VERIFY_PENDING},
                                {"commit", KDA_COMMIT},           {"move", KDA_MOVE},
                                {"conv_extend", KDA_CONV_EXTEND}, {"conv_decode", KDA_CONV_DECODE},
                                {"conv_verify", KDA_CONV_VERIFY}, {"conv_verify_pending", KDA_CONV_VERIFY_PENDING},
                                {"conv_commit", KDA_CONV_COMMIT}, {"conv_move", KDA_CONV_MOVE}};

template <size_t N>
int32_t value_of(const Name (&names)[N], const char* argument, const std::string& text) {
  std::string known;
  for (const Name& name : names) {
    if (text == name.text) return name.value;
    known += known.empty() ? name.text : std::string(", ") + name.text;
  }
  throw_argument_error(KDA_E_OPTION, argument, text.c_str(), known.c_str());
}

template <size_t N>
const char* text_of(const Name (&names)[N], int32_t value) {
  for (const Name& name : names) {
    if (name.value == value) return name.text;
  }
  return "?";
}

// One line per keyword: how it is read into the struct. Every keyword of Plan and can_run is here and nowhere else.
struct Field {
  const char* keyword;
  void (*read)(ProblemArguments&, nb::handle, const char* keyword);
};

// A number that the field cannot hold is refused, not cut.
template <class T>
void set_integer(T& field, nb::handle value, const char* keyword) {
  const int64_t number = nb::cast<int64_t>(value);
  field = static_cast<T>(number);
  if (static_cast<int64_t>(field) != number) {
    throw_argument_error(KDA_E_NUMBER, keyword, nb::str(value).c_str(), "a number that fits into 32 bits");
  }
}

#define KDA_NUMBER(field)                                                                                             \
  {                                                                                                                   \
#field, [](ProblemArguments & a, nb::handle v, const char* keyword) { set_integer(a.problem.field, v, keyword); } \
  }
#define KDA_NAMED(field, names)                                                                                        \
  {                                                                                                                    \
#field, [](ProblemArguments & a, nb::handle v,                                                                     \
               const char* keyword) { a.problem.field = value_of(names, keyword, nb::cast<std::string>(nb::str(v))); } \
  }

const Field kFields[] = {
    KDA_NAMED(backend, kBackends),
    {"operations",
     [](ProblemArguments& a, nb::handle v, const char* keyword) {
       if (nb::isinstance<nb::str>(v)) {  // one name, not its letters
         a.problem.operations |= KDA_OPERATION_BIT(value_of(kOperations, keyword, nb::cast<std::string>(v)));
         return;
       }
       for (nb::handle operation : v) {
         a.problem.operations |= KDA_OPERATION_BIT(value_of(kOperations, keyword, nb::cast<std::string>(operation)));
       }
     }},
    KDA_NUMBER(layers),
    KDA_NUMBER(max_rows),
    KDA_NUMBER(max_tokens),
    KDA_NUMBER(max_nodes),
    KDA_NUMBER(max_snapshots),
    KDA_NUMBER(heads),
    KDA_NUMBER(value_heads),
    KDA_NUMBER(key_dim),
    KDA_NUMBER(value_dim),
    KDA_NUMBER(conv_width),
    KDA_NAMED(io_dtype, kDtypes),
    KDA_NAMED(gate_dtype, kDtypes),
    KDA_NAMED(beta_dtype, kDtypes),
    KDA_NAMED(state_dtype, kDtypes),
    KDA_NAMED(conv_state_dtype, kDtypes),
    KDA_NAMED(conv_weight_dtype, kDtypes),
    KDA_NAMED(state_layout, kStateLayouts),
    KDA_NAMED(conv_layout, kConvLayouts),
    KDA_NAMED(gate, kGates),
    KDA_NAMED(beta, kBetas),
    {"qk_l2norm", [](ProblemArguments& a, nb::handle v, const char*) { a.problem.no_qk_l2norm = !nb::cast<bool>(v); }},
    KDA_NAMED(extend_numerics, kNumerics),
    KDA_NAMED(verify_numerics, kNumerics),
    KDA_NUMBER(null_slot0),
    KDA_NUMBER(single_root),
    KDA_NUMBER(check_values),
    KDA_NUMBER(alignment),
    KDA_NUMBER(max_workspace_bytes),
    {"kernels", [](ProblemArguments& a, nb::handle v, const char*) { a.kernels = nb::cast<std::string>(v); }},
};
#undef KDA_NUMBER
#undef KDA_NAMED

nb::object refusal_or_none(const kda_error& error) {
  if (error.status == KDA_OK) return nb::none();
  return nb::module_::import_("libkda.errors")
      .attr("Refusal")(kda_status_code(error.status), error.status, error.asked, error.supported, error.way_out,
                       error.message);
}

}  // namespace

ProblemArguments read_problem(const nb::kwargs& arguments) {
  ProblemArguments result;
  for (auto [key, value] : arguments) {
    const std::string keyword = nb::cast<std::string>(key);
    const Field* field = nullptr;
    for (const Field& candidate : kFields) {
      if (keyword == candidate.keyword) field = &candidate;
    }
    if (field == nullptr) throw nb::type_error(("unknown argument of the problem: " + keyword).c_str());
    if (value.is_none()) continue;  // the default
    try {
      field->read(result, value, field->keyword);
    } catch (const nb::cast_error&) {
      throw nb::type_error(("wrong type for " + keyword + ": " + nb::repr(value).c_str()).c_str());
    }
  }
  if (!result.kernels.empty()) result.problem.kernels = result.kernels.c_str();
  return result;
}

WorkspaceCache::Lease::Lease(WorkspaceCache& cache) : cache_(cache) {
  if (cache.bytes_ == 0) return;
  {
    const std::lock_guard lock(cache.mutex_);
    if (!cache.idle_.empty()) {
      block_ = std::move(cache.idle_.back());
      cache.idle_.pop_back();
    }
  }
  if (!block_) block_ = std::make_unique<std::byte[]>(cache.bytes_ + cache.alignment_);
  address_ = kda::aligned(block_.get(), cache.alignment_);
}

WorkspaceCache::Lease::~Lease() {
  if (!block_) return;
  const std::lock_guard lock(cache_.mutex_);
  cache_.idle_.push_back(std::move(block_));
}

Plan::Plan(std::shared_ptr<Context> the_context, const ProblemArguments& arguments)
    : context(std::move(the_context)),
      handle(translated([&] { return kda::Plan(context->handle, arguments.problem); })),
      problem(arguments.problem),
      workspaces(handle.info()) {
  problem.kernels = nullptr;
}

void bind_plan(nb::module_& m) {
  nb::class_<Context>(m, "Context",
                      "This machine as libkda sees it: SIMD targets, GPUs, threads. Immutable, shared between threads.")
      .def(
          "__init__",
          [](Context* self, int threads, const std::string& cpu_target, int cuda_device) {
            auto options = kda::args<kda_context_options>();
            options.threads = threads;
            options.cpu_target = cpu_target.empty() ? nullptr : cpu_target.c_str();
            options.cuda_device = cuda_device;
            translated([&] { new (self) Context(options); });
          },
          nb::arg("threads") = 0, nb::arg("cpu_target") = "", nb::arg("cuda_device") = 0,
          "threads: of the CPU backend, the caller's included; 0 = one per usable core.\n"
          "cpu_target: force a SIMD target by name. cuda_device: 0 = current, n = device n-1, -1 = none.")
      .def(
          "describe", [](const Context& c) { return c.handle.describe(); }, "Everything the context knows, as JSON.")
      .def(
          "can_run",
          [](const Context& c, const nb::kwargs& arguments) {
            const ProblemArguments problem = read_problem(arguments);
            kda_error error = fresh_error();
            error.status = kda_can_run(c.handle.get(), &problem.problem, &error);
            return refusal_or_none(error);
          },
          nb::arg("kwargs"),
          "The same question as Plan(...) without making the plan: None, or a Refusal. Takes microseconds.");

  nb::class_<Plan> plan(m, "Plan", "Kernels chosen for one geometry. Immutable; calls may come from several threads.");
  plan.def(
          "__init__",
          [](Plan* self, std::shared_ptr<Context> context, const nb::kwargs& arguments) {
            new (self) Plan(std::move(context), read_problem(arguments));
          },
          nb::arg("context"), nb::arg("kwargs"))
      .def(
          "describe", [](const Plan& p) { return p.handle.describe(); }, "The plan as JSON.")
      .def_prop_ro("backend", [](const Plan& p) { return text_of(kBackends, p.handle.info().backend); })
      .def_prop_ro("workspace_bytes", [](const Plan& p) { return p.handle.info().workspace_bytes; })
      .def_prop_ro("workspace_alignment", [](const Plan& p) { return p.handle.info().workspace_alignment; })
      .def_prop_ro("record_row_bytes", [](const Plan& p) { return p.handle.info().record_row_bytes; })
      .def_prop_ro("record_node_bytes", [](const Plan& p) { return p.handle.info().record_node_bytes; })
      .def_prop_ro("conv_record_row_bytes", [](const Plan& p) { return p.handle.info().conv_record_row_bytes; })
      .def(
          "conv_record_row_bytes_for",
          [](const Plan& p, int64_t channels) { return kda_plan_conv_record_row_bytes(p.handle.get(), channels); },
          nb::arg("channels"))
      .def(
          "candidates",
          [](const Plan& p, const std::string& operation) {
            const int32_t op = value_of(kOperations, "operation", operation);
            nb::list rows;
            for (int32_t i = 0; i < kda_plan_candidate_count(p.handle.get(), op); ++i) {
              auto candidate = kda::args<kda_candidate>();
              if (kda_plan_get_candidate(p.handle.get(), op, i, &candidate) != KDA_OK) continue;
              nb::dict row;
              row["kernel"] = candidate.kernel;
              row["taken"] = candidate.taken != 0;
              row["code"] = candidate.status == KDA_OK ? "" : kda_status_code(candidate.status);
              row["reason"] = candidate.reason;
              rows.append(row);
            }
            return rows;
          },
          nb::arg("operation"), "Every kernel considered for an operation: kernel, taken, code, reason.");
  bind_calls(m, plan);
}

}  // namespace kda_python
