"""Speed on the CPU in one run, medians with the machine's load: overhead of a call, and a prefill against FLA's naive functions, a
compiled recurrence, and transformers' torch code. usage: benchmark.py [--tokens 1000] [--quick]"""

import argparse
import importlib
import os
import statistics
import time

import torch
from fla.ops.kda.naive import naive_chunk_kda, naive_recurrent_kda

import libkda
from libkda import functional, ops


def seconds(function, repeats):
    function()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return statistics.median(times), min(times)


def show(name, timed, unit=1e3, suffix="ms"):
    print(f"{name:58s} median {timed[0] * unit:10.3f} {suffix}   best {timed[1] * unit:10.3f} {suffix}", flush=True)


def overhead():
    """The smallest call there is: one token of one head of size 4, so that what is measured is the way to the kernel."""
    plan = libkda.plan(backend="cpu", heads=1, key_dim=4, io_dtype="float32", operations=("decode",))
    q, k, v, a = (torch.randn(1, 1, 4) for _ in range(4))
    arguments = dict(q=q, k=k, v=v, a=a, b=torch.randn(1, 1), A_log=torch.zeros(1), out=torch.empty(1, 1, 4), state=torch.zeros(1, 1, 4, 4),
                     slots=torch.zeros(1, dtype=torch.int32))
    handle = ops.register_plan(plan)
    inner = 1000

    def many(function):
        def run():
            for _ in range(inner):
                function()
        return [t / inner for t in seconds(run, 15)]

    show("Plan.decode, torch tensors", many(lambda: plan.decode(**arguments)), 1e6, "us")
    show("libkda.ops.decode", many(lambda: ops.decode(handle, **arguments)), 1e6, "us")
    show("torch.ops.libkda.decode", many(lambda: torch.ops.libkda.decode.default(handle, **arguments)), 1e6, "us")
    arrays = {name: value.numpy() for name, value in arguments.items()}
    show("Plan.decode, NumPy arrays", many(lambda: plan.decode(**arrays)), 1e6, "us")
    batched = [x[None] for x in (q, k, v, -a.abs(), torch.rand(1, 1))]
    with torch.inference_mode():
        show("functional.fused_recurrent_kda", many(lambda: functional.fused_recurrent_kda(*batched)), 1e6, "us")
    problem = dict(backend="cpu", heads=1, key_dim=4, io_dtype="float32")
    show("can_run", many(lambda: libkda.can_run(**problem)), 1e6, "us")


def prefill(tokens, repeats):
    """One layer of Kimi-Linear's shape with 8 heads, fp32, precomputed gate, as transformers calls it."""
    torch.manual_seed(0)
    heads, dim = 8, 128
    q, k, v = (torch.randn(1, tokens, heads, dim) for _ in range(3))
    q, k = (torch.nn.functional.normalize(x, dim=-1) for x in (q, k))
    g, beta = -torch.rand(1, tokens, heads, dim), torch.rand(1, tokens, heads)
    whole = tokens // 64 * 64
    cut = [x[:, :whole] for x in (q, k, v, g, beta)]
    module = importlib.import_module("transformers.models.kimi_linear.modeling_kimi_linear")
    compiled = torch.compile(naive_recurrent_kda)
    short = [x[:, :64] for x in (q, k, v, g, beta)]
    with torch.inference_mode():
        rows = [
            ("functional.chunk_kda", lambda: functional.chunk_kda(q, k, v, g, beta, output_final_state=True), repeats),
            ("functional.fused_recurrent_kda", lambda: functional.fused_recurrent_kda(q, k, v, g, beta, output_final_state=True), repeats),
            ("FLA naive_recurrent_kda", lambda: naive_recurrent_kda(q, k, v, g, beta, output_final_state=True), 2),
            (f"FLA naive_chunk_kda, {whole} tokens", lambda: naive_chunk_kda(*cut, output_final_state=True), 2),
            ("transformers' torch chunk function", lambda: module.chunk_kimi_delta_attention.__wrapped__(
                q, k, v, g=g, beta=beta, output_final_state=True, use_qk_l2norm_in_kernel=True), 2),
            ("functional.fused_recurrent_kda, 64 tokens", lambda: functional.fused_recurrent_kda(*short, output_final_state=True), repeats),
            ("torch.compile(naive_recurrent_kda), 64 tokens", lambda: compiled(*short, output_final_state=True), repeats),
        ]
        for name, function, count in rows:
            show(name, seconds(function, count))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--quick", action="store_true", help="overhead only")
    options = parser.parse_args()
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, torch {torch.__version__} with {torch.get_num_threads()} threads")
    overhead()
    if not options.quick:
        prefill(options.tokens, 5)
    print(f"load average {os.getloadavg()[0]:.1f} at the end")


if __name__ == "__main__":
    main()
