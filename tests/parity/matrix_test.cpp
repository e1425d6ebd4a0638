// The matrix: every phase under every form of gate, beta and norm and every dtype and layout, on shapes from 1 to 256,
// with random rows each time. Shapes and head counts turn while the forms run through their whole product.
#include "parity/phases.h"

namespace parity {
namespace {

struct Shape {
  int K, V;
};

using Check = void (*)(const Target&, const Spec&, Random&);

std::vector<Spec> forms() {
  using judge::Beta;
  using judge::Gate;
  std::vector<Spec> specs;
  for (Gate gate : {Gate::softplus, Gate::bounded, Gate::precomputed})
    for (Beta beta : {Beta::sigmoid, Beta::sigmoid2, Beta::none})
      for (Type io : {Type::f32, Type::bf16, Type::f16})
        for (bool wide_gate : {false, true})
          for (bool wide_beta : {false, true})
            for (Type state : {Type::f32, Type::bf16})
              for (bool kv : {false, true})
                for (bool l2norm : {true, false}) {
                  if (io == Type::f32 && (wide_gate || wide_beta)) continue;  // the same thing
                  Spec s;
                  s.form.gate = gate;
                  s.form.beta = beta;
                  s.form.l2norm = l2norm;
                  s.io = io;
                  s.gate_type = wide_gate ? Type::f32 : io;
                  s.beta_type = wide_beta ? Type::f32 : io;
                  s.state = state;
                  s.kv = kv;
                  specs.push_back(s);
                }
  return specs;
}

// Fills in what is not part of the product.
void turn(Random& r, Spec* s) {
  const Shape shape = r.pick<Shape>(
      {{16, 16}, {1, 1}, {8, 8}, {5, 3}, {3, 7}, {17, 9}, {16, 8}, {9, 32}, {32, 16}, {24, 40}, {33, 31}, {1, 6}});
  s->form.K = shape.K;
  s->form.V = shape.V;
  s->form.H = r.in(1, 3);
  s->form.HV = s->form.H * r.in(1, 3);
  s->form.scale = r.chance(0.3) ? 0.37 : 0;
  s->form.lower_bound = r.chance(0.3) ? -1.5 : -5;
  s->parameter_type = r.pick<Type>({Type::f32, Type::bf16, Type::f16});
  s->with_A_log = r.chance(0.7);
  s->with_dt_bias = r.chance(0.7);
  s->conv_width = r.in(2, 4);
  s->conv_state = r.chance(0.5) ? Type::f32 : s->io;
  s->conv_weight = r.chance(0.5) ? Type::f32 : s->io;
  s->channel_major = r.chance(0.5);
}

void run_matrix(const Target& target, Check check, uint64_t seed, bool fast = false) {
  const std::vector<Spec> specs = forms();
  const int stride = int(specs.size()) / scaled(int(specs.size()));
  for (size_t i = 0; i < specs.size(); i += size_t(std::max(stride, 1))) {
    Random r(seed + i);
    Spec spec = specs[i];
    turn(r, &spec);
    fit_head_sizes(target, &spec);
    spec.fast = fast;
    if (fast && check != check_extend) {
      // A fast record's decay has an absolute error, which says nothing about a state of one or few elements.
      spec.form.K = std::max(spec.form.K, 8);
      spec.form.V = std::max(spec.form.V, 8);
    }
    SCOPED_TRACE("case " + std::to_string(i) + ": " + spec.text());
    check(target, spec, r);
    if (testing::Test::HasFailure()) return;
  }
}

KDA_PARITY_SUITE(Matrix);
TEST_P(Matrix, Extend) { run_matrix(GetParam(), check_extend, 1000); }
TEST_P(Matrix, Decode) { run_matrix(GetParam(), check_decode, 2000); }
TEST_P(Matrix, VerifyAndCommit) { run_matrix(GetParam(), check_verify_and_commit, 3000); }
TEST_P(Matrix, VerifyPending) { run_matrix(GetParam(), check_verify_pending, 4000); }
TEST_P(Matrix, Move) { run_matrix(GetParam(), check_move, 5000); }

// Fast records are written where a backend has fast verify.
KDA_PARITY_SUITE(FastMatrix);
TEST_P(FastMatrix, Extend) {
  if (GetParam().backend == KDA_BACKEND_REFERENCE)
    GTEST_SKIP() << "this backend has no fast verify, which plans here include";
  run_matrix(GetParam(), check_extend, 11000, true);
  if (GetParam().backend != KDA_BACKEND_CUDA) return;
  // the head sizes of the kernel in chunks
  run_matrix(
      GetParam(),
      [](const Target& target, const Spec& form, Random& r) {
        Spec spec = form;
        spec.form.K = r.pick<int>({64, 128});
        spec.form.V = r.pick<int>({64, 128});
        spec.form.H = r.in(1, 2);
        spec.form.HV = spec.form.H * r.in(1, 2);
        check_extend(target, spec, r);
      },
      12000, true);
}
TEST_P(FastMatrix, VerifyAndCommit) {
  if (GetParam().backend == KDA_BACKEND_REFERENCE) GTEST_SKIP() << "this backend has no fast verify";
  run_matrix(GetParam(), check_verify_and_commit, 13000, true);
}
TEST_P(FastMatrix, VerifyPending) {
  if (GetParam().backend == KDA_BACKEND_REFERENCE) GTEST_SKIP() << "this backend has no fast verify";
  run_matrix(GetParam(), check_verify_pending, 14000, true);
}

// Calls in the form that tuned fast kernels take: their head sizes, bf16 tokens, drafts of 8 and of 16 nodes, few units
// and many.
TEST_P(FastMatrix, PlainCalls) {
  if (GetParam().backend != KDA_BACKEND_CUDA) GTEST_SKIP() << "this backend has no fast verify";
  uint64_t n = 0;
  for (judge::Gate gate : {judge::Gate::softplus, judge::Gate::bounded, judge::Gate::precomputed})
    for (judge::Beta beta : {judge::Beta::sigmoid, judge::Beta::sigmoid2, judge::Beta::none})
      for (Type state : {Type::f32, Type::bf16})
        for (const Shape& shape : {Shape{128, 128}, Shape{64, 64}, Shape{128, 256}, Shape{64, 128}})
          for (int nodes : {8, 16})
            for (int repeat = scaled(2); repeat > 0; --repeat) {
              Random r(15000 + n++);
              Spec spec;
              turn(r, &spec);
              spec.form.gate = gate;
              spec.form.beta = beta;
              spec.form.l2norm = r.chance(0.8);
              spec.form.K = shape.K;
              spec.form.V = shape.V;
              spec.form.H = r.in(1, 2);
              spec.form.HV = spec.form.H * r.in(1, 2);
              spec.io = spec.gate_type = spec.beta_type = Type::bf16;
              spec.parameter_type = Type::f32;
              spec.state = state;
              spec.fast = true;
              spec.plain_nodes = nodes;
              SCOPED_TRACE("case " + std::to_string(n) + ": " + spec.text());
              check_verify_and_commit(GetParam(), spec, r);
              check_verify_pending(GetParam(), spec, r);
              if (HasFailure()) return;
            }
}

// Conv does not know gates and norms: its own product.
void run_conv_matrix(const Target& target, Check check, uint64_t seed) {
  uint64_t n = 0;
  for (Type io : {Type::f32, Type::bf16, Type::f16})
    for (bool wide_state : {false, true})
      for (bool wide_weight : {false, true})
        for (bool channel_major : {false, true})
          for (int width : {2, 3, 4})
            for (int repeat = scaled(4); repeat > 0; --repeat) {
              Random r(seed + n++);
              Spec spec;
              turn(r, &spec);
              fit_head_sizes(target, &spec);
              spec.io = spec.gate_type = spec.beta_type = io;
              spec.conv_width = width;
              spec.conv_state = wide_state ? Type::f32 : io;
              spec.conv_weight = wide_weight ? Type::f32 : io;
              spec.channel_major = channel_major;
              SCOPED_TRACE("case " + std::to_string(n) + ": " + spec.text());
              check(target, spec, r);
              if (testing::Test::HasFailure()) return;
            }
}

KDA_PARITY_SUITE(ConvMatrix);
TEST_P(ConvMatrix, Extend) { run_conv_matrix(GetParam(), check_conv_extend, 6000); }
TEST_P(ConvMatrix, Decode) { run_conv_matrix(GetParam(), check_conv_decode, 7000); }
TEST_P(ConvMatrix, VerifyAndCommit) { run_conv_matrix(GetParam(), check_conv_verify_and_commit, 8000); }
TEST_P(ConvMatrix, VerifyPending) { run_conv_matrix(GetParam(), check_conv_verify_pending, 9000); }
TEST_P(ConvMatrix, Move) { run_conv_matrix(GetParam(), check_conv_move, 10000); }

// The shapes of real models, and the largest heads.
KDA_PARITY_SUITE(LargeHeads);
TEST_P(LargeHeads, AllPhases) {
  std::vector<Shape> shapes = {{128, 128}, {64, 128}, {256, 256}, {255, 67}};
  shapes.resize(size_t(scaled(int(shapes.size()))));
  for (const Shape& shape : shapes)
    for (Type io : {Type::f32, Type::bf16}) {
      Random r(uint64_t(shape.K * 1000 + shape.V));
      Spec spec;
      turn(r, &spec);
      spec.io = io;
      spec.gate_type = spec.beta_type = io;
      spec.state = r.chance(0.5) ? Type::f32 : Type::bf16;
      spec.form.K = shape.K;
      spec.form.V = shape.V;
      spec.form.H = 1;
      spec.form.HV = 2;
      fit_head_sizes(GetParam(), &spec);
      SCOPED_TRACE(spec.text());
      for (Check check : {check_extend, check_decode, check_verify_and_commit, check_verify_pending, check_move})
        check(GetParam(), spec, r);
      if (HasFailure()) return;
    }
}

}  // namespace
}  // namespace parity
