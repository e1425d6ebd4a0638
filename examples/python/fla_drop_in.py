"""FLA's KDA functions on libkda: one import, no other change. Needs torch and flash-linear-attention 0.6."""

import torch
from fla.ops.kda import chunk_kda, fused_recurrent_kda

import libkda.fla  # the one change


@torch.inference_mode()
def main():
    torch.manual_seed(0)
    B, T, H, D = 2, 50, 4, 64
    q, k, v, g = (torch.randn(B, T, H, D, dtype=torch.bfloat16) for _ in range(4))
    beta = torch.randn(B, T, H, dtype=torch.bfloat16)
    flags = dict(A_log=torch.zeros(H), dt_bias=torch.zeros(H * D), use_qk_l2norm_in_kernel=True, use_gate_in_kernel=True,
                 use_beta_sigmoid_in_kernel=True, output_final_state=True)
    prefix = [x[:, :-1] for x in (q, k, v, g, beta)]
    last = [x[:, -1:] for x in (q, k, v, g, beta)]
    _, state = chunk_kda(*prefix, **flags)
    out, _ = fused_recurrent_kda(*last, initial_state=state, **flags)
    whole, _ = chunk_kda(q, k, v, g, beta, **flags)
    error = ((out - whole[:, -1:]).float().norm() / whole[:, -1:].float().norm()).item()
    assert error < 1e-2
    print(f"prefill and one decoded token agree with one prefill to {error:.1e}")
    print(libkda.fla.report())


if __name__ == "__main__":
    main()
