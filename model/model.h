// A Kimi-Linear model and one sequence running on it. A client of the public kda headers.
//
//   auto model = Model::load("models/demo", {});                     // io::Result: one line of text on failure
//   auto session = Session::create(*model.value());
//   session->prefill(prompt, {});                                    // chunked extend
//   RowsView row = session->step(token).value();                     // plain decoding, or:
//   RowsView rows = session->verify(tokens, parents).value();        // a tree; rows[i] belongs to node i
//   session->accept(tip);                                            // the path root..tip is now the sequence's end
//
// Bits: the row of a token depends on the tokens before it (for a tree node: the sequence and the node's ancestors) and
// on nothing else. step and verify give the same bits for the same path, whatever the shape of the tree or the number
// of rows; see docs/numerics.md, "Matrix products".
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "io/result.h"
#include "kda/kda.h"
#include "model/config.h"
#include "model/matmul.h"
#include "model/threads.h"

namespace kda::model {

struct ModelOptions {
  kda_backend backend = KDA_BACKEND_CPU;  // cpu or reference
  // Of KDA extend (prompts) and of KDA verify. Speculation gives the tokens of plain decoding only with exact verify.
  kda_numerics extend_numerics = KDA_EXACT;
  kda_numerics verify_numerics = KDA_EXACT;
  int threads = 0;          // the caller's included; 0 = one per usable core
  int prefill_chunk = 256;  // most tokens of one extend
  int max_nodes = 64;       // most nodes of one verify, 1..64
  // 0-based layers, ascending: RowsView::features holds the residual stream *entering* each of them. The number of
  // layers itself is allowed and means the stream before the final norm.
  std::vector<int> feature_layers;
};

// Results of some tokens, row-major fp32, owned by the session and valid until its next call.
struct RowsView {
  int64_t rows = 0;
  std::span<const float> logits;    // [rows, vocab_size]
  std::span<const float> features;  // [rows, feature_layers * hidden_size]; empty without feature layers

  std::span<const float> logits_row(int64_t row) const { return slice(logits, row); }
  std::span<const float> features_row(int64_t row) const { return slice(features, row); }

 private:
  std::span<const float> slice(std::span<const float> all, int64_t row) const {
    const size_t width = rows == 0 ? 0 : all.size() / static_cast<size_t>(rows);
    return all.subspan(static_cast<size_t>(row) * width, width);
  }
};

// One chunk of a prompt that has been processed.
struct PrefillChunk {
  int64_t done = 0;                 // tokens of this prefill processed so far, this chunk included
  int64_t total = 0;                // tokens of this prefill
  int64_t first = 0;                // the chunk's first token, counted from the start of this prefill
  int64_t rows = 0;                 // tokens of this chunk
  std::span<const float> features;  // [rows, feature_layers * hidden_size]
  std::span<const float> logits;    // [rows, vocab_size] with PrefillOptions::all_logits, else empty
};

struct PrefillOptions {
  // Called after every chunk, on the calling thread: progress, a drafter's input, interruption. False stops: the
  // sequence then ends with this chunk and prefill returns no rows. May be empty.
  std::function<bool(const PrefillChunk&)> on_chunk;
  bool all_logits = false;  // logits of every token in on_chunk, not only of the last (costs rows * vocab_size)
};

struct ModelWeights;

// Configuration, weights, plan and threads. Immutable after load, shared by any number of sessions; one call at a time
// runs fast, several at once are correct.
class Model {
 public:
  // Reads DIRECTORY/config.json and its safetensors files (one, or many with an index), which stay mapped.
  static io::Result<std::unique_ptr<Model>> load(const std::string& directory, const ModelOptions& options);
  ~Model();
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const Config& config() const;
  const ModelOptions& options() const;  // with defaults filled in
  const ModelWeights& weights() const;
  const Threads& threads() const;  // for work outside the model too, such as a drafter's products
  // What a drafter shares with its target: [vocab_size, hidden_size] both.
  const Matrix& embedding() const;
  const Matrix& lm_head() const;
  // The embedding of each token as fp32, into out [tokens, hidden_size].
  void embed(std::span<const int32_t> tokens, float* out) const;
  // Bytes of weights one decoded token reads (routed experts counted as chosen).
  int64_t bytes_per_token() const;

  struct Impl;
  const Impl& impl() const { return *impl_; }

 private:
  explicit Model(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// One sequence: its KDA states and convolution windows (slots of a kda_pool), its MLA caches and scratch memory.
// Every call checks its arguments; after an error the sequence is as it was, unless the text says otherwise.
class Session {
 public:
  // The model must outlive the session.
  static io::Result<std::unique_ptr<Session>> create(const Model& model);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // Tokens the sequence holds: prefilled, stepped and accepted ones.
  int64_t length() const;

  // Appends tokens. Returns the last token's row, or zero rows if tokens is empty or on_chunk stopped it.
  io::Result<RowsView> prefill(std::span<const int32_t> tokens, const PrefillOptions& options);

  // Appends one token and returns its row.
  io::Result<RowsView> step(int32_t token);

  // Rows of a draft tree that continues the sequence: parents[i] < i is node i's parent, -1 = the sequence's end (node
  // 0 has -1; several roots are allowed). Node i stands at position length() + depth(i). Nothing is appended until
  // accept; a verify without an accept is forgotten by the next call. 1..max_nodes nodes.
  io::Result<RowsView> verify(std::span<const int32_t> tokens, std::span<const int32_t> parents);

  // Appends the path root..tip of the last verify; -1 appends nothing. The KDA states follow with the next verify (its
  // pending commit) or flush.
  io::Outcome accept(int32_t tip);

  // Applies what is pending to the states. step and prefill do it themselves.
  io::Outcome flush();

  // Empties the sequence.
  io::Outcome reset();

 private:
  struct Impl;
  explicit Session(std::unique_ptr<Impl> impl);
  template <class T, class Body>
  io::Result<T> guarded(const Body& body);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kda::model
