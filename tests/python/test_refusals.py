"""What is refused raises libkda.Error and writes nothing: wrong shapes, dtypes, strides, devices, values, read-only arrays."""

import ctypes
import inspect
import pickle

import numpy as np
import pytest

import libkda
from arrays import World
from libkda import _core, replay

OPERATIONS = ["extend", "decode", "verify", "commit", "move", "conv_extend", "conv_decode", "conv_verify", "conv_commit", "conv_move"]


class OnCuda:
    """A CPU array whose DLPack capsule says that it lies on a GPU."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **kwargs):
        capsule = self.array.__dlpack__(max_version=(1, 0))
        get = ctypes.pythonapi.PyCapsule_GetPointer
        get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        managed = get(capsule, b"dltensor_versioned")
        ctypes.c_int32.from_address(managed + 40).value = 2  # after version, manager_ctx, deleter, flags and data: kDLCUDA
        return capsule


def read_only(array):
    array = array.copy()
    array.flags.writeable = False
    return array


def call(world, plan, **changes):
    arguments = dict(world.arguments(), slots=np.array([1, 2], np.int32), cu_seqlens=np.array([0, 3, 5], np.int32))
    arguments.update({name: change(arguments.get(name)) for name, change in changes.items()})
    plan.extend(**arguments)


@pytest.mark.parametrize("name, change, code", [
    ("q", lambda q: q[:, :1], "KDA-1003"),
    ("k", lambda k: k[:-1], "KDA-1003"),
    ("v", lambda v: v.astype(np.float64), "KDA-1004"),
    ("v", lambda v: v.astype(np.float16), "KDA-1004"),
    ("a", lambda a: a.astype(np.int32), "KDA-1004"),
    ("q", lambda q: np.repeat(q, 2, axis=2)[..., ::2], "KDA-1005"),
    ("state", lambda s: np.repeat(s, 2, axis=3)[..., ::2], "KDA-1005"),
    ("q", OnCuda, "KDA-1008"),
    ("state", OnCuda, "KDA-1008"),
    ("out", lambda out: read_only(out), "KDA-1011"),
    ("state", lambda s: read_only(s), "KDA-1011"),
    ("slots", lambda s: np.array([1, 1]), "KDA-2002"),
    ("slots", lambda s: np.array([1, 6]), "KDA-2001"),
    ("slots", lambda s: np.array([1.0, 2.0]), "KDA-1004"),
    ("cu_seqlens", lambda c: np.array([0, 4, 3]), "KDA-2005"),
    ("cu_seqlens", lambda c: np.array([0, 3, 6]), "KDA-2005"),
    ("scale", lambda s: float("nan"), "KDA-1012"),
    ("b", lambda b: None, "KDA-1001"),
    ("q", lambda q: "a string", "KDA-1004"),
    ("dst_state", lambda d: np.zeros((2, 4, 12, 25), np.float32), None),
])
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_a_wrong_argument_writes_nothing(backend, name, change, code):
    world = World(11, tokens=5)
    world.fill(1, 2)
    before = world.pool.copy()
    with pytest.raises(libkda.Error) as refusal:
        call(world, libkda.plan(backend=backend, **world.problem()), **{name: change})
    if code:
        assert refusal.value.code == code, refusal.value
    assert refusal.value.asked and refusal.value.supported and refusal.value.way_out
    assert world.pool.tobytes() == before.tobytes()
    assert np.isnan(world.out).all()


def test_read_only_arrays_are_fine_where_nothing_is_written():
    world = World(12, tokens=5)
    world.fill(1, 2)
    target = np.zeros_like(world.pool)
    call(world, libkda.plan(backend="cpu", **world.problem()), state=read_only, q=read_only, dst_slots=lambda _: np.array([0, 1]),
         dst_state=lambda _: target)
    assert target[0].any()
    with pytest.raises(libkda.Error):  # dst_slots without a pool of its own: the source is written
        call(world, libkda.plan(backend="cpu", **world.problem()), state=read_only, dst_slots=lambda _: np.array([0, 3]))


def test_errors_survive_pickling():
    with pytest.raises(libkda.Error) as refusal:
        libkda.plan(heads=3, value_heads=4, key_dim=8)
    copy = pickle.loads(pickle.dumps(refusal.value))
    assert (copy.code, copy.asked, copy.supported, copy.way_out) == (
        refusal.value.code, refusal.value.asked, refusal.value.supported, refusal.value.way_out)


@pytest.mark.parametrize("changes", [dict(scale="wide"), dict(scale=[1]), dict(stream="main")])
def test_wrong_python_types_are_type_errors(changes):
    world = World(13, tokens=5)
    with pytest.raises(TypeError):
        call(world, libkda.plan(**world.problem()), **{name: lambda _, value=value: value for name, value in changes.items()})


def test_a_view_has_16_bit_elements():
    world = World(14, tokens=5, io="bfloat16")
    with pytest.raises(libkda.Error) as refusal:
        call(world, libkda.plan(**world.problem()), q=lambda _: libkda.view(np.zeros((5, 2, 24), np.float32)))
    assert refusal.value.code == "KDA-1004"
    with pytest.raises(libkda.Error):
        libkda.view(np.zeros(3, np.uint16), "float8")


@pytest.mark.parametrize("operation", OPERATIONS)
def test_docstrings_and_stubs_name_every_argument(operation):
    names = [name for name, _ in _core.tensor_arguments(operation)] + ["workspace", "device_status", "stream"]
    doc = getattr(_core.Plan, operation).__doc__
    stub = inspect.cleandoc(open(_core.__file__.rsplit("/", 1)[0] + "/_core.pyi").read())
    signature = stub.split(f"    def {operation}(", 1)[1].split("-> None", 1)[0]
    for name in names:
        assert f"{name}:" in signature, f"{name} is not in the stub of {operation}"
        stem = name.removesuffix("_table")
        assert stem in doc or (name.endswith("_table") and "*_table" in doc), f"{name} is not in the docstring of {operation}"


@pytest.mark.parametrize("dtype", ["[1]", "{}", "7", "null"])
def test_a_replay_file_with_a_dtype_that_is_no_name(tmp_path, dtype):
    header = '{"__metadata__":{"kda.replay":"1","kda.op":"move"},"x":{"dtype":%s,"shape":[],"data_offsets":[0,0]}}' % dtype
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header.encode())
    with pytest.raises(ValueError):
        replay.read(path)
