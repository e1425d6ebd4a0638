// A C++17 client of the installed library through kda.hpp: one decode step.
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <kda/kda.hpp>
#include <vector>

int main() {
  kda::Context context;
  kda_problem problem = kda::problem();
  problem.heads = 2;
  problem.key_dim = 8;
  problem.io_dtype = KDA_FP32;
  kda::Plan plan(context, problem);

  std::vector<float> q(16, 1.0f), k(16, 1.0f), v(16, 2.0f), a(16, 0.0f), b(2, 0.0f), a_log(2, 0.0f), out(16),
      state(128, 1.0f);
  const std::vector<int32_t> slots{0};
  const kda::Tensor tq(q.data(), KDA_FP32, {1, 2, 8}), tk(k.data(), KDA_FP32, {1, 2, 8}),
      tv(v.data(), KDA_FP32, {1, 2, 8});
  const kda::Tensor ta(a.data(), KDA_FP32, {1, 2, 8}), tb(b.data(), KDA_FP32, {1, 2}), tA(a_log.data(), KDA_FP32, {2});
  const kda::Tensor tout(out.data(), KDA_FP32, {1, 2, 8}), tstate(state.data(), KDA_FP32, {1, 2, 8, 8});
  const kda::Tensor tslots(slots.data(), kda::Element::int32, {1});
  auto decode = kda::args<kda_decode_args>();
  decode.tokens.q = tq;
  decode.tokens.k = tk;
  decode.tokens.v = tv;
  decode.tokens.a = ta;
  decode.tokens.b = tb;
  decode.tokens.A_log = tA;
  decode.tokens.out = tout;
  decode.rows.slots = tslots;
  decode.rows.state = tstate;
  std::vector<std::byte> workspace(plan.info().workspace_bytes + plan.info().workspace_alignment);
  auto call = kda::args<kda_call>();
  call.workspace = kda::aligned(workspace.data(), plan.info().workspace_alignment);
  call.workspace_bytes = plan.info().workspace_bytes;
  plan.decode(decode, &call);

  // decay = exp(-softplus(0)) = 1/2; k-hat = 8^-1/2 each; S k-hat = 8 * 0.5 * 8^-0.5; step 1/2
  const double unit = 1 / std::sqrt(8.0), prediction = 8 * 0.5 * unit, u = 0.5 * (2 - prediction);
  const double expected = 0.5 + u * unit;
  bool ok = std::abs(state[5] - expected) < 1e-5;
  ok = ok && std::abs(out[3] - 8 * expected * unit / std::sqrt(8.0)) < 1e-5;
  try {
    problem.key_dim = 0;
    kda::Plan refused(context, problem);
    ok = false;
  } catch (const kda::Error& error) {
    ok = ok && error.status() != KDA_OK && std::string(error.what()).find(error.code()) == 0;
  }
  std::printf("client.cpp: %s\n", ok ? "ok" : "FAIL");
  return ok ? 0 : 1;
}
