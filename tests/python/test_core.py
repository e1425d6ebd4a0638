"""The package on NumPy arrays: a tree, a commit, refusals, and that nothing is written where a call is refused."""

import numpy as np
import pytest

import libkda

NODES, K, V = 5, 4, 2


def tree_arguments():
    """q = k = first unit vector, decay and step 1/2: along every path s' = s/4 + v/2, from s = 8."""
    q = np.zeros((NODES, 1, K), np.float32)
    q[:, :, 0] = 1
    v = np.broadcast_to(np.array([4, 8, 16, 0, 32], np.float32)[:, None, None], (NODES, 1, V)).copy()
    state = np.full((3, 1, V, K), np.nan, np.float32)
    state[1] = 0
    state[1, 0, :, 0] = 8
    return dict(
        q=q, k=q.copy(), v=v, a=np.full((NODES, 1, K), np.log(0.5), np.float32), b=np.full((NODES, 1), 0.5, np.float32),
        out=np.full((NODES, 1, V), np.nan, np.float32), scale=1.0, state=state, slots=np.array([1], np.int32),
        cu_seqlens=np.array([0, NODES], np.int64), parents=np.array([-1, 0, 0, 1, 2], np.int32))


def tree_plan(**changes):
    problem = dict(heads=1, key_dim=K, value_dim=V, io_dtype="float32", gate="precomputed", beta="none",
                   max_tokens=NODES, max_nodes=NODES)
    return libkda.plan(**{**problem, **changes})


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_tree_verify_and_commit(backend):
    plan = tree_plan(backend=backend)
    args = tree_arguments()
    args["records"] = np.zeros((1, plan.record_row_bytes), np.uint8)
    before = args["state"].copy()
    plan.verify(**args)
    np.testing.assert_allclose(args["out"][:, 0, 0], [4, 5, 9, 1.25, 18.25], rtol=1e-6)
    assert args["state"].tobytes() == before.tobytes()
    plan.commit(state=args["state"], slots=args["slots"], tips=np.array([2], np.int32), records=args["records"])
    np.testing.assert_allclose(args["state"][1, 0, :, 0], 9, rtol=1e-6)
    assert np.isnan(args["state"][[0, 2]]).all()


def test_pool_tensors_are_views():
    plan = tree_plan(conv_width=4, layers=2)
    pool = libkda.Pool(plan, slots=2, record_rows=1)
    slot = pool.acquire()
    state = np.from_dlpack(pool.state(1))
    state[slot.id] = 3
    image = pool.snapshot(slot)
    fork = pool.fork(slot)
    assert (np.from_dlpack(pool.state(1))[fork.id] == 3).all()
    pool.release(fork)
    with pytest.raises(libkda.Error) as stale:
        pool.release(fork)
    assert stale.value.code == "KDA-4001"
    state[slot.id] = 4
    pool.restore(slot, image)
    assert (state[slot.id] == 3).all()


@pytest.mark.parametrize("change", [
    dict(q=np.zeros((NODES, 2, K), np.float32)),
    dict(q=np.zeros((NODES, 1, K), np.float64)),
    dict(q=np.zeros((NODES, 1, 2 * K), np.float32)[..., ::2]),
    dict(slots=np.array([3], np.int32)),
    dict(slots=np.array([1], np.float32)),
    dict(parents=np.array([-1, 0, 0, 3, 2], np.int32)),
    dict(cu_seqlens=np.array([0, NODES + 1], np.int32)),
    dict(v=object()),
])
def test_a_refused_call_writes_nothing(change):
    plan = tree_plan()
    args = {**tree_arguments(), **change}
    state = args["state"].copy()
    with pytest.raises(libkda.Error) as refusal:
        plan.verify(**args)
    assert refusal.value.code.startswith("KDA-") and refusal.value.asked and refusal.value.way_out
    assert np.isnan(args["out"]).all()
    assert args["state"].tobytes() == state.tobytes()


def test_read_only_outputs_are_refused():
    args = tree_arguments()
    args["out"].flags.writeable = False
    with pytest.raises(libkda.Error):
        tree_plan().verify(**args)


def test_unknown_keywords_are_type_errors():
    with pytest.raises(TypeError, match="quiet"):
        tree_plan().verify(quiet=1)
    with pytest.raises(TypeError, match="heeds"):
        libkda.plan(heeds=1)


def test_can_run_says_what_plan_would():
    assert libkda.can_run(heads=1, key_dim=64) is None
    refusal = libkda.can_run(heads=1, key_dim=257)
    with pytest.raises(libkda.Error) as error:
        libkda.plan(heads=1, key_dim=257)
    assert (refusal.code, refusal.asked) == (error.value.code, error.value.asked)


def test_info_names_the_backends():
    assert libkda.info()["version"] == libkda.__version__
