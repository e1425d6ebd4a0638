"""libkda.functional against flash-linear-attention's Triton kernels on a GPU, called alike: bf16 tokens, gate, norms and sigmoid in the
kernel, fp32 states given and returned. Answers are compared before anything is timed. usage: benchmark_cuda.py [--repeats 30]"""

import argparse
import statistics

import torch
from fla.ops.kda import chunk_kda, fused_recurrent_kda

from libkda import functional

D = 128


def microseconds(function, repeats):
    for _ in range(3):
        function()
    times = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        torch.cuda.synchronize()
        begin.record()
        function()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    times.sort()
    return f"{statistics.median(times):9.1f} ({times[0]:.1f}-{times[-1]:.1f})"


def difference(x, y):
    return ((x.double() - y.double()).norm() / y.double().norm()).item()


def compare(name, ours, theirs, batch, tokens, heads, repeats):
    torch.manual_seed(0)
    make = lambda *shape: torch.randn(batch, tokens, heads, *shape, device="cuda").bfloat16()  # noqa: E731
    arguments = dict(q=make(D), k=make(D), v=make(D), g=make(D), beta=make(), A_log=torch.randn(heads, device="cuda") * 0.3,
                     dt_bias=torch.randn(heads * D, device="cuda") * 0.5, initial_state=torch.randn(batch, heads, D, D, device="cuda") * 0.1,
                     output_final_state=True, use_qk_l2norm_in_kernel=True, use_gate_in_kernel=True, use_beta_sigmoid_in_kernel=True,
                     lower_bound=-5.0, state_v_first=True)
    if theirs is chunk_kda:
        arguments["safe_gate"] = True
    errors = [difference(x, y) for x, y in zip(ours(**arguments), theirs(**arguments))]
    assert max(errors) < 1e-2, (name, errors)
    print(f"{name:14s} B={batch} T={tokens} H={heads}: libkda {microseconds(lambda: ours(**arguments), repeats)} us, "
          f"FLA {microseconds(lambda: theirs(**arguments), repeats)} us; they differ by {errors[0]:.1e} (out), {errors[1]:.1e} (state)", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=30)
    repeats = parser.parse_args().repeats
    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    with torch.inference_mode():
        for batch, tokens in ((1, 8192), (8, 1024), (64, 256)):
            compare("chunk", functional.chunk_kda, chunk_kda, batch, tokens, 32, repeats)
        for batch, tokens in ((1, 1), (32, 1), (32, 8)):
            compare("recurrent", functional.fused_recurrent_kda, fused_recurrent_kda, batch, tokens, 32, repeats)


if __name__ == "__main__":
    main()
