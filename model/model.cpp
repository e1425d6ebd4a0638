#include "model/model.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "model/model_impl.h"

namespace kda::model {
namespace {

void run_on_threads(void* user, int64_t count, void (*body)(void*, int64_t), void* arg) {
  static_cast<const Threads*>(user)->run(count, body, arg);
}

Context make_context(const Threads& threads) {
  auto options = args<kda_context_options>();
  options.threads = threads.count();
  options.cuda_device = -1;
  options.parallel_for = run_on_threads;
  options.parallel_for_user = const_cast<Threads*>(&threads);
  return Context(&options);
}

int count_layers(const Config& config, LayerKind kind) {
  return static_cast<int>(std::count(config.layer_kinds.begin(), config.layer_kinds.end(), kind));
}

kda_problem make_problem(const Config& config, const ModelOptions& options) {
  kda_problem problem = kda::problem();
  problem.backend = options.backend;
  for (kda_operation operation : {KDA_EXTEND, KDA_DECODE, KDA_VERIFY, KDA_VERIFY_PENDING, KDA_COMMIT, KDA_CONV_EXTEND,
                                  KDA_CONV_DECODE, KDA_CONV_VERIFY, KDA_CONV_VERIFY_PENDING, KDA_CONV_COMMIT}) {
    problem.operations |= KDA_OPERATION_BIT(operation);
  }
  problem.layers = count_layers(config, LayerKind::kda);
  problem.max_rows = 1;
  problem.max_tokens = std::max(options.prefill_chunk, options.max_nodes);
  problem.max_nodes = options.max_nodes;
  problem.heads = config.kda_heads;
  problem.key_dim = config.kda_head_dim;
  problem.conv_width = config.conv_width;
  problem.io_dtype = KDA_FP32;
  problem.gate = config.bounded_gate ? KDA_GATE_BOUNDED : KDA_GATE_SOFTPLUS;
  problem.extend_numerics = options.extend_numerics;
  problem.verify_numerics = options.verify_numerics;
  return problem;
}

io::Outcome check_options(const Config& config, const ModelOptions& options) {
  const auto fail = [](std::string text) { return io::Outcome(io::Error{std::move(text)}); };
  if (options.backend != KDA_BACKEND_CPU && options.backend != KDA_BACKEND_REFERENCE) {
    return fail("the model runner's backends are cpu and reference");
  }
  if (options.threads < 0 || options.threads > 1024) {
    return fail(fmt::format("threads: expected 0 to 1024, found {}", options.threads));
  }
  if (options.prefill_chunk < 1 || options.prefill_chunk > 65536) {
    return fail(fmt::format("prefill chunk: expected 1 to 65536 tokens, found {}", options.prefill_chunk));
  }
  if (options.max_nodes < 1 || options.max_nodes > 64) {
    return fail(fmt::format("draft nodes: expected 1 to 64, found {}", options.max_nodes));
  }
  int last = -1;
  for (int layer : options.feature_layers) {
    if (layer <= last || layer > config.num_layers) {
      return fail(fmt::format("feature layer {}: expected ascending layers from 0 to {}", layer, config.num_layers));
    }
    last = layer;
  }
  return io::Done{};
}

int64_t mlp_bytes(const MlpWeights& w) { return w.gate.bytes() + w.up.bytes() + w.down.bytes(); }

}  // namespace

Model::Impl::Impl(Config config_in, ModelOptions options_in, std::unique_ptr<ModelWeights> weights_in)
    : config(std::move(config_in)),
      options(std::move(options_in)),
      weights(std::move(weights_in)),
      threads(options.threads),
      context(make_context(threads)),
      kda_layers(count_layers(config, LayerKind::kda)),
      mla_layers(count_layers(config, LayerKind::mla)),
      plan(context, make_problem(config, options)) {
  options.threads = threads.count();
}

Model::Model(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Model::~Model() = default;

io::Result<std::unique_ptr<Model>> Model::load(const std::string& directory, const ModelOptions& options) {
  auto config = Config::read(directory + "/config.json");
  if (!config) return io::Error{config.error()};
  if (auto checked = check_options(*config, options); !checked) return io::Error{checked.error()};
  auto weights = ModelWeights::load(directory, *config);
  if (!weights) return io::Error{weights.error()};
  try {
    return std::unique_ptr<Model>(new Model(std::make_unique<Impl>(std::move(*config), options, std::move(*weights))));
  } catch (const std::exception& error) {
    return io::Error{directory + ": " + error.what()};
  }
}

const Config& Model::config() const { return impl_->config; }
const ModelOptions& Model::options() const { return impl_->options; }
const ModelWeights& Model::weights() const { return *impl_->weights; }
const Threads& Model::threads() const { return impl_->threads; }
const Matrix& Model::embedding() const { return impl_->weights->embedding; }
const Matrix& Model::lm_head() const { return impl_->weights->lm_head; }

void Model::embed(std::span<const int32_t> tokens, float* out) const {
  const Matrix& table = embedding();
  for (int32_t token : tokens) {
    if (table.bf16) {
      const auto* row = static_cast<const uint16_t*>(table.data) + token * table.stride;
      for (int64_t i = 0; i < table.inputs; ++i) out[i] = std::bit_cast<float>(static_cast<uint32_t>(row[i]) << 16);
    } else {
      std::copy_n(static_cast<const float*>(table.data) + token * table.stride, table.inputs, out);
    }
    out += table.inputs;
  }
}

int64_t Model::bytes_per_token() const {
  const Config& config = impl_->config;
  int64_t bytes = lm_head().bytes() + embedding().bytes() / config.vocab_size;
  for (const LayerWeights& layer : weights().layers) {
    const KdaWeights& k = layer.kda;
    for (const Matrix* matrix : {&k.q, &k.k, &k.v, &k.f_a, &k.f_b, &k.g_a, &k.g_b, &k.b, &k.o, &layer.mla.q,
                                 &layer.mla.kv_a, &layer.mla.kv_b, &layer.mla.o, &layer.moe.router}) {
      bytes += matrix->bytes();
    }
    bytes += mlp_bytes(layer.mlp) + mlp_bytes(layer.moe.shared);
    if (!layer.moe.experts.empty()) bytes += config.experts_per_token * mlp_bytes(layer.moe.experts.front());
  }
  return bytes;
}

}  // namespace kda::model
