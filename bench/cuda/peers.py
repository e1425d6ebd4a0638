#!/usr/bin/env python3
"""Times flash-linear-attention's KDA kernels the way kda_cuda_bench times ours, for one table from one run on one GPU.

usage: bench/cuda/peers.py [decode|verify|extend|extend_more]...     (default: decode verify extend: about 3 minutes,
most of it compiling; extend_more adds 64 and 96 heads, which are tuned anew)

Needs PyTorch with CUDA, Triton and flash-linear-attention (PyPI). One JSON object a line on stdout, named as
kda_cuda_bench names its own. CUDA graphs of launches over slots that rotate past the L2 cache, bf16 tokens, bounded gate
of -5, query-key norm, gate and sigmoid in the kernel, value-first state. The answer is compared with the recurrence in
float64 before anything is timed.
"""
import importlib.metadata
import json
import statistics
import sys

import torch
from fla.ops.kda import chunk_kda
from fla.ops.kda.fused_recurrent import fused_recurrent_kda_fwd

D = 128
LOWER_BOUND = -5.0
REPLAYS = 20
DEVICE = "cuda"
FLAGS = dict(use_qk_l2norm_in_kernel=True, use_gate_in_kernel=True, use_beta_sigmoid_in_kernel=True,
             lower_bound=LOWER_BOUND, state_v_first=True)
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
DECODE_SHAPES = [(1, 12), (1, 32), (8, 12), (8, 32), (32, 12), (32, 32), (128, 32)]
VERIFY_NODES = [8, 16]
# Rows of tokens for extend, by name.
EXTEND_ROWS = {"1x8192": [8192], "mixed6": [1300, 547, 2048, 963, 271, 3063], "8x1024": [1024] * 8, "64x256": [256] * 64,
               "1x65536": [65536]}
EXTEND_HEADS = {"extend": [12, 32], "extend_more": [64, 96]}


def report(name, microseconds):
    print(json.dumps({"name": "fla " + name, "median_us": round(statistics.median(microseconds), 3),
                      "min_us": round(min(microseconds), 3), "max_us": round(max(microseconds), 3)}), flush=True)


def time_graph(launch, rounds):
    """Microseconds of one launch, once per replay of a graph with a launch for every round."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        launch(0)
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for r in range(rounds):
            launch(r)
    return time_calls(graph.replay, rounds)


def time_calls(call, launches, repetitions=REPLAYS):
    for _ in range(3):
        call()
    times = []
    for _ in range(repetitions):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / launches)
    return times


class Layer:
    """Tensors of `rounds` calls, each of `tokens` tokens and `rows` slots of their own."""

    def __init__(self, rows, heads, tokens, dtype, least_bytes=300e6):
        slot_bytes = heads * D * D * torch.finfo(dtype).bits // 8
        self.rounds = int(max(2, min(160, least_bytes // (rows * slot_bytes))))
        self.pool = torch.randn(self.rounds * rows, heads, D, D, device=DEVICE).mul_(0.1).to(dtype)
        def make(*shape):
            return torch.randn(self.rounds, 1, tokens, heads, *shape, device=DEVICE, dtype=torch.bfloat16)
        self.q, self.k, self.v, self.g = make(D), make(D), make(D), make(D)
        self.beta = make()
        self.out = torch.empty_like(self.v)
        self.A_log = torch.randn(heads, device=DEVICE) * 0.3
        self.dt_bias = torch.randn(heads * D, device=DEVICE) * 0.5
        self.slots = torch.stack([r * rows + torch.randperm(rows, device=DEVICE) for r in range(self.rounds)])

    def parameters(self):
        return dict(A_log=self.A_log, dt_bias=self.dt_bias)


def recurrence(layer, round_, slots_of_tokens):
    """Outputs of the tokens, each from the state of its slot, in float64. A token's slot is not written."""
    norm = lambda x: x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)
    q, k = norm(layer.q[round_, 0].double()), norm(layer.k[round_, 0].double())
    raw = layer.g[round_, 0].double() + layer.dt_bias.double().view(-1, D)
    decay = torch.exp(LOWER_BOUND * torch.sigmoid(layer.A_log.double().exp()[:, None] * raw))
    state = layer.pool[slots_of_tokens].double() * decay[:, :, None, :]
    correction = layer.beta[round_, 0].double().sigmoid()[..., None] * (
        layer.v[round_, 0].double() - torch.einsum("thvk,thk->thv", state, k))
    state = state + correction[..., None] * k[:, :, None, :]
    return torch.einsum("thvk,thk->thv", state, q) * D**-0.5


def bench_decode(rows, heads, dtype_name):
    layer = Layer(rows, heads, rows, DTYPES[dtype_name])
    cu_seqlens = torch.arange(rows + 1, device=DEVICE)
    def launch(r):
        fused_recurrent_kda_fwd(layer.q[r], layer.k[r], layer.v[r], layer.g[r], layer.beta[r], **layer.parameters(),
                                initial_state=layer.pool, scale=D**-0.5, inplace_final_state=True, cu_seqlens=cu_seqlens,
                                ssm_state_indices=layer.slots[r], out=layer.out[r], **FLAGS)
    expected = recurrence(layer, 0, layer.slots[0])
    launch(0)
    error = ((layer.out[0, 0].double() - expected).norm() / expected.norm()).item()
    if error > 5e-3:
        sys.exit(f"peers: decode {dtype_name} H={heads} N={rows}: relative error {error:.1e}, not timed")
    report(f"decode {dtype_name} H={heads} N={rows} D={D}", time_graph(launch, layer.rounds))


def bench_verify(rows, heads, nodes, dtype_name):
    """A chain, with a state stored per node: node t of row n goes to slot nodes*n + t of the pool."""
    dtype = DTYPES[dtype_name]
    layer = Layer(rows * nodes, heads, rows * nodes, dtype, least_bytes=1200e6)
    cu_seqlens = torch.arange(rows + 1, device=DEVICE) * nodes
    slots = layer.slots.view(layer.rounds, rows, nodes)
    accepted = torch.ones(rows, dtype=torch.int64, device=DEVICE)
    def launch(r):
        fused_recurrent_kda_fwd(layer.q[r], layer.k[r], layer.v[r], layer.g[r], layer.beta[r], **layer.parameters(),
                                initial_state=layer.pool, scale=D**-0.5, inplace_final_state=True, cu_seqlens=cu_seqlens,
                                ssm_state_indices=slots[r], num_accepted_tokens=accepted, out=layer.out[r], **FLAGS)
    report(f"verify {dtype_name} H={heads} N={rows} D={D} T={nodes} chain", time_graph(launch, layer.rounds))


def bench_extend(name, lengths, heads):
    layer = Layer(len(lengths), heads, sum(lengths), torch.float32, least_bytes=1)
    cu_seqlens = torch.tensor([0] + lengths, device=DEVICE).cumsum(0)
    def launch(r=0):
        with torch.no_grad():
            return chunk_kda(layer.q[r], layer.k[r], layer.v[r], layer.g[r], layer.beta[r], initial_state=layer.pool[:len(lengths)],
                             output_final_state=True, safe_gate=True, cu_seqlens=cu_seqlens, **layer.parameters(), **FLAGS)
    report(f"extend fp32 H={heads} D={D} rows={name}", time_calls(launch, 1))


def main():
    wanted = sys.argv[1:] or ["decode", "verify", "extend"]
    if set(wanted) - {"decode", "verify", *EXTEND_HEADS}:
        sys.exit(__doc__.strip())
    torch.manual_seed(0)
    print(f"peers: flash-linear-attention {importlib.metadata.version('fla-core')}, torch {torch.__version__}, "
          f"{torch.cuda.get_device_name()}", file=sys.stderr)
    for dtype_name in DTYPES:
        if "decode" in wanted:
            for rows, heads in DECODE_SHAPES:
                bench_decode(rows, heads, dtype_name)
        if "verify" in wanted:
            for nodes in VERIFY_NODES:
                bench_verify(32, 32, nodes, dtype_name)
    for heads in [h for what in EXTEND_HEADS if what in wanted for h in EXTEND_HEADS[what]]:
        for name, lengths in EXTEND_ROWS.items():
            bench_extend(name, lengths, heads)
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
