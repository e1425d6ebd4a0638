#include "model/speculation/eagle3_drafter.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "model/ops.h"

namespace kda::speculation {

namespace {

constexpr int64_t kRowsPerPass = 32;  // bounds the score matrix [heads, rows, cache] on long prompts
constexpr float kHidden = -1e30f;     // score of what a row may not see: its probability is exactly 0
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

// Rotary positions on pairs (i, i + size/2), as Llama has them.
void rotate(float* x, int64_t size, int64_t position, double theta) {
  const int64_t half = size / 2;
  for (int64_t i = 0; i < half; ++i) {
    const double angle =
        static_cast<double>(position) * std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(size));
    const float cosine = static_cast<float>(std::cos(angle));
    const float sine = static_cast<float>(std::sin(angle));
    const float a = x[i];
    const float b = x[i + half];
    x[i] = a * cosine - b * sine;
    x[i + half] = b * cosine + a * sine;
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
    : config_(std::move(config)), weights_(std::move(weights)), target_(target), shape_(shape) {}

void Eagle3Drafter::reset() {
  length_ = 0;
  queued_features_.clear();
  queued_tokens_.clear();
}

void Eagle3Drafter::ensure_capacity(int64_t rows) {
  if (rows <= capacity_) return;
  const int64_t capacity = std::max({rows, 2 * capacity_, kFirstCapacity});
  const int64_t dim = config_.head_dim;
  std::vector<float> keys(config_.kv_heads * capacity * dim), values(keys.size());
  for (int64_t head = 0; head < config_.kv_heads; ++head) {
    const int64_t from = head * capacity_ * dim;
    const int64_t to = head * capacity * dim;
    std::copy_n(keys_.begin() + from, capacity_ * dim, keys.begin() + to);
    std::copy_n(values_.begin() + from, capacity_ * dim, values.begin() + to);
  }
  keys_ = std::move(keys);
  values_ = std::move(values);
  capacity_ = capacity;
}

void Eagle3Drafter::store_keys_and_values(const Batch& batch, int64_t first_row) {
  const int64_t dim = config_.head_dim;
  for (int64_t row = 0; row < batch.rows(); ++row) {
    for (int64_t head = 0; head < config_.heads; ++head) {
      rotate(&q_[(row * config_.heads + head) * dim], dim, batch.positions[row], config_.rope_theta);
    }
    for (int64_t head = 0; head < config_.kv_heads; ++head) {
      float* key = &k_[(row * config_.kv_heads + head) * dim];
      rotate(key, dim, batch.positions[row], config_.rope_theta);
      std::copy_n(key, dim, &keys_[(head * capacity_ + first_row + row) * dim]);
      std::copy_n(&v_[(row * config_.kv_heads + head) * dim], dim,
                  &values_[(head * capacity_ + first_row + row) * dim]);
    }
  }
}

// Scores and weighted values are matrix products with the cache in the place of weights.
void Eagle3Drafter::attend(const Batch& batch, int64_t first_row) {
  const int64_t dim = config_.head_dim;
  const int64_t rows = batch.rows();
  const int64_t seen = first_row + rows;
  const int64_t heads_per_key = config_.heads / config_.kv_heads;
  const int64_t width = int64_t{config_.heads} * dim;
  scores_.resize(config_.heads * rows * seen);
  attention_.resize(rows * width);
  std::vector<model::Product> products(config_.heads);
  for (int64_t head = 0; head < config_.heads; ++head) {
    const float* keys = &keys_[head / heads_per_key * capacity_ * dim];
    products[head] = {&q_[head * dim], width, rows, {keys, false, seen, dim, dim}, &scores_[head * rows * seen], seen};
  }
  model::run_products(*target_.threads, products);

  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  target_.threads->parallel_for(config_.heads * rows, [&](int64_t i) {
    const int64_t row = i % rows;
    float* scores = &scores_[i * seen];
    if (batch.visible.empty()) {
      model::softmax(scores, scale, first_row + row + 1);
      std::fill(scores + first_row + row + 1, scores + seen, 0.0f);
    } else {
      std::vector<bool> sees(seen - length_, false);
      for (int index : batch.visible[row]) sees[index] = true;
      for (int64_t j = length_; j < seen; ++j) scores[j] = sees[j - length_] ? scores[j] : kHidden;
      model::softmax(scores, scale, seen);
    }
  });

  std::vector<model::TransposedProduct> sums(config_.heads);
  for (int64_t head = 0; head < config_.heads; ++head) {
    const float* values = &values_[head / heads_per_key * capacity_ * dim];
    sums[head] = {&scores_[head * rows * seen], seen, rows, {values, false, seen, dim, dim},
                  &attention_[head * dim],      width};
  }
  model::run_transposed_products(*target_.threads, sums);
}

void Eagle3Drafter::forward(Batch& batch, int64_t first_row) {
  const int64_t rows = batch.rows();
  const int64_t hidden = config_.hidden_size;
  const float eps = static_cast<float>(config_.rms_norm_eps);
  const int64_t query_width = int64_t{config_.heads} * config_.head_dim;
  const int64_t intermediate = config_.intermediate_size;
  const auto product = [&](const std::vector<float>& x, int64_t x_width, const model::Matrix& weights,
                           std::vector<float>& out, bool accumulate = false) {
    if (!accumulate) out.resize(rows * weights.outputs);
    return model::Product{x.data(), x_width, rows, weights, out.data(), weights.outputs, accumulate};
  };
  ensure_capacity(first_row + rows);

  joined_.resize(rows * 2 * hidden);
  for (int64_t row = 0; row < rows; ++row) {
    float* joined = &joined_[row * 2 * hidden];
    copy_row(weights_.embedding, batch.tokens[row], joined);
    model::rms_norm(joined, weights_.input_norm.data(), hidden, eps, joined);
    model::rms_norm(&batch.hidden[row * hidden], weights_.hidden_norm.data(), hidden, eps, joined + hidden);
  }
  const model::Product projections[] = {product(joined_, 2 * hidden, weights_.q_proj, q_),
                                        product(joined_, 2 * hidden, weights_.k_proj, k_),
                                        product(joined_, 2 * hidden, weights_.v_proj, v_)};
  model::run_products(*target_.threads, projections);
  store_keys_and_values(batch, first_row);
  attend(batch, first_row);
  model::run_product(*target_.threads, product(attention_, query_width, weights_.o_proj, batch.hidden, true));

  normed_.resize(rows * hidden);
  for (int64_t row = 0; row < rows; ++row) {
    model::rms_norm(&batch.hidden[row * hidden], weights_.post_attention_norm.data(), hidden, eps,
                    &normed_[row * hidden]);
  }
  const model::Product gates[] = {product(normed_, hidden, weights_.gate_proj, gate_),
                                  product(normed_, hidden, weights_.up_proj, up_)};
  model::run_products(*target_.threads, gates);
  model::silu_mul(gate_.data(), up_.data(), rows * intermediate, gate_.data());
  model::run_product(*target_.threads, product(gate_, intermediate, weights_.down_proj, batch.hidden, true));
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
  const float largest = logits[best_.front()];
  float sum = 0;
  for (int32_t i = 0; i < count; ++i) sum += std::exp(logits[i] - largest);
  const float log_sum = std::log(sum) + largest;
  for (int32_t id : best_) pool.add(weights_.target_token[id], parent, logits[id] - log_sum);
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

void Eagle3Drafter::run_queue(std::vector<float>* outputs) {
  const int64_t hidden = config_.hidden_size;
  const int64_t rows = static_cast<int64_t>(queued_tokens_.size());
  for (int64_t first = 0; first < rows; first += kRowsPerPass) {
    const int64_t count = std::min(kRowsPerPass, rows - first);
    Batch batch;
    batch.hidden.assign(queued_features_.begin() + first * hidden, queued_features_.begin() + (first + count) * hidden);
    batch.tokens.assign(queued_tokens_.begin() + first, queued_tokens_.begin() + first + count);
    for (int64_t i = 0; i < count; ++i) batch.positions.push_back(length_ + i);
    forward(batch, length_);
    length_ += count;
    if (outputs != nullptr) outputs->insert(outputs->end(), batch.hidden.begin(), batch.hidden.end());
    last_output_.assign(batch.hidden.end() - hidden, batch.hidden.end());
  }
  queued_tokens_.clear();
  queued_features_.erase(queued_features_.begin(), queued_features_.begin() + rows * hidden);
}

void Eagle3Drafter::observe(std::span<const int32_t> tokens, std::span<const float> features) {
  enqueue(tokens, features);
  // Prompts run as they come; the few rows of an accepted path wait for the next root.
  if (static_cast<int64_t>(queued_tokens_.size()) >= kRowsPerPass) run_queue(nullptr);
}

std::vector<float> Eagle3Drafter::sequence_logits(std::span<const int32_t> tokens, std::span<const float> features) {
  reset();
  enqueue(tokens, features);
  std::vector<float> outputs;
  run_queue(&outputs);
  logits_of(outputs.data(), static_cast<int64_t>(outputs.size()) / config_.hidden_size);
  reset();
  return logits_;
}

DraftTree Eagle3Drafter::propose(int32_t root) {
  if (queued_features_.empty()) return {{root}, {-1}};  // nothing observed: no feature to draft from
  queued_tokens_.push_back(root);
  run_queue(nullptr);

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
  logits_of(last_output_.data(), 1);
  add_level(-1, -1, 0);
  for (int step = 1; step < shape_.steps; ++step) {
    const std::vector<int> frontier = pool.best_of_level();
    Batch batch;
    const int first = static_cast<int>(drafted.size());
    for (int index : frontier) {
      const Row* parent = row_of[index] < 0 ? nullptr : &drafted[row_of[index]];
      const std::vector<float>& input = parent == nullptr ? last_output_ : parent->output;
      batch.hidden.insert(batch.hidden.end(), input.begin(), input.end());
      batch.tokens.push_back(pool.token(index));
      batch.positions.push_back(length_ + step - 1);
      std::vector<int> path = parent == nullptr ? std::vector<int>{} : parent->path;
      path.push_back(first + static_cast<int>(batch.visible.size()));
      batch.visible.push_back(std::move(path));
    }
    forward(batch, length_ + first);
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
