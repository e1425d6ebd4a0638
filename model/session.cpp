#include <fmt/format.h>

#include <algorithm>

#include "model/model_impl.h"

namespace kda::model {
namespace {

io::Outcome check_tokens(std::span<const int32_t> tokens, const Config& config) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= config.vocab_size) {
      return io::Error{
          fmt::format("token {}: expected an id from 0 to {}, found {}", i, config.vocab_size - 1, tokens[i])};
    }
  }
  return io::Done{};
}

io::Outcome check_room(int64_t length, int64_t more, const Config& config) {
  if (more <= config.model_max_length - length) return io::Done{};
  return io::Error{
      fmt::format("the sequence would have {} tokens; model_max_length is {}", length + more, config.model_max_length)};
}

}  // namespace

Session::Session(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Session::~Session() = default;

io::Result<std::unique_ptr<Session>> Session::create(const Model& model) {
  try {
    return std::unique_ptr<Session>(new Session(std::make_unique<Impl>(model)));
  } catch (const std::exception& error) {
    return io::Error{error.what()};
  }
}

int64_t Session::length() const { return impl_->length; }

// Runs `body` unless the session is broken, and turns what the library throws into text. `body` changes the states of
// layers one after the other, so a failure within leaves the sequence unusable.
template <class T, class Body>
io::Result<T> Session::guarded(const Body& body) {
  if (impl_->broken) return io::Error{"the session failed in an earlier call; reset it"};
  try {
    return body();
  } catch (const std::exception& error) {
    impl_->broken = true;
    return io::Error{error.what()};
  }
}

io::Result<RowsView> Session::prefill(std::span<const int32_t> tokens, const PrefillOptions& options) {
  Impl& impl = *impl_;
  if (auto ok = check_tokens(tokens, impl.m.config); !ok) return io::Error{ok.error()};
  const auto total = static_cast<int64_t>(tokens.size());
  if (auto ok = check_room(impl.length, total, impl.m.config); !ok) return io::Error{ok.error()};
  return guarded<RowsView>([&]() -> RowsView {
    impl.flush();
    impl.draft_parents.clear();
    RowsView last;
    for (int64_t first = 0; first < total;) {
      const int64_t rows = std::min<int64_t>(total - first, impl.m.options.prefill_chunk);
      impl.run(Pass::extend, tokens.subspan(static_cast<size_t>(first), static_cast<size_t>(rows)), {});
      impl.length += rows;
      PrefillChunk chunk{first + rows, total, first, rows, impl.features(0, rows), {}};
      if (options.all_logits) {
        chunk.logits = impl.compute_logits(0, rows);
        last = {1, chunk.logits.last(static_cast<size_t>(impl.m.config.vocab_size)), impl.features(rows - 1, 1)};
      } else if (chunk.done == total) {
        last = {1, impl.compute_logits(rows - 1, 1), impl.features(rows - 1, 1)};
      }
      if (options.on_chunk && !options.on_chunk(chunk)) return {};
      first += rows;
    }
    return last;
  });
}

io::Result<RowsView> Session::step(int32_t token) {
  Impl& impl = *impl_;
  const std::span<const int32_t> tokens(&token, 1);
  if (auto ok = check_tokens(tokens, impl.m.config); !ok) return io::Error{ok.error()};
  if (auto ok = check_room(impl.length, 1, impl.m.config); !ok) return io::Error{ok.error()};
  return guarded<RowsView>([&]() -> RowsView {
    impl.flush();
    impl.draft_parents.clear();
    impl.run(Pass::decode, tokens, {});
    ++impl.length;
    return {1, impl.compute_logits(0, 1), impl.features(0, 1)};
  });
}

io::Result<RowsView> Session::verify(std::span<const int32_t> tokens, std::span<const int32_t> parents) {
  Impl& impl = *impl_;
  const auto rows = static_cast<int64_t>(tokens.size());
  if (rows < 1 || rows > impl.m.options.max_nodes || parents.size() != tokens.size()) {
    return io::Error{fmt::format("a draft of {} tokens and {} parents: expected as many of both, 1 to {}", rows,
                                 parents.size(), impl.m.options.max_nodes)};
  }
  std::vector<int64_t> depth(tokens.size(), 1);
  int64_t deepest = 0;
  for (int64_t i = 0; i < rows; ++i) {
    const int32_t parent = parents[static_cast<size_t>(i)];
    if (parent < -1 || parent >= i) {
      return io::Error{fmt::format("draft node {}: expected a parent from -1 to {}, found {}", i, i - 1, parent)};
    }
    if (parent >= 0) depth[static_cast<size_t>(i)] = depth[static_cast<size_t>(parent)] + 1;
    deepest = std::max(deepest, depth[static_cast<size_t>(i)]);
  }
  if (auto ok = check_tokens(tokens, impl.m.config); !ok) return io::Error{ok.error()};
  if (auto ok = check_room(impl.length, deepest, impl.m.config); !ok) return io::Error{ok.error()};
  return guarded<RowsView>([&]() -> RowsView {
    impl.draft_parents.clear();
    impl.run(Pass::verify, tokens, parents);
    impl.draft_parents.assign(parents.begin(), parents.end());
    return {rows, impl.compute_logits(0, rows), impl.features(0, rows)};
  });
}

io::Outcome Session::accept(int32_t tip) {
  Impl& impl = *impl_;
  const auto nodes = static_cast<int32_t>(impl.draft_parents.size());
  if (tip < -1 || tip >= nodes) {
    return io::Error{fmt::format("accepted node {}: the last verify has {} nodes to accept", tip, nodes)};
  }
  return guarded<io::Done>([&]() -> io::Done {
    if (tip >= 0) {
      std::vector<int32_t> path;
      for (int32_t node = tip; node >= 0; node = impl.draft_parents[static_cast<size_t>(node)]) path.push_back(node);
      std::reverse(path.begin(), path.end());
      // The path's cache rows close up behind the sequence. A node's index is at least its depth, so ascending copies
      // never overwrite a row that is still to be read.
      const int64_t width = impl.m.config.mla_cache_width();
      for (std::vector<float>& cache : impl.mla_caches) {
        float* const draft = cache.data() + impl.length * width;
        for (size_t depth = 0; depth < path.size(); ++depth) {
          const auto from = static_cast<size_t>(path[depth]);
          if (from != depth)
            std::copy_n(draft + from * static_cast<size_t>(width), width, draft + depth * static_cast<size_t>(width));
        }
      }
      impl.length += static_cast<int64_t>(path.size());
      impl.pool.set_pending(impl.slot, tip, impl.draft_record_row);
    }
    impl.draft_parents.clear();
    return {};
  });
}

io::Outcome Session::flush() {
  return guarded<io::Done>([&]() -> io::Done {
    impl_->flush();
    impl_->draft_parents.clear();
    return {};
  });
}

io::Outcome Session::reset() {
  impl_->broken = false;
  return guarded<io::Done>([&]() -> io::Done {
    impl_->clear_states();
    return {};
  });
}

}  // namespace kda::model
