// Runs the library through its public C ABI for the parity tests: backends and SIMD targets found at run time, plans
// made from a judge::Spec, rows with their slots, and the checks that every test shares.
#pragma once

#include <gtest/gtest.h>

#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "judge/generators.h"
#if KDA_WITH_CUDA
#include "parity/device_mirror.h"
#endif
#include "kda/kda.h"

namespace parity {

using judge::Random;
using judge::Spec;
using judge::State;
using judge::Tensor;
using judge::TokenTensors;
using judge::Type;

// A backend, and for the CPU one of its SIMD targets.
struct Target {
  kda_backend backend;
  std::string cpu_target;  // empty: not a choice of this backend
  std::string name() const;
};
inline void PrintTo(const Target& t, std::ostream* os) { *os << t.name(); }

// Everything this machine can run, from the context's own description. The first call prints what is left out.
const std::vector<Target>& all_targets();
std::string target_name(const testing::TestParamInfo<Target>& info);

// Shared by all tests of one process.
const kda_context* context_for(const Target& target, int threads);

// How much of the random work to do: 1, or less when the environment variable KDA_PARITY_SCALE says so or the build
// has sanitizers. At least one piece of work is always left.
int scaled(int count);

struct PlanOptions {
  int64_t max_rows = 64, max_tokens = 1024;
  int max_nodes = 16, max_snapshots = 16, layers = 1;
  bool null_slot0 = false, single_root = false;
  uint32_t operations = 0;          // 0 = all
  int64_t max_workspace_bytes = 0;  // 0 = the default
  int threads = 1;
};

// Head sizes that the target serves: CUDA takes multiples of 16.
void fit_head_sizes(const Target& target, Spec* spec);

kda_problem problem_of(const Target& target, const Spec& spec, const PlanOptions& options);

// A plan with its workspace, which every call finds full of NaN.
class Plan {
 public:
  Plan(const Target& target, const Spec& spec, const PlanOptions& options = {});
  ~Plan() { kda_plan_destroy(plan_); }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  bool usable() const { return plan_ != nullptr; }
  const kda_plan* get() const { return plan_; }
  const kda_plan_info& info() const { return info_; }
  const kda_error& error() const { return error_; }
  uint32_t device_status() const { return device_status_; }

  // Each returns true if the call succeeded; if not the error's text is a test failure.
  bool extend(const kda_extend_args& args) const { return run("extend", kda_extend, args); }
  bool decode(const kda_decode_args& args) const { return run("decode", kda_decode, args); }
  bool verify(const kda_verify_args& args) const { return run("verify", kda_verify, args); }
  bool commit(const kda_commit_args& args) const { return run("commit", kda_commit, args); }
  bool move(const kda_move_args& args) const { return run("move", kda_move, args); }
  bool conv_extend(const kda_conv_args& args) const { return run("conv_extend", kda_conv_extend, args); }
  bool conv_decode(const kda_conv_args& args) const { return run("conv_decode", kda_conv_decode, args); }
  bool conv_verify(const kda_conv_args& args) const { return run("conv_verify", kda_conv_verify, args); }
  bool conv_commit(const kda_commit_args& args) const { return run("conv_commit", kda_conv_commit, args); }
  bool conv_move(const kda_move_args& args) const { return run("conv_move", kda_conv_move, args); }

  // The status of a call that a test expects to be refused.
  template <class Function, class Args>
  kda_status status(Function function, const Args& args, kda_error* error) const {
    std::vector<std::byte> memory(info_.workspace_bytes + info_.workspace_alignment, std::byte{0xff});
    void* at = memory.data();
    size_t space = memory.size();
    if (info_.workspace_bytes > 0) std::align(info_.workspace_alignment, info_.workspace_bytes, at, space);
    device_status_ = 0;
    kda_call call{};
    call.struct_size = sizeof(call);
#if KDA_WITH_CUDA
    if (on_device_) {
      DeviceMirror mirror;
      Args copy = args;
      mirror.start(copy);
      call.workspace = mirror.memory(info_.workspace_bytes, 0xff);
      call.workspace_bytes = info_.workspace_bytes;
      call.device_status = static_cast<uint32_t*>(mirror.memory(sizeof(uint32_t), 0));
      const kda_status result = function(plan_, &copy, &call, error);
      if (!mirror.finish()) ADD_FAILURE() << "memory outside every tensor was written";
      cuda_check(cudaMemcpy(&device_status_, call.device_status, sizeof(uint32_t), cudaMemcpyDeviceToHost), "status");
      return result;
    }
#endif
    call.workspace = at;
    call.workspace_bytes = info_.workspace_bytes;
    call.device_status = &device_status_;
    return function(plan_, &args, &call, error);
  }

  // Record buffers, full of 0xff (no record has that header).
  Tensor records(int64_t rows, int64_t gap = 0) const { return buffer(rows, int64_t(info_.record_row_bytes), gap); }
  Tensor conv_records(int64_t rows, int64_t channels, int64_t gap = 0) const {
    return buffer(rows, int64_t(kda_plan_conv_record_row_bytes(plan_, channels)), gap);
  }

 private:
  template <class Function, class Args>
  bool run(const char* name, Function function, const Args& args) const {
    kda_error error{};
    error.struct_size = sizeof(error);
    const kda_status result = status(function, args, &error);
    if (result != KDA_OK)
      ADD_FAILURE() << name << ": " << error.message << " | asked " << error.asked << " | supported "
                    << error.supported;
    return result == KDA_OK;
  }
  Tensor buffer(int64_t rows, int64_t row_bytes, int64_t gap) const;

  kda_plan* plan_ = nullptr;
  bool on_device_ = false;
  kda_plan_info info_{};
  kda_error error_{};
  mutable uint32_t device_status_ = 0;
  mutable std::vector<std::byte> records_alignment_;
};

kda_tokens abi_tokens(const Spec& spec, const TokenTensors& t);

// The rows of a call: lists as the test thinks of them, and as tensors of random width and stride.
struct Rows {
  std::vector<int64_t> cu;         // [N+1]
  std::vector<int64_t> slots;      // empty: absent
  std::vector<int64_t> has_state;  // empty: all 1
  std::vector<int64_t> dst;        // empty: in place
  bool null_slot0 = false;
  bool pass_cu = true;  // decode: false = token n is row n
  Tensor state, dst_state;
  Tensor cu_t, slots_t, has_t, dst_t;

  int count() const { return int(cu.size()) - 1; }
  int64_t begin(int r) const { return cu[size_t(r)]; }
  int64_t length(int r) const { return cu[size_t(r) + 1] - cu[size_t(r)]; }
  bool null(int r) const;
  bool fresh(int r) const;
  int64_t source(int r) const { return slots[size_t(r)]; }
  // Where the row's final state goes: its slot in the pool `target()`, or -1.
  int64_t target_slot(int r) const;
  const Tensor& target() const { return dst.empty() || !dst_state.present() ? state : dst_state; }

  void pack(Random& r);
  kda_rows abi() const;
};

// A list as a tensor of random integer width and stride. Entries must fit in int32.
Tensor index_list(Random& r, const std::vector<int64_t>& values);
// [N, D] with a random row stride; short rows are padded with garbage that must not be read.
Tensor index_matrix(Random& r, const std::vector<std::vector<int64_t>>& rows, int64_t columns);

// cu_seqlens of rows with the given lengths, starting at `first`.
std::vector<int64_t> cut(const std::vector<int64_t>& lengths, int64_t first);

// What a row starts from: zero if fresh, else its slot of `before`.
State initial_state(const Spec& spec, const Rows& rows, int r, const Tensor& before);

// The value a pool of that type holds for x.
double rounded(Type type, double x);

// States to find in a pool, and slots that must not have changed: everything else.
struct Expected {
  int64_t slot;
  State state;
};
void expect_pool(const Spec& spec, const Tensor& before, const Tensor& after, const std::vector<Expected>& expected,
                 double limit, const std::string& what);

// Limits of a spec's numerics; low: the pool compared holds 16-bit values.
double out_limit(const Spec& spec);
double state_limit(const Spec& spec, bool low);

// Adds the (row, head) units of out [T, HV, V] for tokens [begin, begin + want.size()).
void add_out(const Spec& spec, const TokenTensors& t, int64_t begin, const std::vector<std::vector<double>>& want,
             judge::Measure* measure);

// True if every element of the token's output still is the NaN it was filled with / is zero.
bool out_untouched(const Spec& spec, const TokenTensors& t, int64_t token);
bool out_zero(const Spec& spec, const TokenTensors& t, int64_t token);

class PerTarget : public testing::TestWithParam<Target> {};
#define KDA_PARITY_SUITE(Suite)      \
  class Suite : public PerTarget {}; \
  INSTANTIATE_TEST_SUITE_P(Backends, Suite, testing::ValuesIn(all_targets()), target_name)

}  // namespace parity
