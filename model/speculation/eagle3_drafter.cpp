#include "model/speculation/eagle3_drafter.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "model/attention.h"
#include "model/ops.h"

namespace kda::speculation {

namespace {

constexpr int64_t kRowsPerPass = 64;  // bounds the scratch of long prompts
constexpr int64_t kFirstCapacity = 512;

void copy_row(const model::Matrix& matrix, int64_t row, float* out) {
  if (!matrix.bf16) {
    const float* source = static_cast<const float*>(matrix.data) + row * matrix.stride;
    std::copy(source, source + matrix.inputs, out);
    return;
  }
  const uint16_t* source = static_cast<const uint16_t*>(matrix.data) + row * matrix.stride;
  for (int64_t i = 0; i < matrix.inputs; ++i) {
    const uint32_t bits = static_cast<uint32_t>(source[i]) << 16;
    std::memcpy(out + i, &bits, sizeof(bits));
  }
}

}  // namespace

io::Result<std::unique_ptr<Eagle3Drafter>> Eagle3Drafter::load(const std::string& directory, const Eagle3Target& target,
                                                               const TreeShape& shape) {
  const std::string path = directory + "/config.json";
  io::Result<Eagle3Config> config = Eagle3Config::read(path);
  if (!config) return io::Error{config.error()};
  const auto expect = [&](const char* name, int64_t found, int64_t expected) {
    if (found == expected) return std::string();
    return path + ": " + name + " is " + std::to_string(found) + ", but the target's is " + std::to_string(expected);
  };
  std::string error = expect("vocab_size", config->vocab_size, target.vocab_size);
  if (error.empty()) error = expect("target_hidden_size", config->target_hidden_size, target.hidden_size);
  if (!error.empty()) return io::Error{error};

  io::Result<Eagle3Weights> weights = Eagle3Weights::load(directory, *config, target.feature_layers);
  if (!weights) return io::Error{weights.error()};
  if (weights->embedding.empty()) weights->embedding = target.embedding;
  if (weights->lm_head.empty()) weights->lm_head = target.lm_head;
  if (weights->embedding.inputs != config->hidden_size || weights->lm_head.inputs != config->hidden_size) {
    return io::Error{path + ": hidden_size is " + std::to_string(config->hidden_size) +
                     ", which needs an own embed_tokens.weight and lm_head.weight: the target's are " +
                     std::to_string(target.hidden_size) + " wide"};
  }
  return std::unique_ptr<Eagle3Drafter>(new Eagle3Drafter(std::move(*config), std::move(*weights), target, shape));
}

Eagle3Drafter::Eagle3Drafter(Eagle3Config config, Eagle3Weights weights, const Eagle3Target& target,
                             const TreeShape& shape)
    : config_(std::move(config)), weights_(std::move(weights)), target_(target), shape_(shape) {
  const int64_t dim = config_.head_dim;
  for (int64_t i = 0; i < dim / 2; ++i) {
    frequencies_.push_back(std::pow(config_.rope_theta, -2.0 * static_cast<double>(i) / static_cast<double>(dim)));
  }
  cosines_.resize(frequencies_.size());
  sines_.resize(frequencies_.size());
}

void Eagle3Drafter::reset() {
  length_ = 0;
  queued_features_.clear();
  queued_tokens_.clear();
}

void Eagle3Drafter::ensure_capacity(int64_t rows) {
  if (rows <= capacity_) return;
  const int64_t capacity = std::max({rows, 2 * capacity_, kFirstCapacity});
  const int64_t width = 2 * config_.head_dim;
  std::vector<float> cache(config_.kv_heads * capacity * width);
  for (int64_t head = 0; head < config_.kv_heads; ++head) {
    // Drafted rows lie behind length_, so all of the old rows move.
    std::copy_n(cache_.begin() + head * capacity_ * width, capacity_ * width, cache.begin() + head * capacity * width);
  }
  cache_ = std::move(cache);
  capacity_ = capacity;
}

void Eagle3Drafter::rotate(float* x, int64_t position) {
  const auto half = static_cast<int64_t>(frequencies_.size());
  if (position != rotary_position_) {
    rotary_position_ = position;
    for (int64_t i = 0; i < half; ++i) {
      const double angle = static_cast<double>(position) * frequencies_[i];
      cosines_[i] = static_cast<float>(std::cos(angle));
      sines_[i] = static_cast<float>(std::sin(angle));
    }
  }
  for (int64_t i = 0; i < half; ++i) {
    const float a = x[i];
    const float b = x[i + half];
    x[i] = a * cosines_[i] - b * sines_[i];
    x[i + half] = b * cosines_[i] + a * sines_[i];
  }
}

void Eagle3Drafter::store_keys_and_values(const Batch& batch, int64_t first_row) {
  const int64_t dim = config_.head_dim;
  for (int64_t row = 0; row < batch.rows(); ++row) {
    for (int64_t head = 0; head < config_.kv_heads; ++head) {
      float* key = &k_[(row * config_.kv_heads + head) * dim];
      rotate(key, batch.positions[row]);
      float* to = &cache_[(head * capacity_ + first_row + row) * 2 * dim];
      std::copy_n(key, dim, to);
      std::copy_n(&v_[(row * config_.kv_heads + head) * dim], dim, to + dim);
    }
  }
}

void Eagle3Drafter::attend(const Batch& batch, int64_t first_row, int64_t outputs) {
  const int64_t dim = config_.head_dim, skipped = batch.rows() - outputs;
  const int64_t together = config_.heads / config_.kv_heads;  // query heads of a key head
  queries_.resize(outputs * together * dim);
  attended_.resize(queries_.size());
  attention_.resize(outputs * config_.heads * dim);
  path_.clear();
  path_begin_.assign(1, 0);
  for (int64_t row = skipped; row < batch.rows(); ++row) {
    if (batch.visible.empty()) {
      for (int64_t earlier = 0; earlier <= row; ++earlier) path_.push_back(static_cast<int32_t>(first_row + earlier));
    } else {
      for (int index : batch.visible[row]) path_.push_back(static_cast<int32_t>(length_ + index));
    }
    path_begin_.push_back(static_cast<int32_t>(path_.size()));
  }
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  for (int64_t key_head = 0; key_head < config_.kv_heads; ++key_head) {
    const auto place = [&](int64_t row) { return (row * config_.heads + key_head * together) * dim; };
    for (int64_t row = 0; row < outputs; ++row) {
      float* query = &queries_[row * together * dim];
      std::copy_n(&q_[place(row)], together * dim, query);
      for (int64_t head = 0; head < together; ++head) rotate(query + head * dim, batch.positions[skipped + row]);
    }
    model::run_attention(
        *target_.threads,
        {queries_.data(), outputs, static_cast<int>(together), &cache_[key_head * capacity_ * 2 * dim], dim, dim, scale,
         length_, path_, path_begin_, attended_.data(), /*cache_stride=*/2 * dim, /*value_offset=*/dim});
    for (int64_t row = 0; row < outputs; ++row) {
      std::copy_n(&attended_[row * together * dim], together * dim, &attention_[place(row)]);
    }
  }
}

void Eagle3Drafter::forward(Batch& batch, int64_t first_row, int64_t outputs) {
  const int64_t rows = batch.rows();
  const int64_t hidden = config_.hidden_size;
  const float eps = static_cast<float>(config_.rms_norm_eps);
  const int64_t query_width = int64_t{config_.heads} * config_.head_dim;
  const int64_t intermediate = config_.intermediate_size;
  const auto product = [&](const float* x, int64_t x_width, int64_t count, const model::Matrix& weights,
                           std::vector<float>& out) {
    out.resize(count * weights.outputs);
    return model::Product{x, x_width, count, weights, out.data(), weights.outputs};
  };
  ensure_capacity(first_row + rows);

  joined_.resize(rows * 2 * hidden);
  for (int64_t row = 0; row < rows; ++row) {
    float* joined = &joined_[row * 2 * hidden];
    copy_row(weights_.embedding, batch.tokens[row], joined);
    model::rms_norm(joined, weights_.input_norm.data(), hidden, eps, joined);
    model::rms_norm(&batch.hidden[row * hidden], weights_.hidden_norm.data(), hidden, eps, joined + hidden);
  }
  const float* asking = joined_.data() + (rows - outputs) * 2 * hidden;
  const model::Product projections[] = {product(asking, 2 * hidden, outputs, weights_.q_proj, q_),
                                        product(joined_.data(), 2 * hidden, rows, weights_.k_proj, k_),
                                        product(joined_.data(), 2 * hidden, rows, weights_.v_proj, v_)};
  model::run_products(*target_.threads, projections);
  store_keys_and_values(batch, first_row);
  if (outputs == 0) return;
  attend(batch, first_row, outputs);
  float* const stream = batch.hidden.data() + (rows - outputs) * hidden;
  const auto add_to_stream = [&](const float* x, int64_t x_width, const model::Matrix& weights) {
    model::run_product(*target_.threads, {x, x_width, outputs, weights, stream, hidden, /*accumulate=*/true});
  };
  add_to_stream(attention_.data(), query_width, weights_.o_proj);

  normed_.resize(outputs * hidden);
  for (int64_t row = 0; row < outputs; ++row) {
    model::rms_norm(stream + row * hidden, weights_.post_attention_norm.data(), hidden, eps, &normed_[row * hidden]);
  }
  const model::Product gates[] = {product(normed_.data(), hidden, outputs, weights_.gate_proj, gate_),
                                  product(normed_.data(), hidden, outputs, weights_.up_proj, up_)};
  model::run_products(*target_.threads, gates);
  model::silu_mul(gate_.data(), up_.data(), outputs * intermediate, gate_.data());
  add_to_stream(gate_.data(), intermediate, weights_.down_proj);
}

void Eagle3Drafter::logits_of(const float* hidden, int64_t rows) {
  const int64_t width = config_.hidden_size;
  normed_.resize(rows * width);
  for (int64_t row = 0; row < rows; ++row) {
    model::rms_norm(hidden + row * width, weights_.final_norm.data(), width, static_cast<float>(config_.rms_norm_eps),
                    &normed_[row * width]);
  }
  logits_.resize(rows * config_.draft_vocab_size);
  model::run_product(*target_.threads,
                     {normed_.data(), width, rows, weights_.lm_head, logits_.data(), config_.draft_vocab_size});
}

void Eagle3Drafter::add_children(CandidatePool& pool, int parent, int64_t row) {
  const float* logits = &logits_[row * config_.draft_vocab_size];
  const int32_t count = static_cast<int32_t>(config_.draft_vocab_size);
  const int32_t children = std::min<int32_t>(shape_.topk, count);
  // A short list, best first. NaN is never larger than anything, so it only gets in where nothing else is left.
  best_.clear();
  for (int32_t i = 0; i < count; ++i) {
    if (static_cast<int32_t>(best_.size()) == children && !(logits[i] > logits[best_.back()])) continue;
    if (static_cast<int32_t>(best_.size()) == children) best_.pop_back();
    auto place = best_.end();
    while (place != best_.begin() && logits[i] > logits[*(place - 1)]) --place;
    best_.insert(place, i);
  }
  weights_of_row_.assign(logits, logits + count);
  model::softmax(weights_of_row_.data(), 1.0f, count);
  for (int32_t id : best_) pool.add(weights_.target_token[id], parent, std::log(weights_of_row_[id]));
}

void Eagle3Drafter::enqueue(std::span<const int32_t> tokens, std::span<const float> features) {
  if (tokens.empty()) return;
  const int64_t hidden = config_.hidden_size;
  const int64_t rows = static_cast<int64_t>(tokens.size());
  const size_t queued = queued_features_.size();
  queued_features_.resize(queued + rows * hidden);
  model::run_product(*target_.threads, {features.data(), weights_.fc.inputs, rows, weights_.fc,
                                        queued_features_.data() + queued, hidden});
  // The first token completes the row of the feature before it: queued, or at the last propose, or there is none.
  queued_tokens_.insert(queued_tokens_.end(), tokens.begin() + (queued == 0 ? 1 : 0), tokens.end());
}

void Eagle3Drafter::run_queue(Outputs wanted) {
  const int64_t hidden = config_.hidden_size;
  const int64_t rows = static_cast<int64_t>(queued_tokens_.size());
  outputs_.clear();
  for (int64_t first = 0; first < rows; first += kRowsPerPass) {
    const int64_t count = std::min(kRowsPerPass, rows - first);
    Batch batch;
    batch.hidden.assign(queued_features_.begin() + first * hidden, queued_features_.begin() + (first + count) * hidden);
    batch.tokens.assign(queued_tokens_.begin() + first, queued_tokens_.begin() + first + count);
    for (int64_t i = 0; i < count; ++i) batch.positions.push_back(length_ + i);
    const bool last = first + count == rows;
    const int64_t outputs = wanted == Outputs::kAll ? count : wanted == Outputs::kLast && last ? 1 : 0;
    forward(batch, length_, outputs);
    length_ += count;
    outputs_.insert(outputs_.end(), batch.hidden.end() - outputs * hidden, batch.hidden.end());
  }
  queued_tokens_.clear();
  queued_features_.erase(queued_features_.begin(), queued_features_.begin() + rows * hidden);
}

void Eagle3Drafter::observe(std::span<const int32_t> tokens, std::span<const float> features) {
  enqueue(tokens, features);
  // Prompts run as they come; the few rows of an accepted path wait for the next root.
  if (static_cast<int64_t>(queued_tokens_.size()) >= kRowsPerPass) run_queue(Outputs::kNone);
}

std::vector<float> Eagle3Drafter::sequence_logits(std::span<const int32_t> tokens, std::span<const float> features) {
  reset();
  enqueue(tokens, features);
  run_queue(Outputs::kAll);
  logits_of(outputs_.data(), static_cast<int64_t>(outputs_.size()) / config_.hidden_size);
  reset();
  return logits_;
}

DraftTree Eagle3Drafter::propose(int32_t root) {
  if (queued_features_.empty()) return {{root}, {-1}};  // nothing observed: no feature to draft from
  queued_tokens_.push_back(root);
  run_queue(Outputs::kLast);

  // A drafted row that may be expanded: the layer's output and the rows it has seen beyond the sequence.
  struct Row {
    std::vector<float> output;
    std::vector<int> path;
  };
  const int64_t hidden = config_.hidden_size;
  CandidatePool pool(shape_);
  std::vector<Row> drafted;
  std::vector<int> row_of;  // by candidate: the row whose child it is, an index into drafted; -1 = the root's row
  const auto add_level = [&](int parent, int parent_row, int64_t logits_row) {
    add_children(pool, parent, logits_row);
    row_of.resize(pool.size(), parent_row);
  };
  logits_of(outputs_.data(), 1);
  add_level(-1, -1, 0);
  for (int step = 1; step < shape_.steps; ++step) {
    const std::vector<int> frontier = pool.best_of_level();
    Batch batch;
    const int first = static_cast<int>(drafted.size());
    for (int index : frontier) {
      const Row* parent = row_of[index] < 0 ? nullptr : &drafted[row_of[index]];
      const std::vector<float>& input = parent == nullptr ? outputs_ : parent->output;
      batch.hidden.insert(batch.hidden.end(), input.begin(), input.end());
      batch.tokens.push_back(pool.token(index));
      batch.positions.push_back(length_ + step - 1);
      std::vector<int> path = parent == nullptr ? std::vector<int>{} : parent->path;
      path.push_back(first + static_cast<int>(batch.visible.size()));
      batch.visible.push_back(std::move(path));
    }
    forward(batch, length_ + first, batch.rows());
    logits_of(batch.hidden.data(), batch.rows());
    for (int64_t i = 0; i < batch.rows(); ++i) {
      const auto output = batch.hidden.begin() + i * hidden;
      drafted.push_back({{output, output + hidden}, std::move(batch.visible[i])});
      add_level(frontier[i], first + static_cast<int>(i), i);
    }
  }
  // Drafted rows stay behind length_: the next rows with true features overwrite them.
  return pool.best_tree(root);
}

}  // namespace kda::speculation
