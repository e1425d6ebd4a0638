"""torch.ops.libkda: opcheck, torch.compile without graph breaks, and the same bits as the methods of Plan."""

import pytest
import torch

import libkda
import libkda.ops
from libkda import ops

H, K, NODES, ROWS = 2, 16, 4, 3


def plan(**changes):
    return libkda.plan(**{**dict(backend=torch.get_default_device().type, heads=H, key_dim=K, io_dtype="float32", conv_width=4, max_rows=ROWS, max_tokens=ROWS * NODES,
                                 max_nodes=NODES, max_snapshots=2), **changes})


def tokens(count, seed=0):
    torch.manual_seed(seed)
    return dict(q=torch.randn(count, H, K), k=torch.randn(count, H, K), v=torch.randn(count, H, K), a=torch.randn(count, H, K),
                b=torch.randn(count, H), A_log=torch.randn(H), dt_bias=torch.randn(H * K), out=torch.full((count, H, K), float("nan")))


def calls(made):
    """(operation, keyword arguments) of every operator."""
    cuts, slots = torch.arange(0, ROWS * NODES + 1, NODES), torch.tensor([1, 3, 0])
    state, window = torch.randn(5, H, K, K), torch.randn(5, 3, 3 * H * K)
    records = torch.zeros(ROWS, made.record_row_bytes, dtype=torch.uint8)
    conv_records = torch.zeros(ROWS, made.conv_record_row_bytes, dtype=torch.uint8)
    parents = torch.tensor([-1, 0, 0, 1] * ROWS, dtype=torch.int32)
    made.verify(**tokens(ROWS * NODES), state=state, slots=slots, cu_seqlens=cuts, parents=parents, records=records)
    channels = dict(weight=torch.randn(3 * H * K, 4), state=window, slots=slots)
    x = torch.randn(ROWS * NODES, 3 * H * K)
    made.conv_verify(**channels, x=x, out=torch.empty_like(x), cu_seqlens=cuts, parents=parents, records=conv_records)
    tips = torch.tensor([3, -1, 2])
    return [
        ("extend", dict(tokens(ROWS * NODES), state=state, slots=slots, cu_seqlens=cuts, scale=0.5)),
        ("decode", dict(tokens(ROWS), state=state, slots=slots)),
        ("verify", dict(tokens(ROWS * NODES), state=state, slots=slots, cu_seqlens=cuts, parents=parents, records=records)),
        ("commit", dict(state=state, slots=slots, tips=tips, records=records)),
        ("move", dict(source=state, source_slots=torch.tensor([0, 1]), destination_slots=torch.tensor([1, 0]))),
        ("conv_extend", dict(channels, x=x, out=torch.empty_like(x), cu_seqlens=cuts)),
        ("conv_decode", dict(channels, x=x[:ROWS], out=torch.empty_like(x[:ROWS]))),
        ("conv_verify", dict(channels, x=x, out=torch.empty_like(x), cu_seqlens=cuts, parents=parents, records=conv_records)),
        ("conv_commit", dict(state=window, slots=slots, tips=tips, records=conv_records)),
        ("conv_move", dict(source=window, source_slots=torch.tensor([0, 1]), destination_slots=torch.tensor([1, 0]))),
    ]


@pytest.mark.parametrize("position", range(10))
def test_opcheck(position):
    made = plan()
    operation, arguments = calls(made)[position]
    torch.library.opcheck(getattr(torch.ops.libkda, operation).default, (ops.register_plan(made),), arguments)


@pytest.mark.parametrize("position", range(10))
@pytest.mark.parametrize("through", ["function", "operator"])
def test_the_bits_are_those_of_plan(position, through):
    made = plan()
    operation, arguments = calls(made)[position]
    copies = {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in arguments.items()}
    getattr(made, operation)(**copies)
    call = getattr(ops, operation) if through == "function" else getattr(torch.ops.libkda, operation)
    call(ops.register_plan(made), **arguments)
    for name, value in arguments.items():
        if isinstance(value, torch.Tensor):
            assert value.equal(copies[name]) or value.isnan().any(), name


def test_compiles_without_graph_breaks():
    made = plan()
    handle = ops.register_plan(made)

    def layer(q, k, v, a, b, A_log, state, slots):
        out = torch.empty_like(v)
        ops.decode(handle, q=q * 2, k=k, v=v, a=a, b=b, A_log=A_log, out=out, state=state, slots=slots)
        return out.relu() + 1

    given = {name: value for name, value in tokens(ROWS).items() if name not in ("out", "dt_bias")}
    state, slots = torch.randn(5, H, K, K), torch.tensor([1, 3, 0])
    first, second = state.clone(), state.clone()
    eager = layer(**given, state=first, slots=slots)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")(**given, state=second, slots=slots)
    assert torch.equal(eager, compiled) and torch.equal(first, second) and not torch.equal(first, state)


def test_refusals():
    made = plan()
    handle = ops.register_plan(made)
    arguments = dict(tokens(ROWS), state=torch.zeros(5, H, K, K), slots=torch.tensor([1, 3, 9]))
    if torch.get_default_device().type == "cpu":  # index values on a GPU are not read by the host: device_status has them
        with pytest.raises(libkda.Error) as refusal:
            ops.decode(handle, **arguments)
        assert refusal.value.code == "KDA-2001"
    with pytest.raises(libkda.Error) as refusal:
        ops.decode(handle, **{**arguments, "slots": torch.tensor([1, 3])})
    assert refusal.value.code == "KDA-1003"
    ops.release_plan(handle)
    with pytest.raises(ValueError, match="handle"):
        ops.decode(handle, **arguments)
