// One pass of rows through all layers, and what lasts from pass to pass.
#include <algorithm>
#include <cstring>

#include "model/model_impl.h"
#include "model/ops.h"
#include "model/scratch.h"

namespace kda::model {
namespace {

constexpr int kRecordRows = 2;  // the draft being verified, and the one whose commit is pending

kda_pool_options pool_options(const Model::Impl& m) {
  auto options = args<kda_pool_options>();
  options.slots = 1;
  options.layers = m.kda_layers;
  options.record_rows = kRecordRows;
  return options;
}

// Rows of a norm are microseconds: below this many the threads would cost more than they give.
constexpr int64_t kNormRowsAPiece = 16;

void norm_rows(const Threads& threads, const float* x, const Floats& weight, int64_t rows, double eps, float* out) {
  const auto width = static_cast<int64_t>(weight.size());
  threads.parallel_for((rows + kNormRowsAPiece - 1) / kNormRowsAPiece, [&](int64_t piece) {
    const int64_t end = std::min(rows, (piece + 1) * kNormRowsAPiece);
    for (int64_t r = piece * kNormRowsAPiece; r < end; ++r) {
      rms_norm(x + r * width, weight.data(), width, static_cast<float>(eps), out + r * width);
    }
  });
}

}  // namespace

Session::Impl::Impl(const Model& model)
    : model(model), m(model.impl()), pool(m.plan, pool_options(m)), call(args<kda_call>()) {
  slot = pool.acquire();
  slot_index[0] = slot.id;
  const kda_plan_info& info = m.plan.info();
  workspace.resize(info.workspace_bytes + info.workspace_alignment);
  void* start = workspace.data();
  size_t space = workspace.size();
  call.workspace = info.workspace_bytes == 0
                       ? nullptr
                       : std::align(std::max<size_t>(info.workspace_alignment, 1), info.workspace_bytes, start, space);
  call.workspace_bytes = info.workspace_bytes;
  mla_caches.resize(static_cast<size_t>(m.mla_layers));
  clear_states();
}

Session::Impl::~Impl() {
  kda_pool_clear_pending(pool.get(), slot, nullptr);
  kda_pool_release(pool.get(), slot, nullptr);
}

void Session::Impl::clear_states() {
  const auto clear = [&](const Tensor& tensor, size_t bytes) {
    const int64_t element = sizeof(float);
    std::memset(tensor.data<char>() + slot.id * tensor.stride(0) * element, 0, bytes);
  };
  for (int layer = 0; layer < m.kda_layers; ++layer) {
    clear(pool.state(layer), m.plan.info().state_slot_bytes);
    clear(pool.conv_state(layer), m.plan.info().conv_slot_bytes);
  }
  pool.clear_pending(slot);
  draft_parents.clear();
  length = 0;
}

void Session::Impl::flush() {
  const Pool::Pending pending = pool.pending(slot);
  if (pending.tip < 0) return;
  pending_tip[0] = pending.tip;
  pending_record_row[0] = pending.record_row;
  const Tensor slots(slot_index.data(), Element::int32, {1});
  const Tensor tips(pending_tip.data(), Element::int32, {1});
  const Tensor rows(pending_record_row.data(), Element::int32, {1});
  int64_t state_stride = 0, conv_stride = 0, record_stride = 0, conv_record_stride = 0;
  check([&](kda_error* e) {
    return kda_pool_layer_strides(pool.get(), &state_stride, &conv_stride, &record_stride, &conv_record_stride, e);
  });
  const auto commit_args = [&](const Tensor& state, const Tensor& records, int64_t states, int64_t record_layers) {
    auto commit = args<kda_commit_args>();
    commit.layers = m.kda_layers;
    commit.rows.slots = slots;
    commit.rows.state = state;
    commit.tips = tips;
    commit.records = records;
    commit.record_rows = rows;
    commit.state_layers.stride = states;
    commit.record_layers.stride = record_layers;
    return commit;
  };
  const Tensor state = pool.state(0), records = pool.records(0);
  m.plan.commit(commit_args(state, records, state_stride, record_stride), &call);
  const Tensor windows = pool.conv_state(0), conv_records = pool.conv_records(0);
  m.plan.conv_commit(commit_args(windows, conv_records, conv_stride, conv_record_stride), &call);
  pool.clear_pending(slot);
}

void Session::Impl::set_paths(Pass pass, std::span<const int32_t> draft, int64_t rows) {
  s.path.clear();
  s.path_begin.assign(1, 0);
  const auto at = [&](int64_t row) { return static_cast<int32_t>(length + row); };
  for (int64_t row = 0; row < rows; ++row) {
    const auto begin = static_cast<ptrdiff_t>(s.path.size());
    if (pass == Pass::verify) {
      for (int64_t node = row; node >= 0; node = draft[static_cast<size_t>(node)]) s.path.push_back(at(node));
      std::reverse(s.path.begin() + begin, s.path.end());
    } else {
      for (int64_t earlier = 0; earlier <= row; ++earlier) s.path.push_back(at(earlier));
    }
    s.path_begin.push_back(static_cast<int32_t>(s.path.size()));
  }
}

void Session::Impl::run(Pass pass, std::span<const int32_t> tokens, std::span<const int32_t> draft) {
  const auto rows = static_cast<int64_t>(tokens.size());
  const int64_t hidden = m.config.hidden_size;
  cu_seqlens = {0, static_cast<int32_t>(rows)};
  parents.assign(draft.begin(), draft.end());
  if (pass == Pass::verify) {
    const Pool::Pending pending = pool.pending(slot);
    has_pending = pending.tip >= 0;
    pending_tip[0] = pending.tip;
    pending_record_row[0] = pending.record_row;
    draft_record_row = pending.record_row == 0 ? 1 : 0;
    record_row[0] = draft_record_row;
  }
  if (m.mla_layers > 0) set_paths(pass, draft, rows);

  float* stream = at_least(&s.stream, rows * hidden);
  float* normed = at_least(&s.normed, rows * hidden);
  model.embed(tokens, stream);
  const std::vector<int>& taps = m.options.feature_layers;
  const auto feature_width = static_cast<int64_t>(taps.size()) * hidden;
  at_least(&s.features, rows * feature_width);
  size_t tap = 0;
  const auto keep_features = [&](int layer) {
    if (tap == taps.size() || taps[tap] != layer) return;
    float* to = s.features.data() + static_cast<int64_t>(tap) * hidden;
    for (int64_t r = 0; r < rows; ++r) std::copy_n(stream + r * hidden, hidden, to + r * feature_width);
    ++tap;
  };

  int kda = 0, mla = 0;
  for (int layer = 0; layer < m.config.num_layers; ++layer) {
    const LayerWeights& w = m.weights->layers[static_cast<size_t>(layer)];
    keep_features(layer);
    norm_rows(m.threads, stream, w.input_norm, rows, m.config.rms_norm_eps, normed);
    if (m.config.layer_kinds[static_cast<size_t>(layer)] == LayerKind::kda) {
      kda_layer(w.kda, kda++, pass, rows);
    } else {
      mla_layer(w.mla, mla++, rows);
    }
    norm_rows(m.threads, stream, w.post_norm, rows, m.config.rms_norm_eps, normed);
    if (m.config.is_moe(layer)) {
      run_moe(m.threads, m.config, w.moe, normed, rows, &s.mlp, stream);
    } else {
      run_mlp(m.threads, m.config, w.mlp, normed, rows, &s.mlp, stream);
    }
  }
  keep_features(m.config.num_layers);
  if (pass == Pass::verify && has_pending) pool.clear_pending(slot);
}

std::span<const float> Session::Impl::compute_logits(int64_t first, int64_t count) {
  const int64_t hidden = m.config.hidden_size, vocab = m.config.vocab_size;
  norm_rows(m.threads, s.stream.data() + first * hidden, m.weights->final_norm, count, m.config.rms_norm_eps,
            s.normed.data());
  float* logits = at_least(&s.logits, count * vocab);
  run_product(m.threads, {s.normed.data(), hidden, count, m.weights->lm_head, logits, vocab});
  return {logits, static_cast<size_t>(count * vocab)};
}

std::span<const float> Session::Impl::features(int64_t first, int64_t count) const {
  const auto width = m.options.feature_layers.size() * static_cast<size_t>(m.config.hidden_size);
  return {s.features.data() + static_cast<size_t>(first) * width, static_cast<size_t>(count) * width};
}

}  // namespace kda::model
