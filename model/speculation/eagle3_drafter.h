// EAGLE-3: one decoder layer that reads the target's features and the next token's embedding, and drafts a tree.
//
// Row t of its sequence joins the target's feature of token t with the embedding of token t + 1, at rotary position t,
// and predicts token t + 2. Inside a tree the target's feature is not known yet: the drafter's own output stands in.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "io/result.h"
#include "model/model.h"
#include "model/speculation/drafter.h"
#include "model/speculation/eagle3_config.h"
#include "model/speculation/eagle3_weights.h"

namespace kda::speculation {

// What a drafter uses of its target. Everything must outlive the drafter.
struct Eagle3Target {
  const model::Threads* threads = nullptr;
  int64_t hidden_size = 0;
  int64_t vocab_size = 0;
  int feature_layers = 0;  // feature width = feature_layers * hidden_size
  model::Matrix embedding, lm_head;

  static Eagle3Target of(const model::Model& target);
};

class Eagle3Drafter : public Drafter {
 public:
  // A checkpoint directory in EAGLE-3 form. One line of text on failure.
  static io::Result<std::unique_ptr<Eagle3Drafter>> load(const std::string& directory, const Eagle3Target& target,
                                                         const TreeShape& shape);

  void reset() override;
  void observe(std::span<const int32_t> tokens, std::span<const float> features) override;
  DraftTree propose(int32_t root) override;

  // Logits over the draft vocabulary [tokens - 1, draft vocabulary] of a whole sequence given at once: row t joins
  // feature t with token t + 1. Forgets the sequence before and after.
  std::vector<float> sequence_logits(std::span<const int32_t> tokens, std::span<const float> features);

  // Rows of true features in the drafter's own cache.
  int64_t length() const { return length_; }
  const Eagle3Config& config() const { return config_; }

 private:
  // Rows to run through the layer. All of them see the first `length_` rows of the cache.
  struct Batch {
    std::vector<float> hidden;       // [rows, hidden] in: projected features; out: the layer's output
    std::vector<int32_t> tokens;     // [rows]
    std::vector<int64_t> positions;  // [rows] rotary
    // [rows] what each row sees beyond the first length_ rows: indices from length_ on, its own included. Empty: the
    // rows follow the cache as a sequence.
    std::vector<std::vector<int>> visible;

    int64_t rows() const { return static_cast<int64_t>(tokens.size()); }
  };

  Eagle3Drafter(Eagle3Config config, Eagle3Weights weights, const Eagle3Target& target, const TreeShape& shape);

  // Stores the rows' keys and values at cache rows first_row and after, and replaces the last `outputs` rows of
  // batch.hidden by the layer's output. Keys and values come from the inputs alone, so rows that nothing is drafted
  // from need no more.
  void forward(Batch& batch, int64_t first_row, int64_t outputs);
  // Fills attention_ [outputs, heads, head_dim].
  void attend(const Batch& batch, int64_t first_row, int64_t outputs);
  void store_keys_and_values(const Batch& batch, int64_t first_row);
  // Rotary position on pairs (i, i + head_dim / 2), as Llama has them.
  void rotate(float* x, int64_t position);
  // Fills logits_ [rows, draft vocabulary] from layer outputs.
  void logits_of(const float* hidden, int64_t rows);
  // Adds the topk most likely tokens of row `row` of logits_ as children of candidate `parent`.
  void add_children(CandidatePool& pool, int parent, int64_t row);

  // Projects features and queues the rows whose next token is known by now.
  void enqueue(std::span<const int32_t> tokens, std::span<const float> features);
  enum class Outputs { kNone, kLast, kAll };
  // Moves queued rows into the cache. The outputs wanted go to outputs_ [1 or rows, hidden].
  void run_queue(Outputs wanted);
  void ensure_capacity(int64_t rows);

  Eagle3Config config_;
  Eagle3Weights weights_;
  Eagle3Target target_;
  TreeShape shape_;

  std::vector<float> cache_;  // [kv heads][capacity, 2 * head_dim] key | value
  int64_t capacity_ = 0;
  int64_t length_ = 0;

  std::vector<float> queued_features_;  // [features, hidden] projected, of tokens that are not rows of the cache yet
  std::vector<int32_t> queued_tokens_;  // the token after each; one less than features while the next is not known
  std::vector<float> outputs_;          // of the last run_queue

  std::vector<double> frequencies_;     // [head_dim / 2] rotary, a position
  std::vector<float> cosines_, sines_;  // [head_dim / 2] at rotary_position_
  int64_t rotary_position_ = -1;

  // Scratch, grown on demand.
  std::vector<float> joined_, q_, k_, v_, queries_, attended_, attention_, normed_, gate_, up_, logits_,
      weights_of_row_;
  std::vector<int32_t> best_, path_, path_begin_;
};

}  // namespace kda::speculation
