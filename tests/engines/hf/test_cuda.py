"""CUDA tensors: graph capture and replay with new slots, trees and tips, streams, and what the host refuses. KDA_TEST_DEVICE=cuda."""

import threading

import pytest
import torch

import libkda
import libkda.fla
from libkda import functional, ops

if torch.get_default_device().type != "cuda":
    pytest.skip("KDA_TEST_DEVICE=cuda runs these on a GPU", allow_module_level=True)

H, D, NODES, ROWS, SLOTS = 4, 128, 6, 3, 9


def plan(**changes):
    return libkda.plan(**{**dict(backend="cuda", heads=H, key_dim=D, io_dtype="bfloat16", conv_width=4, max_rows=ROWS, max_tokens=ROWS * NODES,
                                 max_nodes=NODES), **changes})


def tokens(count, seed=0):
    torch.manual_seed(seed)
    make = lambda *shape: torch.randn(count, H, *shape).bfloat16()  # noqa: E731
    return dict(q=make(D), k=make(D), v=make(D), a=make(D), b=make(), out=torch.full((count, H, D), float("nan")).bfloat16())


PARAMETERS = dict(A_log=torch.randn(H) * 0.3, dt_bias=torch.randn(H * D) * 0.5)


def pool(dtype=torch.float32):
    torch.manual_seed(99)
    return (torch.randn(SLOTS, H, D, D) * 0.1).to(dtype)


def capture(step):
    """A CUDA graph of step(), warmed up on a side stream as torch asks for."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph


def path_to(tree, tip):
    path = []
    while tip >= 0:
        path.append(tip)
        tip = tree[tip]
    return path[::-1]


@pytest.mark.parametrize("state_dtype", ["float32", "bfloat16"])
def test_a_captured_verify_and_commit_gives_the_bits_of_decode(state_dtype):
    """One graph, replayed with other slots, trees and tips; the judge decodes each accepted path token by token."""
    made = plan(state_dtype=state_dtype)
    handle = ops.register_plan(made)
    state = pool(getattr(torch, state_dtype))
    cuts = torch.arange(0, ROWS * NODES + 1, NODES, dtype=torch.int32)
    static = dict(tokens(ROWS * NODES), slots=torch.tensor([1, 3, 0], dtype=torch.int32))
    parents = torch.tensor([-1, 0, 1, 2, 3, 4] * ROWS, dtype=torch.int32)
    tips = torch.zeros(ROWS, dtype=torch.int32)
    records = torch.zeros(ROWS, made.record_row_bytes, dtype=torch.uint8)

    def step():
        ops.verify(handle, **static, **PARAMETERS, state=state, cu_seqlens=cuts, parents=parents, records=records)
        ops.commit(handle, state=state, slots=static["slots"], tips=tips, records=records)

    graph = capture(step)
    generator = torch.Generator(device="cpu").manual_seed(5)
    for round_ in range(4):
        state.copy_(pool())
        before = state.clone()
        for name, value in tokens(ROWS * NODES, seed=round_ + 1).items():
            static[name].copy_(value)
        slots = torch.randperm(SLOTS, generator=generator, device="cpu")[:ROWS]
        trees = [[-1] + [int(torch.randint(0, node, (), generator=generator, device="cpu")) for node in range(1, NODES)] for _ in range(ROWS)]
        tip = [int(torch.randint(0, NODES, (), generator=generator, device="cpu")) for _ in range(ROWS)]
        static["slots"].copy_(slots)
        parents.copy_(torch.tensor(sum(trees, [])))
        tips.copy_(torch.tensor(tip))
        graph.replay()
        expected, one = before.clone(), torch.zeros(1, dtype=torch.int32)
        for row in range(ROWS):
            one.fill_(int(slots[row]))
            for node in path_to(trees[row], tip[row]):
                at = slice(row * NODES + node, row * NODES + node + 1)
                token = {name: static[name][at] for name in ("q", "k", "v", "a", "b")}
                out = torch.empty_like(token["v"])
                made.decode(**token, **PARAMETERS, out=out, state=expected, slots=one,
                            workspace=torch.empty(made.workspace_bytes, dtype=torch.uint8))
                assert torch.equal(out, static["out"][at]), (round_, row, node)
        assert torch.equal(state, expected) and not torch.equal(state, before)


def test_functional_is_captured_once_its_plan_exists():
    inputs = [torch.randn(1, 64, H, D).bfloat16() for _ in range(3)] + [-torch.rand(1, 64, H, D), torch.rand(1, 64, H)]
    with torch.inference_mode():
        expected = functional.chunk_kda(*inputs, output_final_state=True, use_qk_l2norm_in_kernel=True)
        kept = {}

        def step():
            kept["out"], kept["final"] = functional.chunk_kda(*inputs, output_final_state=True, use_qk_l2norm_in_kernel=True)

        graph = capture(step)
        kept["out"].zero_()
        graph.replay()
        assert torch.equal(kept["out"], expected[0]) and torch.equal(kept["final"], expected[1])
        inputs[2].mul_(2)  # the graph reads what its inputs hold now
        graph.replay()
        assert not torch.equal(kept["out"], expected[0])


def test_a_first_call_during_capture_is_declined():
    from fla.ops.kda import chunk_kda

    inputs = [torch.randn(1, 192, 3, 32).bfloat16() for _ in range(3)] + [-torch.rand(1, 192, 3, 32), torch.rand(1, 192, 3)]
    libkda.fla.reset_counters()
    graph = torch.cuda.CUDAGraph()
    with torch.inference_mode(), torch.cuda.graph(graph), pytest.raises(libkda.Error, match="capture"):
        functional.chunk_kda(*inputs)
    from libkda.functional import chunk_call

    graph = torch.cuda.CUDAGraph()
    with torch.inference_mode(), torch.cuda.graph(graph):
        assert "capture" in str(chunk_call(*inputs).refusal())
    with torch.inference_mode():
        chunk_kda(*inputs)
    assert libkda.fla.counters()["served"] == {"chunk_kda": 1}


def test_calls_follow_the_current_stream():
    made = plan()
    state, slots = pool(), torch.arange(ROWS, dtype=torch.int32)
    given = tokens(ROWS)
    workspace = torch.empty(made.workspace_bytes, dtype=torch.uint8)
    expected = state.clone()
    made.decode(**given, **PARAMETERS, state=expected, slots=slots, workspace=workspace)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        torch.cuda._sleep(200_000_000)  # a call on another stream would overtake the copy that follows
        zeros = torch.zeros_like(state)
        zeros.copy_(state)
        made.decode(**given, **PARAMETERS, state=zeros, slots=slots, workspace=workspace)
    side.synchronize()
    assert torch.equal(zeros, expected)


def test_a_plan_serves_several_threads():
    made, state = plan(), pool()
    expected = state.clone()
    given = [tokens(1, seed) for seed in range(SLOTS)]
    slots = [torch.full((1,), slot, dtype=torch.int32) for slot in range(SLOTS)]
    spaces = [torch.empty(made.workspace_bytes, dtype=torch.uint8) for _ in range(SLOTS)]
    call = lambda slot, target: made.decode(**given[slot], **PARAMETERS, state=target, slots=slots[slot], workspace=spaces[slot])  # noqa: E731
    for slot in range(SLOTS):
        call(slot, expected)
    torch.cuda.synchronize()
    threads = [threading.Thread(target=call, args=(slot, state)) for slot in range(SLOTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    assert torch.equal(state, expected)


def test_device_status_reports_a_bad_slot():
    made, state = plan(), pool()
    status = torch.zeros(1, dtype=torch.int32).view(torch.uint32)
    before = state.clone()
    made.decode(**tokens(ROWS), **PARAMETERS, state=state, slots=torch.tensor([1, SLOTS + 5, 2]), device_status=status,
                workspace=torch.empty(made.workspace_bytes, dtype=torch.uint8))
    torch.cuda.synchronize()
    assert status.view(torch.int32).item() == 1  # a slot beyond its pool
    assert torch.equal(state[[0, 3, 4, 5, 6, 7, 8]], before[[0, 3, 4, 5, 6, 7, 8]])


def test_what_is_refused():
    made, state = plan(), pool()
    arguments = dict(tokens(ROWS), **PARAMETERS, state=state, slots=torch.arange(ROWS), workspace=torch.empty(made.workspace_bytes, dtype=torch.uint8))
    made.decode(**arguments)
    torch.cuda.synchronize()
    before = state.clone()
    for change, code in ((dict(q=arguments["q"].cpu()), "KDA-1008"), (dict(state=state.cpu()), "KDA-1008"),
                         (dict(q=arguments["q"].float()), "KDA-1004"), (dict(v=arguments["v"][:, :, :64]), "KDA-1003")):
        with pytest.raises(libkda.Error) as refusal:
            made.decode(**{**arguments, **change})
        assert refusal.value.code == code, change.keys()
    torch.cuda.synchronize()
    assert torch.equal(state, before)


def test_the_machine_is_described():
    assert libkda.info()["gpu"] and any(row["name"].startswith("cuda_") for row in libkda.info()["kernels"])
    assert libkda.can_run(backend="cuda", heads=H, key_dim=D) is None
    assert libkda.can_run(backend="cuda", heads=H, key_dim=24) is not None
