#include "model/speculation/generate.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>

namespace kda::speculation {

namespace {

// Adds the time between construction and destruction to a sum.
class Timer {
 public:
  explicit Timer(double& sum) : sum_(sum), begin_(std::chrono::steady_clock::now()) {}
  ~Timer() { sum_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count(); }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

 private:
  double& sum_;
  std::chrono::steady_clock::time_point begin_;
};

Sampler sampler_for(const GenerateOptions& options) {
  return options.coin ? Sampler(options.sampler, options.coin) : Sampler(options.sampler);
}

class Generator {
 public:
  Generator(Target& target, Drafter* drafter, const GenerateOptions& options)
      : target_(target), drafter_(drafter), options_(options), sampler_(sampler_for(options)) {}

  io::Result<GenerateResult> run(std::span<const int32_t> prompt) {
    io::Outcome outcome = prefill(prompt);
    if (!outcome) return io::Error{outcome.error()};
    outcome = decode();
    if (!outcome) return io::Error{outcome.error()};
    result_.stats.decode_tokens = std::max<int64_t>(0, static_cast<int64_t>(result_.tokens.size()) - 1);
    return io::Result<GenerateResult>(std::move(result_));
  }

 private:
  bool interrupted() {
    if (!options_.interrupted || !options_.interrupted()) return false;
    result_.finish = Finish::kInterrupted;
    done_ = true;
    return true;
  }

  // Emits the token that follows a row of logits.
  void emit_next(std::span<const float> logits) {
    const int32_t token = sampler_.choose(logits, result_.tokens.size());
    result_.tokens.push_back(token);
    if (options_.on_token) options_.on_token(token);
    if (std::find(options_.eos_tokens.begin(), options_.eos_tokens.end(), token) != options_.eos_tokens.end()) {
      result_.finish = Finish::kEos;
      done_ = true;
    } else if (static_cast<int64_t>(result_.tokens.size()) >= options_.max_new_tokens) {
      result_.finish = Finish::kLength;
      done_ = true;
    }
  }

  io::Outcome prefill(std::span<const int32_t> prompt) {
    const Timer timer(result_.stats.prefill_seconds);
    result_.stats.prompt_tokens = static_cast<int64_t>(prompt.size());
    model::PrefillOptions prefill_options;
    prefill_options.on_chunk = [&](const model::PrefillChunk& chunk) {
      if (drafter_ != nullptr) drafter_->observe(prompt.subspan(chunk.first, chunk.rows), chunk.features);
      if (options_.on_prompt) options_.on_prompt(chunk.done, chunk.total);
      return !interrupted();
    };
    const io::Result<model::RowsView> rows = target_.prefill(prompt, prefill_options);
    if (!rows) return io::Error{rows.error()};
    if (done_) return io::Done{};
    if (options_.max_new_tokens <= 0) {
      done_ = true;
      return io::Done{};
    }
    emit_next(rows->logits_row(rows->rows - 1));
    return io::Done{};
  }

  io::Outcome decode() {
    const Timer timer(result_.stats.decode_seconds);
    while (!done_ && !interrupted()) {
      io::Outcome outcome = drafter_ != nullptr ? round() : step();
      if (!outcome) return outcome;
    }
    return io::Done{};
  }

  io::Outcome step() {
    io::Result<model::RowsView> row = [&] {
      const Timer timer(result_.stats.verify_seconds);
      return target_.step(result_.tokens.back());
    }();
    if (!row) return io::Error{row.error()};
    emit_next(row->logits_row(0));
    return io::Done{};
  }

  io::Outcome round() {
    GenerateStats& stats = result_.stats;
    const DraftTree tree = [&] {
      const Timer timer(stats.draft_seconds);
      return drafter_->propose(result_.tokens.back());
    }();
    io::Result<model::RowsView> rows = [&] {
      const Timer timer(stats.verify_seconds);
      return target_.verify(tree);
    }();
    if (!rows) return io::Error{rows.error()};
    ++stats.verify_rounds;
    stats.drafted_tokens += tree.size() - 1;

    // Down the tree for as long as the token that the target chooses was drafted. The token chosen at the last node is
    // the round's bonus and the root of the next tree.
    path_.assign(1, 0);
    while (!done_) {
      emit_next(rows->logits_row(path_.back()));
      const int child = tree.child_with_token(path_.back(), result_.tokens.back());
      if (child < 0) break;
      path_.push_back(child);
      ++stats.accepted_tokens;
    }
    if (done_) return io::Done{};

    const Timer timer(stats.commit_seconds);
    path_tokens_.clear();
    path_features_.clear();
    for (int node : path_) {
      path_tokens_.push_back(tree.tokens[node]);
      const std::span<const float> features = rows->features_row(node);
      path_features_.insert(path_features_.end(), features.begin(), features.end());
    }
    io::Outcome accepted = target_.accept(path_.back());
    if (!accepted) return accepted;
    drafter_->observe(path_tokens_, path_features_);
    return io::Done{};
  }

  Target& target_;
  Drafter* drafter_;
  const GenerateOptions& options_;
  Sampler sampler_;
  GenerateResult result_;
  bool done_ = false;
  // Scratch of a round.
  std::vector<int> path_;  // accepted nodes, root first
  std::vector<int32_t> path_tokens_;
  std::vector<float> path_features_;
};

}  // namespace

const char* name_of(Finish finish) {
  switch (finish) {
    case Finish::kLength:
      return "length";
    case Finish::kEos:
      return "eos";
    case Finish::kInterrupted:
      return "interrupted";
  }
  return "";
}

double GenerateResult::tokens_per_round() const {
  return stats.verify_rounds == 0 ? 0.0 : static_cast<double>(tokens.size()) / static_cast<double>(stats.verify_rounds);
}

io::Result<GenerateResult> generate(Target& target, Drafter* drafter, std::span<const int32_t> prompt,
                                    const GenerateOptions& options) {
  if (prompt.empty()) return io::Error{"the prompt has no tokens"};
  const std::string wrong = sampler_error(options.sampler);
  if (!wrong.empty()) return io::Error{wrong};
  try {
    return Generator(target, drafter, options).run(prompt);
  } catch (const std::runtime_error& error) {  // from the sampler: a model without a finite logit
    return io::Error{error.what()};
  }
}

}  // namespace kda::speculation
