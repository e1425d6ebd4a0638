// The target AVX512_BF16 with the state products of a chunk (chunk-inl.h) on the matrix tiles of AMX: a tile
// instruction is 8192 multiply-adds of bf16 in 16 cycles, 16 times those of two fp32 units. Every factor is split into
// a bf16 number and a bf16 remainder, so that the products keep 16 bits: what fast numerics promise for fp32 inputs
// too.
#include "cpu/target_avx512_amx.h"

#if KDA_WITH_AVX512_AMX

#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,amx-tile,amx-bf16")

#include <immintrin.h>

namespace kda::cpu {
namespace {

constexpr int kTileRows = 16;   // rows of a tile, and 32-bit columns
constexpr int kTilePairs = 16;  // pairs of bf16 in a row of a tile: the products' inner dimension is 32
constexpr int kTileBytes = 64;  // of a row
constexpr int kStripsAtOnce = 2;
constexpr int kStrip = 16;  // value columns of a tile
static_assert(kChunkTokens == kTileRows);

// A tile register's shape, as the processor reads it.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// Tile instructions are opaque to the compiler: it must neither move what they read behind them nor keep what they
// write.
inline void tile_fence() { asm volatile("" ::: "memory"); }

inline __m512i bits(__m512 v) { return _mm512_castps_si512(v); }
inline __m512 high_part(__m512 v) {
  return _mm512_castsi512_ps(_mm512_and_si512(bits(v), _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
}
// Lanes: a's upper 16 bits below b's: a pair of bf16 (cut, not rounded).
inline __m512i pair(__m512 a, __m512 b) {
  constexpr int kFirstOrMaskedSecond = 0xf8;  // x | (y & z)
  return _mm512_ternarylogic_epi32(_mm512_srli_epi32(bits(a), 16), bits(b),
                                   _mm512_set1_epi32(static_cast<int>(0xffff0000u)), kFirstOrMaskedSecond);
}
inline void store_pairs(__m512 a, __m512 b, uint32_t* high, uint32_t* low) {
  _mm512_storeu_si512(high, pair(a, b));
  _mm512_storeu_si512(low, pair(_mm512_sub_ps(a, high_part(a)), _mm512_sub_ps(b, high_part(b))));
}

// 16 by 16 numbers of 32 bits.
inline void transpose(__m512i* v) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    v[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    v[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    v[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    v[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_i32x4(v[i], v[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_i32x4(v[i], v[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_i32x4(v[i + 8], v[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_i32x4(v[i + 8], v[i + 12], 0xdd);
  }
  for (int i = 0; i < 4; ++i) {
    v[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
    v[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
    v[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
    v[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
  }
}

// A lane's chunk scratch as the operands of the products. Inner dimensions are padded to whole tiles with zeros.
struct Operands {
  static constexpr int kFactors = 4;  // high and low parts of keys, of queries
  static constexpr int64_t kTileWords = kTileRows * kStrip;
  int64_t key_pairs;      // pairs of key channels, padded
  uint32_t* factors;      // [4][tokens][key_pairs]
  uint32_t* keys;         // [K][pairs of tokens: 8 high, 8 low]
  uint32_t* strips;       // [2 strips][high, low][key_pairs][16 columns]
  uint32_t* corrections;  // [high, low][pairs of tokens, twice][16 columns]

  explicit Operands(const ChunkArgs& args)
      : key_pairs(padded_pairs(args.key_padded)),
        factors(reinterpret_cast<uint32_t*>(args.scratch)),
        keys(factors + kFactors * kChunkTokens * key_pairs),
        strips(keys + args.key_padded * kTilePairs),
        corrections(strips + kStripsAtOnce * 2 * key_pairs * kStrip) {}

  static constexpr int64_t padded_pairs(int64_t key_padded) { return (key_padded + 31) / 32 * kTilePairs; }
  static constexpr int64_t words(int64_t key_padded) {
    return (kFactors * kChunkTokens + kStripsAtOnce * 2 * kStrip) * padded_pairs(key_padded) + key_padded * kTilePairs +
           2 * kTileWords;
  }

  uint32_t* factor(int kind, int64_t token) const { return factors + (kind * kChunkTokens + token) * key_pairs; }
  uint32_t* strip(int index, int part) const { return strips + (index * 2 + part) * key_pairs * kStrip; }
};

void split_factors(const ChunkArgs& args, const Operands& to) {
  for (int t = 0; t < kChunkTokens; ++t) {
    for (int query = 0; query < 2; ++query) {
      uint16_t* high = reinterpret_cast<uint16_t*>(to.factor(2 * query, t));
      uint16_t* low = reinterpret_cast<uint16_t*>(to.factor(2 * query + 1, t));
      if (t >= args.count) {
        std::memset(high, 0, to.key_pairs * sizeof(uint32_t));
        std::memset(low, 0, to.key_pairs * sizeof(uint32_t));
        continue;
      }
      const float* from = query != 0 ? args.tokens[t].decayed_query : args.tokens[t].decayed_key;
      for (int64_t k = 0; k < 2 * to.key_pairs; k += 16) {
        const __m512 x = k < args.key_padded ? _mm512_loadu_ps(from + k) : _mm512_setzero_ps();
        const __m256i rounded = reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x));
        const __m512 rest =
            _mm512_sub_ps(x, _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(rounded), 16)));
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(high + k), rounded);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(low + k), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(rest)));
      }
    }
  }
}

// Parts of one strip of the state, which then loses the chunk's decay.
void split_strip(const ChunkArgs& args, const Operands& to, int index, int64_t column) {
  uint32_t *high = to.strip(index, 0), *low = to.strip(index, 1);
  const int64_t key_padded = args.key_padded, stride = args.state_stride;
  const float* decay = args.total_decay;
  float* state = args.state + column;
  for (int64_t k = 0; k < key_padded; k += 2, state += 2 * stride, high += kStrip, low += kStrip) {
    const __m512 a = _mm512_loadu_ps(state), b = _mm512_loadu_ps(state + stride);
    store_pairs(a, b, high, low);
    _mm512_storeu_ps(state, _mm512_mul_ps(a, _mm512_set1_ps(decay[k])));
    _mm512_storeu_ps(state + stride, _mm512_mul_ps(b, _mm512_set1_ps(decay[k + 1])));
  }
  const int64_t rest = to.key_pairs - args.key_padded / 2;
  if (rest > 0) {
    std::memset(high, 0, rest * kTileBytes);
    std::memset(low, 0, rest * kTileBytes);
  }
}

// Predictions and query sums of one strip, or of two side by side. Two strips' four sums take turns, so that none waits
// for itself (an instruction starts every 16 cycles and ends after 52).
template <int kStrips>
void multiply_strips(const ChunkArgs& args, const Operands& from, int64_t column) {
  constexpr bool kBoth = kStrips == 2;
  const int64_t factor_stride = from.key_pairs * static_cast<int64_t>(sizeof(uint32_t));
  tile_fence();
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t p = 0; p < from.key_pairs; p += kTilePairs) {
    const auto strip = [&](int s, int part) { return from.strip(s, part) + p * kStrip; };
    _tile_loadd(4, strip(0, 0), kTileBytes);
    if constexpr (kBoth) _tile_loadd(5, strip(1, 0), kTileBytes);
    // Low parts of the factors first: the high ones are then at hand for the low parts of the state.
    for (const int part : {1, 0}) {
      _tile_loadd(6, from.factor(part, 0) + p, factor_stride);
      _tile_dpbf16ps(0, 6, 4);
      if constexpr (kBoth) _tile_dpbf16ps(1, 6, 5);
      _tile_loadd(7, from.factor(2 + part, 0) + p, factor_stride);
      _tile_dpbf16ps(2, 7, 4);
      if constexpr (kBoth) _tile_dpbf16ps(3, 7, 5);
    }
    _tile_loadd(4, strip(0, 1), kTileBytes);
    _tile_dpbf16ps(0, 6, 4);
    if constexpr (kBoth) _tile_loadd(5, strip(1, 1), kTileBytes);
    if constexpr (kBoth) _tile_dpbf16ps(1, 6, 5);
    _tile_dpbf16ps(2, 7, 4);
    if constexpr (kBoth) _tile_dpbf16ps(3, 7, 5);
  }
  const int64_t token_stride = args.token_stride * static_cast<int64_t>(sizeof(float));
  float *prediction = args.tokens[0].correction + column, *out = args.tokens[0].out + column;
  _tile_stored(0, prediction, token_stride);
  if constexpr (kBoth) _tile_stored(1, prediction + kStrip, token_stride);
  _tile_stored(2, out, token_stride);
  if constexpr (kBoth) _tile_stored(3, out + kStrip, token_stride);
  tile_fence();
}

// Keys after the chunk's decays, tokens side by side.
void split_keys(const ChunkArgs& args, const Operands& to) {
  const auto key = [&](int t, int64_t k) {
    return t < args.count ? _mm512_loadu_ps(args.tokens[t].key + k) : _mm512_setzero_ps();
  };
  for (int64_t k = 0; k < args.key_padded; k += kTileRows) {
    __m512i rows[kTilePairs];
    for (int j = 0; j < kTilePairs / 2; ++j) {
      const __m512 a = key(2 * j, k), b = key(2 * j + 1, k);
      rows[j] = pair(a, b);
      rows[j + kTilePairs / 2] = pair(_mm512_sub_ps(a, high_part(a)), _mm512_sub_ps(b, high_part(b)));
    }
    transpose(rows);
    for (int i = 0; i < kTileRows; ++i) _mm512_storeu_si512(to.keys + (k + i) * kTilePairs, rows[i]);
  }
}

void split_corrections(const ChunkArgs& args, const Operands& to, int64_t column) {
  const auto correction = [&](int t) {
    return t < args.count ? _mm512_loadu_ps(args.tokens[t].correction + column) : _mm512_setzero_ps();
  };
  uint32_t *high = to.corrections, *low = high + Operands::kTileWords;
  for (int j = 0; j < kTilePairs / 2; ++j) {
    const __m512 a = correction(2 * j), b = correction(2 * j + 1);
    for (const int row : {j, j + kTilePairs / 2}) store_pairs(a, b, high + row * kStrip, low + row * kStrip);
  }
}

// Adds what the chunk's tokens write to one strip of the state.
void update_strip(const ChunkArgs& args, const Operands& from, int64_t column) {
  const int64_t stride = args.state_stride * static_cast<int64_t>(sizeof(float));
  const auto state = [&](int64_t k) { return args.state + k * args.state_stride + column; };
  const auto keys = [&](int64_t k) { return from.keys + k * kTilePairs; };
  tile_fence();
  _tile_loadd(4, from.corrections, kTileBytes);
  _tile_loadd(5, from.corrections + Operands::kTileWords, kTileBytes);
  int64_t k = 0;
  for (; k + 2 * kTileRows <= args.key_padded; k += 2 * kTileRows) {
    _tile_loadd(6, keys(k), kTileBytes);
    _tile_loadd(7, keys(k + kTileRows), kTileBytes);
    _tile_loadd(0, state(k), stride);
    _tile_loadd(1, state(k + kTileRows), stride);
    _tile_dpbf16ps(0, 6, 4);
    _tile_dpbf16ps(1, 7, 4);
    _tile_dpbf16ps(0, 6, 5);
    _tile_dpbf16ps(1, 7, 5);
    _tile_stored(0, state(k), stride);
    _tile_stored(1, state(k + kTileRows), stride);
  }
  for (; k < args.key_padded; k += kTileRows) {
    _tile_loadd(6, keys(k), kTileBytes);
    _tile_loadd(0, state(k), stride);
    _tile_dpbf16ps(0, 6, 4);
    _tile_dpbf16ps(0, 6, 5);
    _tile_stored(0, state(k), stride);
  }
  tile_fence();
}

void run_chunk(const ChunkArgs& args) {
  TileShapes shapes;
  for (int tile = 0; tile < 8; ++tile) {
    shapes.row_bytes[tile] = kTileBytes;
    shapes.rows[tile] = kTileRows;
  }
  const Operands operands(args);
  split_factors(args, operands);
  split_keys(args, operands);
  tile_fence();
  _tile_loadconfig(&shapes);
  // Products, corrections and updates of all columns apart: one after another for each strip took 1.2 times as long,
  // the level 1 cache does not hold all operands.
  const int64_t end = args.first_column + args.columns;
  int64_t column = args.first_column;
  for (; column + kStripsAtOnce * kStrip <= end; column += kStripsAtOnce * kStrip) {
    for (int s = 0; s < kStripsAtOnce; ++s) split_strip(args, operands, s, column + s * kStrip);
    multiply_strips<kStripsAtOnce>(args, operands, column);
  }
  for (; column < end; column += kStrip) {
    split_strip(args, operands, 0, column);
    multiply_strips<1>(args, operands, column);
  }
  avx512_bf16_functions().solve_chunk(args);
  for (column = args.first_column; column < end; column += kStrip) {
    split_corrections(args, operands, column);
    update_strip(args, operands, column);
  }
  // Tiles in use make every switch of threads save 8 KiB.
  _tile_release();
}

TargetFunctions with_tiles() {
  TargetFunctions functions = avx512_bf16_functions();
  functions.name = "AVX512_AMX";
  functions.run_chunk = run_chunk;
  return functions;
}

bool tiles_permitted() {
  constexpr int kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}

static_assert(Operands::words(16) <= chunk_scratch(16) && Operands::words(256) <= chunk_scratch(256));

}  // namespace

const TargetFunctions& avx512_amx_functions() {
  static const TargetFunctions functions = with_tiles();
  return functions;
}

bool avx512_amx_available() {
  static const bool available = [] {
    if (!avx512_bf16_available()) return false;
    unsigned eax = 7, ebx = 0, ecx = 0, edx = 0;
    asm volatile("cpuid" : "+a"(eax), "=b"(ebx), "+c"(ecx), "=d"(edx));
    constexpr unsigned kBf16Tiles = 1u << 22, kTiles = 1u << 24;
    return (edx & kBf16Tiles) != 0 && (edx & kTiles) != 0 && tiles_permitted();
  }();
  return available;
}

}  // namespace kda::cpu

#pragma GCC pop_options

#endif  // KDA_WITH_AVX512_AMX
