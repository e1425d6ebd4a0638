"""What a call writes besides its results: the workspace, the status word, a pool that moves within itself."""

import numpy as np
import pytest

import libkda

H, K, T = 2, 32, 6


@pytest.fixture
def plan():
    return libkda.plan(backend="cpu", heads=H, key_dim=K, io_dtype="float32", max_rows=2, max_tokens=T, max_nodes=4)


def tokens():
    rng = np.random.default_rng(0)
    q, k, v, a = (rng.standard_normal((2, H, K), np.float32) for _ in range(4))
    return dict(q=q, k=k, v=v, a=a, b=rng.standard_normal((2, H), np.float32), A_log=np.zeros(H, np.float32),
                dt_bias=np.zeros(H * K, np.float32), out=np.full((2, H, K), 7, np.float32),
                state=np.zeros((4, H, K, K), np.float32), slots=np.array([1, 2], np.int32))


def aligned(size):
    memory = np.zeros(size + 4096, np.uint8)
    begin = -memory.ctypes.data % 4096
    return memory[begin:begin + size]


def refused(call, code, **arguments):
    with pytest.raises(libkda.Error) as error:
        call(**arguments)
    assert error.value.code == code


def test_a_workspace_of_the_callers(plan):
    first, second = tokens(), tokens()
    plan.decode(**first)
    plan.decode(**second, workspace=aligned(plan.workspace_bytes))
    assert np.array_equal(first["out"], second["out"]) and np.array_equal(first["state"], second["state"])


def test_a_workspace_with_repeated_or_reversed_bytes(plan):
    memory = aligned(2 * plan.workspace_bytes)
    repeated = np.lib.stride_tricks.as_strided(memory, (plan.workspace_bytes,), (0,))
    backwards = memory[plan.workspace_bytes:0:-1]
    for workspace in (repeated, backwards, memory[::2]):
        call = tokens()
        refused(plan.decode, "KDA-1005", **call, workspace=workspace)
        assert not memory.any() and (call["out"] == 7).all()


@pytest.mark.parametrize("name", ["q", "out", "state"])
def test_a_workspace_inside_another_argument(plan, name):
    call = tokens()
    workspace = aligned(plan.workspace_bytes)
    inside = workspace[:call[name].nbytes].view(np.float32).reshape(call[name].shape)
    inside[...] = call[name]
    before = inside.copy()
    refused(plan.decode, "KDA-1007", **{**call, name: inside}, workspace=workspace)
    assert np.array_equal(inside, before)


def test_the_status_word(plan):
    records = np.full((2, plan.record_row_bytes), 255, np.uint8)
    call = dict(state=tokens()["state"], slots=np.array([2]), tips=np.array([3]), records=records)
    for status, code in ((np.zeros(1, np.float64), "KDA-1004"), (np.zeros(4, np.uint8), "KDA-1004"),
                         (np.zeros(0, np.uint32), "KDA-1003")):
        refused(plan.commit, code, **call, device_status=status)
        assert not status.any()
    status = np.zeros(1, np.uint32)
    plan.commit(**call, device_status=status)
    assert status[0] == 16  # a bad record


def test_a_read_only_pool_does_not_move_within_itself(plan):
    state = np.zeros((4, H, K, K), np.float32)
    state[0] = 1
    state.flags.writeable = False
    for destination in ({}, dict(destination=None)):
        refused(plan.move, "KDA-1011", source=state, source_slots=np.array([0]), destination_slots=np.array([1]),
                **destination)
        assert not state[1].any()


def test_numbers_of_more_than_32_bits(plan):
    for name in ("heads", "key_dim", "max_rows", "layers"):
        with pytest.raises(libkda.Error, match=str(2**32 + 2)) as error:
            libkda.plan(**{**dict(heads=2, key_dim=32), name: 2**32 + 2})
        assert error.value.code in ("KDA-1012", "KDA-3002")  # 3002: the field holds it, the library does not
    state = np.zeros((4, H, K, K), np.float32)
    refused(plan.move, "KDA-1012", source=state, source_slots=np.array([0]), destination_slots=np.array([1]), layers=2**32 + 1)


def test_a_view_without_its_array(plan):
    refused(plan.decode, "KDA-1004", **{**tokens(), "q": libkda.View.__new__(libkda.View)})


def test_one_operation_by_name():
    assert libkda.can_run(backend="cpu", heads=2, key_dim=32, operations="decode") is None
    with pytest.raises(libkda.Error, match="decod"):
        libkda.can_run(backend="cpu", heads=2, key_dim=32, operations="decod")
