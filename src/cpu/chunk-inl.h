// A chunk of tokens of one value head in the chunked form: what the tokens do to one another is computed from keys
// alone, so that the state is read once and written once a chunk, by matrix products. Compiled once per target.
//
// With d_t = exp(g_t) per key channel and S_0 the state before the chunk, both without a division or a difference of
// sums of gates, so that every gate from 0 to -inf is exact:
//   W_i    = k_i * d_{i+1} * ... * d_t                       what is left of key i after token t
//   A[t,i] = (d_t k_t) . W_i,  B[t,i] = (d_t q_t) . W_i      (W_i after token t-1)
//   u_t    = beta_t (v_t - S_0 (E_t k_t) - sum_{i<t} A[t,i] u_i)             E_t = d_1 * ... * d_t
//   out_t  = S_0 (E_t q_t) + sum_{i<t} B[t,i] u_i + (k_t.q_t) u_t
//   S_n    = S_0 E_n + sum_i u_i W_i^T                                        (W_i after the last token)
// Every sum runs in one order that does not depend on later tokens, on the number of tokens or on the columns taken
// together.
#if defined(KDA_CPU_CHUNK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef KDA_CPU_CHUNK_INL_H_
#undef KDA_CPU_CHUNK_INL_H_
#else
#define KDA_CPU_CHUNK_INL_H_
#endif

#include "cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
KDA_BEFORE_BODY
namespace kda::cpu {
namespace KDA_TARGET_NAMESPACE {

// kRows rows by kColumns vectors of sums in registers: 16 of 32 registers with AVX-512 and NEON, 8 of 16 with AVX2.
constexpr int kProductRows = 4;
constexpr int kProductColumns = HWY_TARGET == HWY_AVX2 ? 2 : 4;

// Lanes 0..kCount-1: the lane sums of v[0..kCount), in the canonical order (see LaneSum).
template <int kCount>
HWY_INLINE void StoreLaneSums(VF* v, float* to) {
  if constexpr (kCount <= kLanes) {
    int vectors = kCount;
#if defined(__GNUC__)
#pragma GCC unroll 8
#endif
    for (int n = kLanes; n > 1; n /= 2) {
      if (vectors == 1) {
        v[0] = PairSums(v[0], v[0]);
        continue;
      }
      vectors /= 2;
      for (int i = 0; i < vectors; ++i) v[i] = PairSums(v[2 * i], v[2 * i + 1]);
    }
    HWY_ALIGN float sums[kLanes];
    StoreVector(v[0], sums);
    for (int i = 0; i < kCount; ++i) to[i] = sums[i];
  } else {
    for (int i = 0; i < kCount; ++i) to[i] = LaneSum(v[i]);
  }
}

// A and B of token t against tokens [first, first + kCount), which then lose token t's decay.
template <int kCount>
HWY_INLINE void MixBlock(const ChunkArgs& args, int t, int first) {
  const F d;
  const PreparedToken& token = args.tokens[t];
  VF sums[2 * kCount];
  Unroll<2 * kCount>([&](auto i) HWY_ATTR { sums[i] = hn::Zero(d); });
  float* keys[kCount];
  for (int i = 0; i < kCount; ++i) keys[i] = args.tokens[first + i].key;
  for (int64_t k = 0; k < args.key_padded; k += kLanes) {
    const VF decay = LoadVector(token.decay + k);
    const VF key = LoadVector(token.decayed_key + k), query = LoadVector(token.decayed_query + k);
    Unroll<kCount>([&](auto i) HWY_ATTR {
      const VF w = LoadVector(keys[i] + k);
      sums[i] = hn::MulAdd(key, w, sums[i]);
      sums[kCount + i] = hn::MulAdd(query, w, sums[kCount + i]);
      StoreVector(hn::Mul(w, decay), keys[i] + k);
    });
  }
  float both[2 * kCount];
  StoreLaneSums<2 * kCount>(sums, both);
  for (int i = 0; i < kCount; ++i) {
    args.key_mix[t * kChunkTokens + first + i] = both[i];
    args.query_mix[t * kChunkTokens + first + i] = both[kCount + i];
  }
}

void MixChunk(const ChunkArgs& args) {
  const F d;
  float* total = args.total_decay;
  for (int64_t k = 0; k < args.key_padded; k += kLanes) StoreVector(hn::Set(d, 1.0f), total + k);
  for (int t = 0; t < args.count; ++t) {
    const PreparedToken& token = args.tokens[t];
    int i = 0;
    for (; i + 8 <= t; i += 8) MixBlock<8>(args, t, i);
    for (; i + 4 <= t; i += 4) MixBlock<4>(args, t, i);
    for (; i + 2 <= t; i += 2) MixBlock<2>(args, t, i);
    for (; i < t; ++i) MixBlock<1>(args, t, i);
    for (int64_t k = 0; k < args.key_padded; k += kLanes) {
      const VF before = LoadVector(total + k);
      StoreVector(hn::Mul(before, LoadVector(token.decayed_key + k)), token.decayed_key + k);
      StoreVector(hn::Mul(before, LoadVector(token.decayed_query + k)), token.decayed_query + k);
      StoreVector(hn::Mul(before, LoadVector(token.decay + k)), total + k);
    }
  }
}

// to[r][columns] = sum over k of factors[r][k] * state[k][columns], for rows a common stride apart.
template <int kRows, int kColumns>
HWY_INLINE void StateProduct(const ChunkArgs& args, const float* factors, float* to, int64_t column) {
  const F d;
  VF sums[kRows * kColumns];
  Unroll<kRows * kColumns>([&](auto i) HWY_ATTR { sums[i] = hn::Zero(d); });
  const float* state = args.state + column;
  for (int64_t k = 0; k < args.key_padded; ++k, state += args.state_stride) {
    VF s[kColumns];
    Unroll<kColumns>([&](auto c) HWY_ATTR { s[c] = LoadVector(state + c * kLanes); });
    Unroll<kRows>([&](auto r) HWY_ATTR {
      const VF factor = hn::Set(d, factors[r * args.token_stride + k]);
      Unroll<kColumns>([&](auto c)
                           HWY_ATTR { sums[r * kColumns + c] = hn::MulAdd(factor, s[c], sums[r * kColumns + c]); });
    });
  }
  Unroll<kRows>([&](auto r) HWY_ATTR {
    Unroll<kColumns>([&](auto c) HWY_ATTR {
      StoreVector(sums[r * kColumns + c], to + r * args.token_stride + column + c * kLanes);
    });
  });
}

template <int kColumns>
HWY_INLINE void StateProducts(const ChunkArgs& args, int64_t column) {
  int t = 0;
  for (; t + kProductRows <= args.count; t += kProductRows) {
    StateProduct<kProductRows, kColumns>(args, args.tokens[t].decayed_key, args.tokens[t].correction, column);
    StateProduct<kProductRows, kColumns>(args, args.tokens[t].decayed_query, args.tokens[t].out, column);
  }
  for (; t < args.count; ++t) {
    StateProduct<1, kColumns>(args, args.tokens[t].decayed_key, args.tokens[t].correction, column);
    StateProduct<1, kColumns>(args, args.tokens[t].decayed_query, args.tokens[t].out, column);
  }
}

// Predictions and query sums become corrections and outputs, token by token.
template <int kColumns>
HWY_INLINE void SolveChunk(const ChunkArgs& args, int64_t column) {
  const F d;
  for (int t = 0; t < args.count; ++t) {
    const PreparedToken& token = args.tokens[t];
    VF prediction[kColumns], out[kColumns];
    Unroll<kColumns>([&](auto c) HWY_ATTR {
      prediction[c] = LoadVector(token.correction + column + c * kLanes);
      out[c] = LoadVector(token.out + column + c * kLanes);
    });
    const float* correction = args.tokens[0].correction + column;
    for (int i = 0; i < t; ++i, correction += args.token_stride) {
      const VF key_mix = hn::Set(d, args.key_mix[t * kChunkTokens + i]);
      const VF query_mix = hn::Set(d, args.query_mix[t * kChunkTokens + i]);
      Unroll<kColumns>([&](auto c) HWY_ATTR {
        const VF u = LoadVector(correction + c * kLanes);
        prediction[c] = hn::MulAdd(key_mix, u, prediction[c]);
        out[c] = hn::MulAdd(query_mix, u, out[c]);
      });
    }
    const VF beta = hn::Set(d, token.beta), key_query = hn::Set(d, token.key_query);
    Unroll<kColumns>([&](auto c) HWY_ATTR {
      const VF u = hn::Mul(beta, hn::Sub(LoadVector(token.value + column + c * kLanes), prediction[c]));
      StoreVector(u, token.correction + column + c * kLanes);
      StoreVector(hn::MulAdd(key_query, u, out[c]), token.out + column + c * kLanes);
    });
  }
}

template <int kColumns>
HWY_INLINE void UpdateState(const ChunkArgs& args, int64_t column) {
  const F d;
  static_assert(kKeyMultiple % kProductRows == 0);
  for (int64_t k = 0; k < args.key_padded; k += kProductRows) {
    float* state = args.state + k * args.state_stride + column;
    VF s[kProductRows * kColumns];
    Unroll<kProductRows>([&](auto r) HWY_ATTR {
      const VF decay = hn::Set(d, args.total_decay[k + r]);
      Unroll<kColumns>([&](auto c) HWY_ATTR {
        s[r * kColumns + c] = hn::Mul(decay, LoadVector(state + r * args.state_stride + c * kLanes));
      });
    });
    const float *key = args.tokens[0].key + k, *correction = args.tokens[0].correction + column;
    for (int t = 0; t < args.count; ++t, key += args.token_stride, correction += args.token_stride) {
      VF u[kColumns];
      Unroll<kColumns>([&](auto c) HWY_ATTR { u[c] = LoadVector(correction + c * kLanes); });
      Unroll<kProductRows>([&](auto r) HWY_ATTR {
        const VF factor = hn::Set(d, key[r]);
        Unroll<kColumns>([&](auto c) HWY_ATTR { s[r * kColumns + c] = hn::MulAdd(factor, u[c], s[r * kColumns + c]); });
      });
    }
    Unroll<kProductRows>([&](auto r) HWY_ATTR {
      Unroll<kColumns>([&](auto c)
                           HWY_ATTR { StoreVector(s[r * kColumns + c], state + r * args.state_stride + c * kLanes); });
    });
  }
}

template <int kColumns>
HWY_INLINE void RunColumns(const ChunkArgs& args, int64_t column) {
  StateProducts<kColumns>(args, column);
  SolveChunk<kColumns>(args, column);
  UpdateState<kColumns>(args, column);
}

void SolveWholeChunk(const ChunkArgs& args) {
  int64_t column = args.first_column;
  const int64_t end = args.first_column + args.columns;
  for (; column + kProductColumns * kLanes <= end; column += kProductColumns * kLanes) {
    SolveChunk<kProductColumns>(args, column);
  }
  for (; column < end; column += kLanes) SolveChunk<1>(args, column);
}

void RunChunk(const ChunkArgs& args) {
  int64_t column = args.first_column;
  const int64_t end = args.first_column + args.columns;
  for (; column + kProductColumns * kLanes <= end; column += kProductColumns * kLanes) {
    RunColumns<kProductColumns>(args, column);
  }
  for (; column < end; column += kLanes) RunColumns<1>(args, column);
}

// A block of 4 rows and columns.
HWY_INLINE void TransposeFour(const float* from, int64_t from_stride, float* to, int64_t to_stride) {
#if HWY_TARGET == HWY_SCALAR
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 4; ++j) to[j * to_stride + i] = from[i * from_stride + j];
  }
#else
  const hn::CappedTag<float, 4> d;
  const hn::RepartitionToWide<decltype(d)> pairs;
  const auto row0 = hn::LoadU(d, from), row1 = hn::LoadU(d, from + from_stride);
  const auto row2 = hn::LoadU(d, from + 2 * from_stride), row3 = hn::LoadU(d, from + 3 * from_stride);
  const auto low01 = hn::BitCast(pairs, hn::InterleaveLower(d, row0, row1));
  const auto low23 = hn::BitCast(pairs, hn::InterleaveLower(d, row2, row3));
  const auto high01 = hn::BitCast(pairs, hn::InterleaveUpper(d, row0, row1));
  const auto high23 = hn::BitCast(pairs, hn::InterleaveUpper(d, row2, row3));
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(pairs, low01, low23)), d, to);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(pairs, low01, low23)), d, to + to_stride);
  hn::StoreU(hn::BitCast(d, hn::InterleaveLower(pairs, high01, high23)), d, to + 2 * to_stride);
  hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(pairs, high01, high23)), d, to + 3 * to_stride);
#endif
}

#if HWY_TARGET == HWY_AVX3
// A block of 16: within blocks of 4 columns first, then the blocks (4.5 times as fast as 16 blocks of 4).
HWY_INLINE void TransposeSixteen(const float* from, int64_t from_stride, float* to, int64_t to_stride) {
  __m512 rows[16], turned[16];
  Unroll<16>([&](auto r) HWY_ATTR { rows[r] = _mm512_loadu_ps(from + r * from_stride); });
  Unroll<8>([&](auto i) HWY_ATTR {
    turned[2 * i] = _mm512_unpacklo_ps(rows[2 * i], rows[2 * i + 1]);
    turned[2 * i + 1] = _mm512_unpackhi_ps(rows[2 * i], rows[2 * i + 1]);
  });
  Unroll<4>([&](auto i) HWY_ATTR {
    const auto pairs = [&](int index) HWY_ATTR { return _mm512_castps_pd(turned[4 * i + index]); };
    rows[4 * i] = _mm512_castpd_ps(_mm512_unpacklo_pd(pairs(0), pairs(2)));
    rows[4 * i + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(pairs(0), pairs(2)));
    rows[4 * i + 2] = _mm512_castpd_ps(_mm512_unpacklo_pd(pairs(1), pairs(3)));
    rows[4 * i + 3] = _mm512_castpd_ps(_mm512_unpackhi_pd(pairs(1), pairs(3)));
  });
  constexpr int kEven = 0x88, kOdd = 0xdd;
  Unroll<4>([&](auto i) HWY_ATTR {
    const __m512 even = _mm512_shuffle_f32x4(rows[i], rows[i + 4], kEven);
    const __m512 odd = _mm512_shuffle_f32x4(rows[i], rows[i + 4], kOdd);
    const __m512 more_even = _mm512_shuffle_f32x4(rows[i + 8], rows[i + 12], kEven);
    const __m512 more_odd = _mm512_shuffle_f32x4(rows[i + 8], rows[i + 12], kOdd);
    _mm512_storeu_ps(to + i * to_stride, _mm512_shuffle_f32x4(even, more_even, kEven));
    _mm512_storeu_ps(to + (i + 4) * to_stride, _mm512_shuffle_f32x4(odd, more_odd, kEven));
    _mm512_storeu_ps(to + (i + 8) * to_stride, _mm512_shuffle_f32x4(even, more_even, kOdd));
    _mm512_storeu_ps(to + (i + 12) * to_stride, _mm512_shuffle_f32x4(odd, more_odd, kOdd));
  });
}
#endif

// to[c][r] = from[r][c]; rows and columns are multiples of 4.
void Transpose(const float* from, int64_t from_stride, int64_t rows, int64_t columns, float* to, int64_t to_stride) {
  int64_t turned_rows = 0, turned_columns = 0;  // by larger blocks
#if HWY_TARGET == HWY_AVX3
  turned_rows = rows / 16 * 16;
  turned_columns = columns / 16 * 16;
  for (int64_t r = 0; r < turned_rows; r += 16) {
    for (int64_t c = 0; c < turned_columns; c += 16) {
      TransposeSixteen(from + r * from_stride + c, from_stride, to + c * to_stride + r, to_stride);
    }
  }
#endif
  for (int64_t r = 0; r < rows; r += 4) {
    for (int64_t c = r < turned_rows ? turned_columns : 0; c < columns; c += 4) {
      TransposeFour(from + r * from_stride + c, from_stride, to + c * to_stride + r, to_stride);
    }
  }
}

// NOLINTNEXTLINE(google-readability-namespace-comments)
}  // namespace KDA_TARGET_NAMESPACE
}  // namespace kda::cpu
HWY_AFTER_NAMESPACE();
#endif
