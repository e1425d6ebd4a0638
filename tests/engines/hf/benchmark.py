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


def whole_model(tokens):
    """A random 5-layer Kimi-Linear of transformers, hidden size 512, 4 KDA heads of 128: prefill with and without libkda."""
    import transformers

    import libkda.fla

    torch.manual_seed(0)
    module = importlib.import_module("transformers.models.kimi_linear.modeling_kimi_linear")
    config = transformers.KimiLinearConfig(
        vocab_size=1000, hidden_size=512, intermediate_size=1024, moe_intermediate_size=256, num_hidden_layers=5, num_attention_heads=4,
        num_key_value_heads=4, kv_lora_rank=128, qk_rope_head_dim=64, v_head_dim=128, qk_nope_head_dim=128, num_experts_per_tok=2,
        n_shared_experts=1, num_local_experts=4, linear_head_dim=128, linear_num_heads=4, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    model = module.KimiLinearForCausalLM(config).eval()
    prompt = torch.randint(3, 1000, (1, tokens))
    with torch.inference_mode():
        show("whole model, KDA calls on libkda", seconds(lambda: model(prompt), 3))
        for name in ("chunk_kimi_delta_attention", "recurrent_kimi_delta_attention"):
            setattr(module, name, getattr(module, name).__wrapped__)
        show("whole model, transformers' own torch code", seconds(lambda: model(prompt), 2))
    print(libkda.fla.report())


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, default=1000)
    parser.add_argument("--quick", action="store_true", help="overhead only")
    options = parser.parse_args()
    print(f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores, torch {torch.__version__} with {torch.get_num_threads()} threads")
    overhead()
    if not options.quick:
        prefill(options.tokens, 5)
        whole_model(options.tokens)
    print(f"load average {os.getloadavg()[0]:.1f} at the end")


if __name__ == "__main__":
    main()
