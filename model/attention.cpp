#include "model/attention.h"

#include <algorithm>

#include "model/ops.h"
#include "model/scratch.h"
#include "model/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "model/attention.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "model/product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kda::model::HWY_NAMESPACE {

// scores[r * stride + i] = query r . cache row of the i-th index, for `rows` queries. `indices` null: rows from 0 on.
void score_rows(const Attention& a, const float* queries, int64_t rows, const int32_t* indices, int64_t count,
                float* scores, int64_t stride) {
  const float* keys[4];
  for (int64_t i = 0; i < count; i += 4) {
    const int64_t block = std::min<int64_t>(4, count - i);
    for (int64_t c = 0; c < 4; ++c) {
      const int64_t at = i + std::min(c, block - 1);
      keys[c] = a.cache + (indices == nullptr ? at : indices[at]) * a.cache_stride;
    }
    for (int64_t row = 0; row < rows; row += kMaxRowBlock) {
      dot_rows(std::min<int64_t>(kMaxRowBlock, rows - row), queries + row * a.width, a.width, keys, block, a.width,
               {scores + row * stride + i, stride, false});
    }
  }
}

// out[r] (+)= sum over i of weights[r * stride + i] * value of the i-th row, i ascending, for R queries.
template <int R>
HWY_INLINE void add_values(const Attention& a, const float* weights, int64_t stride, const int32_t* indices,
                           int64_t count, bool first, float* out) {
  constexpr int kVectors = kLanes == 16 ? 4 : 2;
  for (int64_t j = 0; j < a.value_width; j += kVectors * kLanes) {
    FloatVec acc[R][kVectors];
    // Vectors that reach beyond the values are worked on in copies.
    const bool whole = j + kVectors * kLanes <= a.value_width;
    HWY_ALIGN float padded[kVectors * kLanes] = {};
    const int64_t live = std::min<int64_t>(kVectors * kLanes, a.value_width - j);
    KDA_UNROLL for (int r = 0; r < R; ++r) {
      const float* from = out + r * a.value_width + j;
      if (!whole) std::copy(from, from + live, padded);
      KDA_UNROLL for (int v = 0; v < kVectors; ++v) {
        acc[r][v] = first ? hn::Zero(Floats()) : load((whole ? from : padded) + v * kLanes);
      }
    }
    for (int64_t i = 0; i < count; ++i) {
      const float* value = a.cache + (indices == nullptr ? i : indices[i]) * a.cache_stride + a.value_offset + j;
      if (!whole) {
        std::copy(value, value + live, padded);
        value = padded;
      }
      FloatVec vv[kVectors];
      KDA_UNROLL for (int v = 0; v < kVectors; ++v) vv[v] = load(value + v * kLanes);
      KDA_UNROLL for (int r = 0; r < R; ++r) {
        const FloatVec w = hn::Set(Floats(), weights[r * stride + i]);
        KDA_UNROLL for (int v = 0; v < kVectors; ++v) acc[r][v] = hn::MulAdd(w, vv[v], acc[r][v]);
      }
    }
    KDA_UNROLL for (int r = 0; r < R; ++r) {
      float* to = out + r * a.value_width + j;
      KDA_UNROLL for (int v = 0; v < kVectors; ++v) {
        if (whole) {
          hn::StoreU(acc[r][v], Floats(), to + v * kLanes);
        } else {
          hn::StoreU(acc[r][v], Floats(), padded + v * kLanes);
        }
      }
      if (!whole) std::copy(padded, padded + live, to);
    }
  }
}

struct Path {
  const int32_t* indices;
  int64_t count;
};
HWY_INLINE Path path_of(const Attention& a, int64_t query) {
  const auto row = static_cast<size_t>(query / a.heads);
  return {a.path.data() + a.path_begin[row], a.path_begin[row + 1] - a.path_begin[row]};
}

// How many first entries the paths of all query heads [begin, end) share.
int64_t shared_path(const Attention& a, int64_t begin, int64_t end) {
  const Path first = path_of(a, begin);
  int64_t shared = first.count;
  for (int64_t q = begin + 1; q < end; ++q) {
    const Path other = path_of(a, q);
    shared = std::min(shared, other.count);
    shared = std::mismatch(first.indices, first.indices + shared, other.indices).first - first.indices;
  }
  return shared;
}

// Query heads [begin, end) of all rows * heads: together over what all of them see, then each over the rest of its
// path.
void attention_part(const Attention& a, int64_t begin, int64_t end) {
  int64_t longest = 0;
  for (int64_t q = begin; q < end; ++q) longest = std::max(longest, path_of(a, q).count);
  const int64_t stride = a.common + longest, count = end - begin;
  const int64_t shared = shared_path(a, begin, end), together = a.common + shared;
  const int32_t* shared_indices = path_of(a, begin).indices;
  static thread_local std::vector<float> buffer;  // one a thread, grown to the longest sequence
  float* const scores = at_least(&buffer, stride * count);
  const auto scores_of = [&](int64_t q) { return scores + (q - begin) * stride; };
  const auto values_of = [&](int64_t q) { return a.out + q * a.value_width; };

  const float* queries = a.queries + begin * a.width;
  score_rows(a, queries, count, nullptr, a.common, scores, stride);
  score_rows(a, queries, count, shared_indices, shared, scores + a.common, stride);
  for (int64_t q = begin; q < end; ++q) {
    const Path path = path_of(a, q);
    score_rows(a, a.queries + q * a.width, 1, path.indices + shared, path.count - shared, scores_of(q) + together,
               stride);
    softmax(scores_of(q), a.scale, a.common + path.count);
  }
  constexpr int kTogether = 4;
  int64_t q = begin;
  for (; q + kTogether <= end; q += kTogether) {
    add_values<kTogether>(a, scores_of(q), stride, nullptr, a.common, true, values_of(q));
    add_values<kTogether>(a, scores_of(q) + a.common, stride, shared_indices, shared, false, values_of(q));
  }
  for (; q < end; ++q) {
    add_values<1>(a, scores_of(q), stride, nullptr, a.common, true, values_of(q));
    add_values<1>(a, scores_of(q) + a.common, stride, shared_indices, shared, false, values_of(q));
  }
  for (q = begin; q < end; ++q) {
    const Path path = path_of(a, q);
    if (path.count == shared) continue;
    add_values<1>(a, scores_of(q) + together, stride, path.indices + shared, path.count - shared, false, values_of(q));
  }
}

}  // namespace kda::model::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kda::model {
HWY_EXPORT(attention_part);

void run_attention(const Threads& threads, const Attention& attention) {
  // Query heads that are worked on together share each read of the cache; few enough that all threads have some.
  constexpr int64_t kMostTogether = 24;
  const int64_t queries = attention.rows * attention.heads;
  const int64_t share = (queries + threads.count() - 1) / threads.count();
  const int64_t together = std::clamp<int64_t>(share, 1, kMostTogether);
  threads.parallel_for((queries + together - 1) / together, [&](int64_t piece) {
    HWY_DYNAMIC_DISPATCH(attention_part)
    (attention, piece * together, std::min((piece + 1) * together, queries));
  });
}

}  // namespace kda::model
#endif  // HWY_ONCE
