// Registry functions of fast verify.
#include "cuda/kernels.h"
#include "cuda/wy.h"

namespace kda {

using namespace cuda;

Status cuda_verify_wy(const Problem& p, const VerifyLaunch& l, const Execution& execution) {
  WyArgs args{};
  args.s = verify_args(p, l, execution);
  if (const Status s = check_verify(p, l, args.s, execution)) return s;
  Status status = KDA_OK;
  const bool bf16 = p.state == DType::bf16;
  if (bf16 ? launch_wy_tuned_bf16(p, args.s, execution, status) : launch_wy_tuned_fp32(p, args.s, execution, status)) {
    return status;
  }
  return bf16 ? launch_wy_bf16(p, args, execution) : launch_wy_fp32(p, args, execution);
}

Status cuda_verify_pending_wy(const Problem& p, const VerifyLaunch& l, const Execution& execution) {
  return cuda_verify_wy(p, l, execution);
}

}  // namespace kda
