#include "model/matmul.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <thread>
#include <vector>

#include "model/attention.h"
#include "model/ops.h"
#include "model/panels.h"

namespace kda::model {
namespace {

struct Random {
  std::mt19937 engine{20261130};
  std::normal_distribution<float> normal;
  std::vector<float> floats(int64_t count) {
    std::vector<float> v(static_cast<size_t>(count));
    for (float& x : v) x = normal(engine);
    return v;
  }
  // bf16 bits
  std::vector<uint16_t> weights(int64_t count) {
    std::vector<uint16_t> v(static_cast<size_t>(count));
    for (uint16_t& x : v) x = static_cast<uint16_t>(std::bit_cast<uint32_t>(normal(engine)) >> 16);
    return v;
  }
};

float widen(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

struct Shape {
  int64_t rows, outputs, inputs;
};
const Shape kShapes[] = {{1, 1, 1},   {1, 8, 16},    {3, 5, 7},     {2, 9, 33},     {7, 130, 256}, {64, 66, 96},
                         {65, 4, 31}, {13, 100, 77}, {5, 300, 512}, {33, 257, 129}, {1, 4096, 64}};

void expect_close_and_independent(bool pack) {
  Random random;
  const Threads one(1), three(3);
  for (const Shape& s : kShapes) {
    for (const bool bf16 : {true, false}) {
      SCOPED_TRACE(testing::Message() << s.rows << " x " << s.outputs << " x " << s.inputs << " bf16 " << bf16);
      PanelStorage panels;
      const int64_t stride = s.inputs + 3, x_stride = s.inputs + 5, out_stride = s.outputs + 2;
      const auto half = random.weights(s.outputs * stride);
      std::vector<float> wide(half.size());
      for (size_t i = 0; i < half.size(); ++i) wide[i] = widen(half[i]);
      const auto x = random.floats(s.rows * x_stride);
      Matrix matrix{bf16 ? static_cast<const void*>(half.data()) : wide.data(), bf16, s.outputs, s.inputs, stride};
      if (pack) matrix = packed(matrix, &panels);
      const float nan = std::numeric_limits<float>::quiet_NaN();
      std::vector<float> out(static_cast<size_t>(s.rows * out_stride), nan), again = out;
      const Product product{x.data(), x_stride, s.rows, matrix, out.data(), out_stride};
      run_product(three, product);
      Product repeated = product;
      repeated.out = again.data();
      run_product(one, repeated);
      ASSERT_EQ(std::memcmp(out.data(), again.data(), out.size() * sizeof(float)), 0) << "threads changed bits";
      std::vector<float> alone(static_cast<size_t>(s.outputs));
      for (int64_t r = 0; r < s.rows; ++r) {
        const float* row = out.data() + r * out_stride;
        for (int64_t n = 0; n < s.outputs; ++n) {
          double sum = 0, magnitude = 0;
          for (int64_t k = 0; k < s.inputs; ++k) {
            const double term =
                double{x[static_cast<size_t>(r * x_stride + k)]} * wide[static_cast<size_t>(n * stride + k)];
            sum += term;
            magnitude += std::abs(term);
          }
          ASSERT_NEAR(row[n], sum, 1e-6 * magnitude) << "row " << r << " output " << n;
        }
        for (int64_t n = s.outputs; n < out_stride; ++n) ASSERT_TRUE(std::isnan(row[n])) << "wrote beyond a row";
        Product single = product;
        single.x += r * x_stride;
        single.rows = 1;
        single.out = alone.data();
        run_product(one, single);
        ASSERT_EQ(std::memcmp(alone.data(), row, alone.size() * sizeof(float)), 0) << "row " << r << " differs alone";
      }
    }
  }
}

TEST(Product, IsCloseToDoubleAndEachRowIsIndependent) { expect_close_and_independent(false); }
TEST(PackedProduct, IsCloseToDoubleAndEachRowIsIndependent) { expect_close_and_independent(true); }

// Sums run over ascending k in every lane, so a chain of scalar multiply-adds gives the very bits: no number of rows,
// no SIMD target and no storage may change them.
TEST(PackedProduct, HasTheBitsOfAScalarChain) {
  Random random;
  const Threads threads(2);
  for (const int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 16, 25, 64}) {
    const int64_t outputs = 167, inputs = 70;
    const auto half = random.weights(outputs * inputs);
    std::vector<float> wide;
    for (uint16_t w : half) wide.push_back(widen(w));
    const auto x = random.floats(rows * std::max(inputs, outputs));
    PanelStorage panels;
    const Matrix narrow{half.data(), true, outputs, inputs, inputs}, full{wide.data(), false, outputs, inputs, inputs};
    for (const Matrix& matrix : {packed(narrow, &panels), packed(full, &panels), packed_transposed(narrow, &panels),
                                 packed_transposed(full, &panels)}) {
      const bool transposed = matrix.inputs != inputs;
      std::vector<float> out(static_cast<size_t>(rows * matrix.outputs));
      run_product(threads, {x.data(), matrix.inputs, rows, matrix, out.data(), matrix.outputs});
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t n = 0; n < matrix.outputs; ++n) {
          float sum = 0;
          for (int64_t k = 0; k < matrix.inputs; ++k) {
            const int64_t at = transposed ? k * inputs + n : n * inputs + k;
            sum = std::fma(x[static_cast<size_t>(r * matrix.inputs + k)], wide[static_cast<size_t>(at)], sum);
          }
          ASSERT_EQ(out[static_cast<size_t>(r * matrix.outputs + n)], sum)
              << rows << " rows: row " << r << " output " << n << " transposed " << transposed;
        }
      }
    }
  }
}

// The same weights stored as bf16 and as fp32, and a slice of outputs, give the same bits.
TEST(Product, StorageAndSlicingChangeNothing) {
  Random random;
  const Threads threads(2);
  const int64_t rows = 9, outputs = 40, inputs = 100;
  const auto half = random.weights(outputs * inputs);
  std::vector<float> wide;
  for (uint16_t w : half) wide.push_back(widen(w));
  const auto x = random.floats(rows * inputs);
  std::vector<float> a(static_cast<size_t>(rows * outputs)), b = a, c(static_cast<size_t>(rows * 7));
  const Matrix matrix{half.data(), true, outputs, inputs, inputs};
  run_product(threads, {x.data(), inputs, rows, matrix, a.data(), outputs});
  run_product(threads, {x.data(), inputs, rows, {wide.data(), false, outputs, inputs, inputs}, b.data(), outputs});
  run_product(threads, {x.data(), inputs, rows, matrix.slice(11, 7), c.data(), 7});
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0);
  for (int64_t r = 0; r < rows; ++r) {
    EXPECT_EQ(std::memcmp(a.data() + r * outputs + 11, c.data() + r * 7, 7 * sizeof(float)), 0);
  }
}

TEST(Product, AccumulatesAndRunsSeveralAtOnce) {
  Random random;
  const Threads threads(3);
  const auto w = random.weights(50 * 20);
  const auto x = random.floats(20);
  PanelStorage panels;
  const Matrix stored{w.data(), true, 50, 20, 20};
  for (const Matrix& matrix : {stored, packed(stored, &panels)}) {
    std::vector<float> plain(50), sums(50, 1.0f);
    const Product products[] = {{x.data(), 20, 1, matrix, plain.data(), 50},
                                {x.data(), 20, 0, matrix, nullptr, 50},  // no rows: nothing is touched
                                {x.data(), 20, 1, matrix, sums.data(), 50, true}};
    run_products(threads, products);
    for (size_t i = 0; i < plain.size(); ++i) EXPECT_EQ(sums[i], 1.0f + plain[i]);
  }
}

TEST(TransposedProduct, IsCloseToDoubleAndEachRowIsIndependent) {
  Random random;
  const Threads threads(2);
  const int64_t rows = 5, outputs = 24, inputs = 37;
  const auto w = random.weights(outputs * inputs);
  const auto x = random.floats(rows * outputs);
  std::vector<float> out(static_cast<size_t>(rows * inputs)), alone(static_cast<size_t>(inputs));
  const TransposedProduct product{x.data(),   outputs, rows, {w.data(), true, outputs, inputs, inputs},
                                  out.data(), inputs};
  run_transposed_products(threads, {&product, 1});
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t j = 0; j < inputs; ++j) {
      double sum = 0;
      for (int64_t d = 0; d < outputs; ++d) {
        sum += double{x[static_cast<size_t>(r * outputs + d)]} * widen(w[static_cast<size_t>(d * inputs + j)]);
      }
      EXPECT_NEAR(out[static_cast<size_t>(r * inputs + j)], sum, 1e-4);
    }
    TransposedProduct single = product;
    single.x += r * outputs;
    single.rows = 1;
    single.out = alone.data();
    run_transposed_products(threads, {&single, 1});
    EXPECT_EQ(std::memcmp(alone.data(), out.data() + r * inputs, alone.size() * sizeof(float)), 0);
  }
}

// A draft's rows lie scattered in the cache, in an order that is not the order of positions. Every query must get the
// bits it gets from a cache in which exactly its rows lie side by side.
TEST(AttentionTest, OrderIsByPositionNotByPlace) {
  Random random;
  const Threads threads(2);
  for (const auto& [committed, nodes, heads, width, value] : std::vector<std::array<int64_t, 5>>{
           {0, 12, 3, 40, 24}, {7, 17, 2, 96, 64}, {100, 33, 4, 96, 64}, {3, 5, 1, 20, 20}}) {
    std::vector<int32_t> parents;
    for (int64_t i = 0; i < nodes; ++i) {
      parents.push_back(static_cast<int32_t>(std::uniform_int_distribution<int64_t>(-1, i - 1)(random.engine)));
    }
    auto cache = random.floats((committed + nodes) * width);
    const auto queries = random.floats(nodes * heads * width);
    std::vector<int32_t> path, begin{0};
    for (int32_t i = 0; i < nodes; ++i) {
      std::vector<int32_t> mine;
      for (int32_t n = i; n >= 0; n = parents[static_cast<size_t>(n)])
        mine.insert(mine.begin(), static_cast<int32_t>(committed) + n);
      path.insert(path.end(), mine.begin(), mine.end());
      begin.push_back(static_cast<int32_t>(path.size()));
    }
    std::vector<float> out(static_cast<size_t>(nodes * heads * value), std::numeric_limits<float>::quiet_NaN());
    Attention attention{
        queries.data(), nodes,     static_cast<int>(heads), cache.data(), width, value, 0.2f, committed, path,
        begin,          out.data()};
    run_attention(threads, attention);
    for (int64_t i = 0; i < nodes; ++i) {
      // Compact the cache to this node's path; the node decodes alone, as the last of `committed + depth` rows.
      std::vector<float> compact(cache.begin(), cache.begin() + committed * width);
      for (int32_t at = begin[static_cast<size_t>(i)]; at < begin[static_cast<size_t>(i) + 1]; ++at) {
        const auto row = cache.begin() + path[static_cast<size_t>(at)] * width;
        compact.insert(compact.end(), row, row + width);
      }
      const auto visible = static_cast<int64_t>(compact.size()) / width;
      const std::vector<int32_t> last{static_cast<int32_t>(visible - 1)}, one{0, 1};
      std::vector<float> alone(static_cast<size_t>(heads * value));
      run_attention(threads, {queries.data() + i * heads * width, 1, static_cast<int>(heads), compact.data(), width,
                              value, 0.2f, visible - 1, last, one, alone.data()});
      ASSERT_EQ(std::memcmp(alone.data(), out.data() + i * heads * value, alone.size() * sizeof(float)), 0)
          << "node " << i;
      for (int64_t h = 0; h < heads; ++h) {
        const float* q = queries.data() + (i * heads + h) * width;
        std::vector<double> p;
        double sum = 0;
        for (int64_t t = 0; t < visible; ++t) {
          double score = 0;
          for (int64_t k = 0; k < width; ++k) score += double{q[k]} * compact[static_cast<size_t>(t * width + k)];
          p.push_back(std::exp(0.2 * score));
          sum += p.back();
        }
        for (int64_t j = 0; j < value; ++j) {
          double expected = 0;
          for (int64_t t = 0; t < visible; ++t)
            expected += p[static_cast<size_t>(t)] / sum * compact[static_cast<size_t>(t * width + j)];
          ASSERT_NEAR(alone[static_cast<size_t>(h * value + j)], expected, 2e-5);
        }
      }
    }
  }
}

TEST(Ops, AgreeWithTheirFormulas) {
  Random random;
  for (const int64_t size : {1, 5, 16, 31, 256}) {
    const auto n = static_cast<size_t>(size);
    auto x = random.floats(size), gate = random.floats(size);
    const auto weight = random.floats(size);
    gate[0] = -200;  // beyond the range of exp
    std::vector<float> out(n), gated(n), product(n);
    rms_norm(x.data(), weight.data(), size, 1e-5f, out.data());
    gated_rms_norm(x.data(), weight.data(), gate.data(), size, 1e-5f, gated.data());
    silu_mul(gate.data(), x.data(), size, product.data());
    double square = 0;
    for (float v : x) square += double{v} * v;
    for (size_t i = 0; i < n; ++i) {
      const double norm = x[i] * weight[i] / std::sqrt(square / static_cast<double>(size) + 1e-5);
      const double sig = 1 / (1 + std::exp(-double{gate[i]}));
      EXPECT_NEAR(out[i], norm, 1e-5);
      EXPECT_NEAR(gated[i], norm * sig, 1e-5);
      EXPECT_NEAR(product[i], gate[i] * sig * x[i], 1e-5);
    }
    auto p = x;
    softmax(p.data(), 3.0f, size);
    double sum = 0;
    for (float v : x) sum += std::exp(3.0 * v);
    for (size_t i = 0; i < n; ++i) EXPECT_NEAR(p[i], std::exp(3.0 * x[i]) / sum, 1e-6);
    std::vector<float> huge(n, 3e38f);  // the shift keeps exp in range
    softmax(huge.data(), 1.0f, size);
    for (float v : huge) EXPECT_NEAR(v, 1.0 / static_cast<double>(size), 1e-6);
  }
  const float values[] = {std::numeric_limits<float>::quiet_NaN(), 1, 3, 3, std::numeric_limits<float>::quiet_NaN()};
  EXPECT_EQ(argmax(values, 5), 2);
  EXPECT_EQ(argmax(values, 1), -1);
  EXPECT_EQ(argmax(values, 0), -1);
}

TEST(ThreadsTest, EveryPieceRunsOnceAlsoNestedAndFromSeveralCallers) {
  const Threads threads(4);
  // Short regions of changing length in quick succession: a thread that is late for one meets the next.
  std::vector<std::atomic<int>> counts(67);
  for (int round = 0; round < 200'000; ++round) {
    const int64_t pieces = round * 31 % 67;
    for (auto& c : counts) c.store(0, std::memory_order_relaxed);
    threads.parallel_for(pieces, [&](int64_t i) { counts[static_cast<size_t>(i)].fetch_add(1); });
    for (int64_t i = 0; i < 67; ++i) ASSERT_EQ(counts[static_cast<size_t>(i)], i < pieces ? 1 : 0) << round;
  }
  std::atomic<int64_t> total{0};
  const auto caller = [&] {
    for (int round = 0; round < 500; ++round) {
      threads.parallel_for(10, [&](int64_t) { threads.parallel_for(3, [&](int64_t) { ++total; }); });
    }
  };
  std::thread other(caller);
  caller();
  other.join();
  EXPECT_EQ(total, 2 * 500 * 30);
}

}  // namespace
}  // namespace kda::model
