"""Every operation on NumPy arrays, on both backends, against the float64 recurrence, within the contract's limits."""

import numpy as np
import pytest

import libkda
from arrays import BACKENDS, World
from recurrence import relative_error, tree

LIMITS = {"float32": 1e-5, "bfloat16": 2.5e-3, "float16": 6e-4}
STATE_LIMIT = 1e-5
CUTS = np.array([0, 5, 5, 18, 19])  # four rows, one of them empty
SLOTS = np.array([4, 0, 2, 5], np.int32)


def chain(tokens):
    return range(-1, tokens - 1)


def judged_rows(world, before, cuts=CUTS, slots=SLOTS):
    outs, states = [], {}
    for row, slot in enumerate(slots):
        first, last = cuts[row], cuts[row + 1]
        part = world.row(first, last)
        out, nodes = tree(world.vk(before[slot]), parents=chain(last - first), **part)
        outs.append(out)
        states[slot] = nodes[-1] if len(nodes) else world.vk(before[slot])
    return np.concatenate(outs), states


def check_rows(world, before, cuts=CUTS, slots=SLOTS):
    outs, states = judged_rows(world, before, cuts, slots)
    assert relative_error(world.io.values(world.out), outs) < LIMITS[world.io.dtype]
    for slot, state in states.items():
        assert relative_error(world.vk(world.pool[slot]), state) < STATE_LIMIT
    untouched = [slot for slot in range(len(world.pool)) if slot not in states]
    assert world.pool[untouched].tobytes() == before[untouched].tobytes()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("forms", [
    dict(),
    dict(io="bfloat16", gate="bounded", beta="sigmoid2"),
    dict(io="float16", gate="precomputed", beta="none", layout="kv"),
    dict(gate="bounded", layout="kv", heads=1, value_heads=3, key_dim=17, value_dim=5),
])
def test_extend(backend, forms):
    world = World(1, tokens=int(CUTS[-1]), **forms)
    world.fill(*SLOTS)
    before = world.pool.copy()
    libkda.plan(backend=backend, **world.problem()).extend(**world.arguments(), slots=SLOTS, cu_seqlens=CUTS)
    check_rows(world, before)


def test_the_judge_sees_a_small_fault():
    world = World(1, tokens=int(CUTS[-1]))
    world.fill(*SLOTS)
    before = world.pool.copy()
    libkda.plan(backend="cpu", **world.problem()).extend(**world.arguments(), slots=SLOTS, cu_seqlens=CUTS)
    world.out[3] *= 1.001
    with pytest.raises(AssertionError):
        check_rows(world, before)


@pytest.mark.parametrize("backend", BACKENDS)
def test_extend_to_another_pool_with_snapshots(backend):
    world = World(2, tokens=int(CUTS[-1]))
    world.fill(*SLOTS)
    before = world.pool.copy()
    target = np.full((7, *world.pool.shape[1:]), np.nan, np.float32)
    shots = np.full((3, *world.pool.shape[1:]), np.nan, np.float16)
    libkda.plan(backend=backend, **world.problem(max_snapshots=3)).extend(
        **world.arguments(), slots=SLOTS, cu_seqlens=CUTS, dst_slots=np.array([6, 1, -1, 3]), dst_state=target, snapshots=shots,
        snapshot_rows=np.array([2, 0, 2]), snapshot_positions=np.array([7, 0, -1]), snapshot_slots=np.array([2, 0, 1]))
    assert world.pool.tobytes() == before.tobytes()
    outs, states = judged_rows(world, before)
    assert relative_error(world.out, outs) < LIMITS["float32"]
    assert relative_error(target[6], states[4]) < STATE_LIMIT
    assert target[1].tobytes() == before[0].tobytes()
    assert relative_error(target[3], states[5]) < STATE_LIMIT
    assert np.isnan(target[[0, 2, 4, 5]]).all()
    _, nodes = tree(before[2], parents=chain(13), **world.row(5, 18))
    assert relative_error(shots[2], nodes[6]) < 1e-3
    assert relative_error(shots[0], before[4]) < 1e-3
    assert np.isnan(shots[1]).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_fresh_and_null_rows(backend):
    world = World(3, tokens=6)
    world.fill(1, 2)
    before = world.pool.copy()
    plan = libkda.plan(backend=backend, **world.problem())
    plan.extend(**world.arguments(), slots=np.array([1, -1, 3], np.int64), has_state=np.array([1, 1, 0], np.uint8),
                cu_seqlens=np.array([0, 2, 4, 6]))
    before[3] = 0
    outs, states = judged_rows(world, before, np.array([0, 2, 4, 6]), [1, 2, 3])
    outs[2:4] = 0
    assert relative_error(world.out, outs) < LIMITS["float32"]
    assert relative_error(world.pool[3], states[3]) < STATE_LIMIT
    assert world.pool[2].tobytes() == before[2].tobytes()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("io", ["float32", "bfloat16"])
def test_decode_gives_the_bits_of_extend(backend, io):
    rows, length = 3, 4
    world = World(4, tokens=rows * length, io=io)
    world.fill(0, 1, 2)
    before = world.pool.copy()
    plan = libkda.plan(backend=backend, **world.problem())
    slots = np.arange(rows)
    plan.extend(**world.arguments(), slots=slots, cu_seqlens=np.arange(0, rows * length + 1, length))
    check_rows(world, before, np.arange(0, rows * length + 1, length), slots)
    extended, out = world.pool.copy(), world.out
    world.pool[:] = before
    for t in range(length):
        world.arguments()
        token = {name: world.io.argument(np.ascontiguousarray(array[t::length])) for name, array in world.arrays.items()}
        result = world.io.nan((rows, world.value_heads, world.value_dim))
        plan.decode(**token, A_log=world.A_log, dt_bias=world.dt_bias, out=world.io.argument(result), state=world.pool, slots=slots)
        assert result.tobytes() == np.ascontiguousarray(out[t::length]).tobytes()
    assert world.pool.tobytes() == extended.tobytes()


PARENTS = [-1, 0, 0, 1, 1, 2, -1]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("numerics", ["exact", "fast"])
def test_verify_and_commit(backend, numerics):
    nodes = len(PARENTS)
    world = World(5, tokens=2 * nodes)
    world.fill(1, 4)
    before = world.pool.copy()
    problem = world.problem(backend=backend, verify_numerics=numerics, max_nodes=nodes, max_snapshots=2)
    if libkda.can_run(**problem):
        problem["verify_numerics"] = "exact"
    plan = libkda.plan(**problem)
    limit = LIMITS["float32"] if problem["verify_numerics"] == "exact" else 1e-4
    records = np.full((3, plan.record_row_bytes), 0xAB, np.uint8)
    states = np.full((2, nodes, *world.pool.shape[1:]), np.nan, np.float32)
    rows = dict(slots=np.array([4, 1]), cu_seqlens=np.array([0, nodes, 2 * nodes]))
    parents = np.array(PARENTS * 2, np.int32)
    plan.verify(**world.arguments(), **rows, parents=parents, records=records, record_rows=np.array([2, 0]))
    assert world.pool.tobytes() == before.tobytes()
    judged = [tree(before[slot], parents=PARENTS, **world.row(row * nodes, (row + 1) * nodes)) for row, slot in enumerate([4, 1])]
    assert relative_error(world.out, np.concatenate([out for out, _ in judged])) < limit
    plan.verify(**world.arguments(), **rows, parents=parents, node_states=states)
    for row in range(2):
        assert relative_error(states[row], judged[row][1]) < limit

    shots = np.full((2, *world.pool.shape[1:]), np.nan, np.float32)
    plan.commit(state=world.pool, slots=np.array([4, 1]), tips=np.array([5, -1]), records=records, record_rows=np.array([2, 0]),
                snapshots=shots, snapshot_rows=np.array([0]), snapshot_positions=np.array([2]), snapshot_slots=np.array([1]))
    assert relative_error(world.pool[4], judged[0][1][5]) < limit
    assert relative_error(shots[1], judged[0][1][2]) < limit
    assert world.pool[1].tobytes() == before[1].tobytes()
    if problem["verify_numerics"] == "exact":
        assert world.pool[4].tobytes() == states[0, 5].tobytes()


@pytest.mark.parametrize("backend", BACKENDS)
def test_verify_with_pending_commit(backend):
    nodes = len(PARENTS)
    world = World(6, tokens=2 * nodes)
    world.fill(2)
    before = world.pool.copy()
    plan = libkda.plan(backend=backend, **world.problem(max_nodes=nodes))
    records = np.zeros((2, plan.record_row_bytes), np.uint8)
    row = dict(slots=np.array([2]), cu_seqlens=np.array([0, nodes]), parents=np.array(PARENTS), records=records)
    plan.verify(**world.arguments(0, nodes), **row, record_rows=np.array([0]))
    plan.verify(**world.arguments(nodes, None), **row, record_rows=np.array([1]), pending_tips=np.array([3]),
                pending_record_rows=np.array([0]))
    _, first = tree(before[2], parents=PARENTS, **world.row(0, nodes))
    outs, _ = tree(first[3], parents=PARENTS, **world.row(nodes, 2 * nodes))
    assert relative_error(world.pool[2], first[3]) < STATE_LIMIT
    assert relative_error(world.out, outs) < LIMITS["float32"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_move_is_one_assignment(backend):
    world = World(7, tokens=1)
    world.fill(0, 1, 2)
    before = world.pool.copy()
    plan = libkda.plan(backend=backend, **world.problem())
    plan.move(source=world.pool, source_slots=np.array([0, 1, 2]), destination_slots=np.array([1, 2, 0]))
    assert world.pool[[1, 2, 0]].tobytes() == before[[0, 1, 2]].tobytes()
    assert world.pool[3:].tobytes() == before[3:].tobytes()


def silu(x):
    return x / (1 + np.exp(-x))


def convolved(window, x, weight, bias, parents):
    """(outs [T, C], windows after every node [T, W-1, C]) from the committed window [W-1, C], oldest first."""
    outs, windows = [], []
    for t, parent in enumerate(parents):
        taps = np.concatenate([window if parent < 0 else windows[parent], x[t:t + 1]])
        windows.append(taps[1:])
        outs.append(silu((taps * weight.T).sum(0) + bias))
    return np.array(outs), np.array(windows)


@pytest.mark.parametrize("backend", BACKENDS)
def test_convolution(backend):
    rng = np.random.default_rng(8)
    nodes, width = len(PARENTS), 4
    plan = libkda.plan(backend=backend, heads=1, key_dim=4, value_dim=6, conv_width=width, io_dtype="float32", max_tokens=nodes, max_rows=2,
                       max_nodes=nodes)
    channels = 14
    x, weight, bias = (rng.standard_normal(shape).astype(np.float32) for shape in ((nodes, channels), (channels, width), (channels,)))
    pool = np.full((4, width - 1, channels), np.nan, np.float32)
    pool[[1, 3]] = rng.standard_normal((2, width - 1, channels))
    before = pool.copy()
    weights = dict(weight=weight, bias=bias, state=pool, x=x)

    out = np.full((nodes, channels), np.nan, np.float32)
    records = np.zeros((1, plan.conv_record_row_bytes), np.uint8)
    plan.conv_verify(**weights, out=out, slots=np.array([3]), cu_seqlens=np.array([0, nodes]), parents=np.array(PARENTS), records=records)
    outs, windows = convolved(before[3], x, weight, bias, PARENTS)
    assert pool.tobytes() == before.tobytes()
    assert relative_error(out, outs) < LIMITS["float32"]
    plan.conv_commit(state=pool, slots=np.array([3]), tips=np.array([5]), records=records)
    np.testing.assert_array_equal(pool[3], windows[5].astype(np.float32))

    pool[:] = before
    plan.conv_extend(**weights, out=out, slots=np.array([3, 1]), cu_seqlens=np.array([0, 2, nodes]))
    for slot, first, last in ((3, 0, 2), (1, 2, nodes)):
        outs, windows = convolved(before[slot], x[first:last], weight, bias, chain(last - first))
        assert relative_error(out[first:last], outs) < LIMITS["float32"]
        np.testing.assert_array_equal(pool[slot], windows[-1].astype(np.float32))
    assert np.isnan(pool[[0, 2]]).all()

    pool[:] = before
    one = dict(weights, x=x[:2])
    plan.conv_decode(**one, out=out[:2], slots=np.array([1, 3]))
    for row, slot in enumerate((1, 3)):
        outs, windows = convolved(before[slot], x[row:row + 1], weight, bias, [-1])
        assert relative_error(out[row], outs[0]) < LIMITS["float32"]
        np.testing.assert_array_equal(pool[slot], windows[0].astype(np.float32))

    pool[:] = before
    plan.conv_move(source=pool, source_slots=np.array([1]), destination_slots=np.array([2]))
    assert pool[2].tobytes() == before[1].tobytes()
