#include "model/speculation/eagle3_weights.h"

#include <cstring>
#include <deque>

#include "io/safetensors.h"
#include "model/panels.h"

namespace kda::speculation {

struct Eagle3Weights::Storage {
  explicit Storage(io::Checkpoint file) : checkpoint(std::move(file)) {}
  io::Checkpoint checkpoint;
  std::deque<std::vector<uint32_t>> copies;  // uint32_t: aligned for fp32
  model::PanelStorage panels;
};

namespace {

float from_bf16(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, sizeof(value));
  return value;
}

// Fetches tensors and keeps the first error.
class Reader {
 public:
  explicit Reader(Eagle3Weights::Storage& storage) : storage_(storage) {}

  // Packed for products.
  model::Matrix matrix(const std::string& name, int64_t outputs, int64_t inputs) {
    return model::packed(table(name, outputs, inputs), &storage_.panels);
  }

  // In place.
  model::Matrix table(const std::string& name, int64_t outputs, int64_t inputs) {
    const io::TensorInfo* tensor = float_tensor(name, {outputs, inputs});
    if (tensor == nullptr) return {};
    const void* data = tensor->data.data();
    if (!tensor->aligned()) {
      std::vector<uint32_t>& copy = storage_.copies.emplace_back((tensor->data.size() + 3) / 4);
      std::memcpy(copy.data(), tensor->data.data(), tensor->data.size());
      data = copy.data();
    }
    return {data, tensor->type == io::TensorType::kBF16, outputs, inputs, inputs};
  }

  bool has(const std::string& name) const { return storage_.checkpoint.find(name) != nullptr; }

  std::vector<float> vector(const std::string& name, int64_t size) {
    const io::TensorInfo* tensor = float_tensor(name, {size});
    if (tensor == nullptr) return {};
    std::vector<float> values(size);
    if (tensor->type == io::TensorType::kF32) {
      std::memcpy(values.data(), tensor->data.data(), size * sizeof(float));
    } else {
      for (int64_t i = 0; i < size; ++i) {
        uint16_t bits;
        std::memcpy(&bits, tensor->data.data() + 2 * i, sizeof(bits));
        values[i] = from_bf16(bits);
      }
    }
    return values;
  }

  // d2t: target id = draft id + d2t[draft id]. Absent, the vocabularies are the same.
  std::vector<int32_t> target_tokens(const Eagle3Config& config) {
    const int64_t drafts = config.draft_vocab_size;
    std::vector<int32_t> tokens(drafts);
    const io::TensorInfo* d2t = storage_.checkpoint.find("d2t");
    if (d2t == nullptr && drafts != config.vocab_size) {
      fail("no tensor \"d2t\", though draft_vocab_size " + std::to_string(drafts) + " differs from vocab_size " +
           std::to_string(config.vocab_size));
      return {};
    }
    if (d2t != nullptr && !checked("d2t", io::TensorType::kI64, {drafts})) return {};
    std::vector<bool> taken(config.vocab_size, false);
    for (int64_t i = 0; i < drafts; ++i) {
      int64_t offset = 0;
      if (d2t != nullptr) std::memcpy(&offset, d2t->data.data() + 8 * i, sizeof(offset));
      // Compared before adding: the offset is untrusted and may be anything.
      if (offset < -i || offset >= config.vocab_size - i) {
        fail("d2t[" + std::to_string(i) + "] = " + std::to_string(offset) + " leads outside the vocabulary of " +
             std::to_string(config.vocab_size) + " tokens");
        return {};
      }
      // Siblings of a tree must differ.
      if (taken[i + offset]) {
        fail("d2t[" + std::to_string(i) + "] = " + std::to_string(offset) + " names token " +
             std::to_string(i + offset) + " a second time");
        return {};
      }
      taken[i + offset] = true;
      tokens[i] = static_cast<int32_t>(i + offset);
    }
    return tokens;
  }

  void refuse_biases() {
    for (const std::string& name : storage_.checkpoint.names()) {
      if (name.ends_with(".bias")) fail("tensor \"" + io::printable(name) + "\": biases are not supported");
    }
  }

  void fail(const std::string& text) {
    if (error_.empty()) error_ = text;
  }
  const std::string& error() const { return error_; }

 private:
  const io::TensorInfo* checked(const std::string& name, io::TensorType type, const io::Shape& shape) {
    const io::Result<const io::TensorInfo*> tensor = storage_.checkpoint.require(name, type, shape);
    if (tensor) return *tensor;
    fail(tensor.error());
    return nullptr;
  }

  const io::TensorInfo* float_tensor(const std::string& name, const io::Shape& shape) {
    const io::TensorInfo* found = storage_.checkpoint.find(name);
    const bool fp32 = found != nullptr && found->type == io::TensorType::kF32;
    return checked(name, fp32 ? io::TensorType::kF32 : io::TensorType::kBF16, shape);
  }

  Eagle3Weights::Storage& storage_;
  std::string error_;
};

}  // namespace

io::Result<Eagle3Weights> Eagle3Weights::load(const std::string& directory, const Eagle3Config& config, int features) {
  io::Result<io::Checkpoint> checkpoint = io::Checkpoint::open(directory);
  if (!checkpoint) return io::Error{checkpoint.error()};
  auto storage = std::make_shared<Storage>(std::move(*checkpoint));
  Reader reader(*storage);
  const int64_t hidden = config.hidden_size;
  const int64_t query_width = int64_t{config.heads} * config.head_dim;
  const int64_t key_width = int64_t{config.kv_heads} * config.head_dim;
  const std::string layer = "midlayer.";
  Eagle3Weights weights;
  weights.fc = reader.matrix("fc.weight", hidden, features * config.target_hidden_size);
  weights.hidden_norm = reader.vector(layer + "hidden_norm.weight", hidden);
  weights.input_norm = reader.vector(layer + "input_layernorm.weight", hidden);
  weights.q_proj = reader.matrix(layer + "self_attn.q_proj.weight", query_width, 2 * hidden);
  weights.k_proj = reader.matrix(layer + "self_attn.k_proj.weight", key_width, 2 * hidden);
  weights.v_proj = reader.matrix(layer + "self_attn.v_proj.weight", key_width, 2 * hidden);
  weights.o_proj = reader.matrix(layer + "self_attn.o_proj.weight", hidden, query_width);
  weights.post_attention_norm = reader.vector(layer + "post_attention_layernorm.weight", hidden);
  weights.gate_proj = reader.matrix(layer + "mlp.gate_proj.weight", config.intermediate_size, hidden);
  weights.up_proj = reader.matrix(layer + "mlp.up_proj.weight", config.intermediate_size, hidden);
  weights.down_proj = reader.matrix(layer + "mlp.down_proj.weight", hidden, config.intermediate_size);
  weights.final_norm = reader.vector("norm.weight", hidden);
  // The target's head and embedding serve where the drafter has none of its own.
  if (reader.has("lm_head.weight") || config.draft_vocab_size != config.vocab_size) {
    weights.lm_head = reader.matrix("lm_head.weight", config.draft_vocab_size, hidden);
  }
  if (reader.has("embed_tokens.weight")) {
    weights.embedding = reader.table("embed_tokens.weight", config.vocab_size, hidden);
  }
  weights.target_token = reader.target_tokens(config);
  reader.refuse_biases();
  if (!reader.error().empty()) {
    return io::Error{directory + ": " + reader.error()};
  }
  weights.storage = std::move(storage);
  return weights;
}

}  // namespace kda::speculation
