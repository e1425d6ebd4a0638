// The tensors of a Kimi-Linear checkpoint, every shape checked against the configuration. Matrices stay as the file
// has them (bf16 or fp32): the embedding is used in place (mapped), those of products are packed (model/panels.h).
// Vectors and convolution weights are small and widened to fp32.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "io/result.h"
#include "io/safetensors.h"
#include "model/config.h"
#include "model/matmul.h"
#include "model/panels.h"

namespace kda::model {

using Floats = std::vector<float>;

struct KdaWeights {
  Matrix q, k, v;   // [heads * dim, hidden]
  Matrix f_a, f_b;  // decay gate: [dim, hidden], [heads * dim, dim]
  Matrix g_a, g_b;  // output gate, as f; with a full-rank gate g_a is empty and g_b [heads * dim, hidden]
  Matrix b;         // [heads, hidden]
  Matrix o;         // [hidden, heads * dim]
  Floats conv;      // [3 * heads * dim, width]: q, k, v
  Floats a_log;     // [heads]
  Floats dt_bias;   // [heads * dim]
  Floats o_norm;    // [dim]
};

struct MlaWeights {
  Matrix q;     // [heads * (nope + rope), hidden]
  Matrix kv_a;  // [lora + rope, hidden]
  Matrix kv_b;  // [heads * (nope + v), lora]: for each head the keys' rows, then the values'; not packed, but:
  std::vector<Matrix> keys;    // [heads] each [lora, nope]: the keys' rows transposed, applied to the query
  std::vector<Matrix> values;  // [heads] each [v, lora]
  Matrix o;                    // [hidden, heads * v]
  Floats kv_a_norm;            // [lora]
};

struct MlpWeights {
  Matrix gate, up;  // [intermediate, hidden]
  Matrix down;      // [hidden, intermediate]
};

struct MoeWeights {
  Matrix router;           // [experts, hidden]
  Floats correction_bias;  // [experts], zeros if the checkpoint has none
  std::vector<MlpWeights> experts;
  MlpWeights shared;  // empty without shared experts
};

struct LayerWeights {
  Floats input_norm, post_norm;  // [hidden]
  KdaWeights kda;                // one of these two, by Config::layer_kinds
  MlaWeights mla;
  MlpWeights mlp;  // one of these two, by Config::is_moe
  MoeWeights moe;
};

struct ModelWeights {
  Matrix embedding, lm_head;  // [vocab, hidden]
  Floats final_norm;          // [hidden]
  std::vector<LayerWeights> layers;

  // Reads DIRECTORY/model.safetensors or the files of its index.
  static io::Result<std::unique_ptr<ModelWeights>> load(const std::string& directory, const Config& config);

  std::vector<io::Checkpoint> files;           // keeps the mappings
  std::vector<std::vector<std::byte>> copies;  // matrices that the file had at an odd address
  PanelStorage panels;                         // packed weights
};

// Finds tensors by name and shape, in a model's checkpoint or a drafter's. The first failure is kept; what is asked for
// after it comes back empty.
class WeightReader {
 public:
  // `copies` receives the matrices that cannot be used in place, `panels` packed weights; all must outlive the
  // matrices.
  WeightReader(const io::Checkpoint& checkpoint, std::vector<std::vector<std::byte>>* copies, PanelStorage* panels)
      : checkpoint_(checkpoint), copies_(copies), panels_(panels) {}

  bool has(const std::string& name) const { return checkpoint_.find(name) != nullptr; }
  // A bf16 or fp32 matrix in place.
  Matrix table(const std::string& name, int64_t outputs, int64_t inputs);
  // The same, packed for products.
  Matrix matrix(const std::string& name, int64_t outputs, int64_t inputs) {
    return packed(table(name, outputs, inputs), panels_);
  }
  PanelStorage* panels() { return panels_; }
  // A small fp32, bf16 or fp16 tensor of one of these shapes, widened.
  Floats floats(const std::string& name, const std::vector<io::Shape>& shapes);
  Floats vector(const std::string& name, int64_t size) { return floats(name, {{size}}); }

  const std::string& error() const { return error_; }

 private:
  const io::TensorInfo* find(const std::string& name, const std::vector<io::Shape>& shapes);

  const io::Checkpoint& checkpoint_;
  std::vector<std::vector<std::byte>>* copies_;
  PanelStorage* panels_;
  std::string error_;
};

}  // namespace kda::model
