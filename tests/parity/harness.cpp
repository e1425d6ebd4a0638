#include "parity/harness.h"

#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>

namespace parity {

std::string Target::name() const {
  if (backend == KDA_BACKEND_REFERENCE) return "reference";
  return backend == KDA_BACKEND_CUDA ? "cuda" : "cpu_" + cpu_target;
}

std::string target_name(const testing::TestParamInfo<Target>& info) {
  std::string name = info.param.name();
  for (char& c : name)
    if (!isalnum(static_cast<unsigned char>(c))) c = '_';
  return name;
}

namespace {

std::string describe(const kda_context* context) {
  size_t needed = 0;
  kda_context_describe(context, nullptr, 0, &needed);
  std::string text(needed, '\0');
  kda_context_describe(context, text.data(), text.size(), &needed);
  text.resize(needed > 0 ? needed - 1 : 0);
  return text;
}

// A backend takes part when it has a kernel for every operation.
bool is_complete(const nlohmann::json& description, const std::string& backend) {
  std::set<std::string> operations;
  for (const auto& kernel : description.at("kernels"))
    if (kernel.at("backend") == backend) operations.insert(kernel.at("operation").get<std::string>());
  if (operations.size() == KDA_OPERATION_COUNT) return true;
  std::fprintf(stderr, "parity: backend %s has kernels for %zu of %d operations: skipped\n", backend.c_str(),
               operations.size(), int(KDA_OPERATION_COUNT));
  return false;
}

std::vector<Target> find_targets() {
  kda_context* context = nullptr;
  if (kda_context_create(nullptr, &context, nullptr) != KDA_OK) {
    std::fprintf(stderr, "parity: no context\n");
    std::exit(2);
  }
  const auto description = nlohmann::json::parse(describe(context));
  kda_context_destroy(context);
  std::vector<Target> targets;
  for (const auto& backend : description.at("backends")) {
    const std::string name = backend.at("name");
    if (!backend.at("available").get<bool>()) {
      std::fprintf(stderr, "parity: backend %s: %s: skipped\n", name.c_str(),
                   backend.at("reason").get<std::string>().c_str());
    } else if (is_complete(description, name)) {
      if (name == "reference") targets.push_back({KDA_BACKEND_REFERENCE, ""});
#if KDA_WITH_CUDA
      if (name == "cuda") targets.push_back({KDA_BACKEND_CUDA, ""});
#endif
      if (name != "cpu") continue;
      for (const auto& entry : description.at("cpu_targets")) {
        const std::string simd = entry.at("name");
        if (entry.at("available").get<bool>()) {
          targets.push_back({KDA_BACKEND_CPU, simd});
        } else {
          std::fprintf(stderr, "parity: SIMD target %s is built in but not on this machine: skipped\n", simd.c_str());
        }
      }
    }
  }
  return targets;
}

}  // namespace

const std::vector<Target>& all_targets() {
  static const std::vector<Target> targets = find_targets();
  return targets;
}

const kda_context* context_for(const Target& target, int threads) {
  struct Contexts : std::map<std::pair<std::string, int>, kda_context*> {
    ~Contexts() {
      for (const auto& entry : *this) kda_context_destroy(entry.second);
    }
  };
  static Contexts contexts;
  kda_context*& context = contexts[{target.name(), threads}];
  if (context == nullptr) {
    kda_context_options options{};
    options.struct_size = sizeof(options);
    options.threads = threads;
    options.cpu_target = target.cpu_target.empty() ? nullptr : target.cpu_target.c_str();
    kda_error error{};
    error.struct_size = sizeof(error);
    if (kda_context_create(&options, &context, &error) != KDA_OK) {
      std::fprintf(stderr, "parity: no context for %s: %s\n", target.name().c_str(), error.message);
      std::exit(2);
    }
  }
  return context;
}

int scaled(int count) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  double scale = 0.05;
#else
  double scale = 1;
#endif
  if (const char* text = std::getenv("KDA_PARITY_SCALE")) scale = std::atof(text);
  return std::max(1, int(count * scale));
}

namespace {
int32_t abi_type(Type t) { return t == Type::f32 ? KDA_FP32 : t == Type::bf16 ? KDA_BF16 : KDA_FP16; }
}  // namespace

kda_problem problem_of(const Target& target, const Spec& spec, const PlanOptions& o) {
  const judge::Form& f = spec.form;
  kda_problem p{};
  p.struct_size = sizeof(p);
  p.backend = target.backend;
  p.operations = o.operations;
  p.layers = o.layers;
  p.max_rows = o.max_rows;
  p.max_tokens = o.max_tokens;
  p.max_nodes = o.max_nodes;
  p.max_snapshots = o.max_snapshots;
  p.max_workspace_bytes = o.max_workspace_bytes;
  p.heads = f.H;
  p.value_heads = f.HV;
  p.key_dim = f.K;
  p.value_dim = f.V;
  p.conv_width = spec.conv_width;
  p.io_dtype = abi_type(spec.io);
  p.gate_dtype = abi_type(spec.gate_type);
  p.beta_dtype = abi_type(spec.beta_type);
  p.state_dtype = abi_type(spec.state);
  p.conv_state_dtype = abi_type(spec.conv_state);
  p.conv_weight_dtype = abi_type(spec.conv_weight);
  p.state_layout = spec.kv ? KDA_STATE_KV : KDA_STATE_VK;
  p.conv_layout = spec.channel_major ? KDA_CONV_CW : KDA_CONV_WC;
  p.gate = f.gate == judge::Gate::softplus  ? KDA_GATE_SOFTPLUS
           : f.gate == judge::Gate::bounded ? KDA_GATE_BOUNDED
                                            : KDA_GATE_PRECOMPUTED;
  p.beta = f.beta == judge::Beta::sigmoid    ? KDA_BETA_SIGMOID
           : f.beta == judge::Beta::sigmoid2 ? KDA_BETA_SIGMOID2
                                             : KDA_BETA_NONE;
  p.no_qk_l2norm = !f.l2norm;
  p.null_slot0 = o.null_slot0;
  p.single_root = o.single_root;
  p.extend_numerics = spec.fast ? KDA_FAST : KDA_EXACT;
  p.verify_numerics = spec.fast ? KDA_FAST : KDA_EXACT;
  return p;
}

void fit_head_sizes(const Target& target, Spec* spec) {
  if (target.backend != KDA_BACKEND_CUDA) return;
  constexpr int kSizes[] = {16, 64, 32, 128, 48, 80};
  const auto fit = [&](int size) { return size % 16 == 0 ? size : size > 128 ? 240 : kSizes[size % 6]; };
  spec->form.K = fit(spec->form.K);
  spec->form.V = fit(spec->form.V);
}

Plan::Plan(const Target& target, const Spec& spec, const PlanOptions& options)
    : on_device_(target.backend == KDA_BACKEND_CUDA) {
  const kda_problem problem = problem_of(target, spec, options);
  error_.struct_size = sizeof(error_);
  if (kda_plan_create(context_for(target, options.threads), &problem, &plan_, &error_) != KDA_OK) {
    plan_ = nullptr;
    ADD_FAILURE() << target.name() << " " << spec.text() << ": " << error_.message;
    return;
  }
  info_.struct_size = sizeof(info_);
  EXPECT_EQ(kda_plan_get_info(plan_, &info_), KDA_OK);
}

Tensor Plan::buffer(int64_t rows, int64_t row_bytes, int64_t gap) const {
  const int64_t alignment = std::max<int64_t>(int64_t(info_.record_alignment), 1);
  const int64_t stride = (row_bytes + alignment - 1) / alignment * alignment + gap * alignment;
  const Tensor memory(Type::u8, {(rows + 1) * stride + alignment});
  const int64_t misaligned = int64_t(reinterpret_cast<uintptr_t>(memory.data()) % uintptr_t(alignment));
  return memory.view({rows, row_bytes}, {stride, 1}, misaligned == 0 ? 0 : alignment - misaligned);
}

kda_tokens abi_tokens(const Spec& spec, const TokenTensors& t) {
  kda_tokens abi{};
  abi.q = t.q.dl();
  abi.k = t.k.dl();
  abi.v = t.v.dl();
  abi.a = t.a.dl();
  abi.b = t.b.dl();
  abi.A_log = t.A_log.dl();
  abi.dt_bias = t.dt_bias.dl();
  abi.out = t.out.dl();
  abi.scale = spec.form.scale;
  abi.lower_bound = spec.form.gate == judge::Gate::bounded ? spec.form.lower_bound : 0;
  return abi;
}

bool Rows::null(int r) const {
  return !slots.empty() && (slots[size_t(r)] < 0 || (null_slot0 && slots[size_t(r)] == 0));
}

bool Rows::fresh(int r) const { return slots.empty() || (!has_state.empty() && has_state[size_t(r)] == 0); }

int64_t Rows::target_slot(int r) const {
  if (null(r)) return -1;
  if (dst.empty()) return slots.empty() ? -1 : slots[size_t(r)];
  const int64_t slot = dst[size_t(r)];
  const bool own = !dst_state.present() || (state.present() && dst_state.data() == state.data());
  return slot < 0 || (null_slot0 && slot == 0 && own) ? -1 : slot;
}

Tensor index_list(Random& r, const std::vector<int64_t>& values) {
  return Tensor::of(r.chance(0.5) ? Type::i32 : Type::i64, values, r.in(1, 3));
}

Tensor index_matrix(Random& r, const std::vector<std::vector<int64_t>>& rows, int64_t columns) {
  const int64_t stride = columns + r.in(0, 3);
  const Tensor t(r.chance(0.5) ? Type::i32 : Type::i64, {int64_t(rows.size()), columns}, {stride, 1});
  for (size_t i = 0; i < rows.size(); ++i)
    for (int64_t c = 0; c < columns; ++c)
      t.store_integer(int64_t(i) * stride + c, c < int64_t(rows[i].size()) ? rows[i][size_t(c)] : -77);
  return t;
}

void Rows::pack(Random& r) {
  cu_t = index_list(r, cu);
  slots_t = slots.empty() ? Tensor() : index_list(r, slots);
  has_t = has_state.empty() ? Tensor() : Tensor::of(Type::u8, has_state, r.in(1, 2));
  dst_t = dst.empty() ? Tensor() : index_list(r, dst);
}

kda_rows Rows::abi() const {
  kda_rows abi{};
  abi.cu_seqlens = pass_cu ? cu_t.dl() : nullptr;
  abi.slots = slots_t.dl();
  abi.has_state = has_t.dl();
  abi.dst_slots = dst_t.dl();
  abi.state = state.dl();
  abi.dst_state = dst_state.dl();
  return abi;
}

std::vector<int64_t> cut(const std::vector<int64_t>& lengths, int64_t first) {
  std::vector<int64_t> cu = {first};
  for (int64_t n : lengths) cu.push_back(cu.back() + n);
  return cu;
}

State initial_state(const Spec& spec, const Rows& rows, int r, const Tensor& before) {
  return rows.fresh(r) ? judge::zero_state(spec.form) : judge::read_state(spec, before, rows.source(r));
}

double rounded(Type type, double x) {
  if (type == Type::bf16) return judge::round_bf16(x);
  return type == Type::f16 ? judge::decode_fp16(judge::encode_fp16(x)) : x;
}

void expect_pool(const Spec& spec, const Tensor& before, const Tensor& after, const std::vector<Expected>& expected,
                 double limit, const std::string& what) {
  std::vector<int64_t> slots;
  judge::Measure measure;
  const size_t unit = size_t(spec.form.V) * size_t(spec.form.K);
  for (const Expected& e : expected) {
    slots.push_back(e.slot);
    const State got = judge::read_state(spec, after, e.slot);
    for (size_t h = 0; h < size_t(spec.form.HV); ++h) {
      std::vector<double> want(e.state.begin() + long(h * unit), e.state.begin() + long((h + 1) * unit));
      for (double& x : want) x = rounded(after.type(), x);
      measure.add({got.begin() + long(h * unit), got.begin() + long((h + 1) * unit)}, want);
    }
  }
  EXPECT_TRUE(measure.within(limit)) << what << ": state " << measure.text() << ", limit " << limit;
  EXPECT_TRUE(judge::only_slots_changed(before, after, slots)) << what << ": a slot changed that was not named";
}

double out_limit(const Spec& spec) {
  const judge::Io io = judge::io_of(spec.io);
  if (!spec.fast) return judge::exact_out_limit(io, spec.rounds());
  return std::max(judge::fast_out_limit(io), spec.state == Type::bf16 ? 1e-3 : 0);
}

double state_limit(const Spec& spec, bool low) {
  if (!spec.fast) return judge::exact_state_limit(low);
  return std::max(judge::fast_state_limit(judge::io_of(spec.io)), low || spec.state == Type::bf16 ? 1e-3 : 0);
}

void add_out(const Spec& spec, const TokenTensors& t, int64_t begin, const std::vector<std::vector<double>>& want,
             judge::Measure* measure) {
  for (int h = 0; h < spec.form.HV; ++h) {
    std::vector<double> got_unit, want_unit;
    for (size_t i = 0; i < want.size(); ++i)
      for (int v = 0; v < spec.form.V; ++v) {
        got_unit.push_back(t.out.at(begin + int64_t(i), h, v));
        want_unit.push_back(want[i][size_t(h * spec.form.V + v)]);
      }
    measure->add(got_unit, want_unit);
  }
}

bool out_untouched(const Spec& spec, const TokenTensors& t, int64_t token) {
  for (int h = 0; h < spec.form.HV; ++h)
    for (int v = 0; v < spec.form.V; ++v)
      if (!std::isnan(t.out.at(token, h, v))) return false;
  return true;
}

bool out_zero(const Spec& spec, const TokenTensors& t, int64_t token) {
  for (int h = 0; h < spec.form.HV; ++h)
    for (int v = 0; v < spec.form.V; ++v)
      if (t.out.at(token, h, v) != 0) return false;
  return true;
}

}  // namespace parity
