"""The installed package: versions, the command, replay files, what info() says."""

import importlib.metadata
import json
import pathlib
import subprocess
import sys

import numpy as np
import pytest

import libkda
import libkda.replay
from arrays import World
from libkda import command
from libkda.replay import Case, Tensor

CASES = sorted((pathlib.Path(__file__).parent.parent / "data").glob("*/*.safetensors"))
installed = pytest.mark.skipif(not (command.HERE / "bin" / "kda").is_file(), reason="built without the kda command")


def kda(*arguments):
    return subprocess.run([sys.executable, "-m", "libkda.command", *map(str, arguments)], capture_output=True, text=True, timeout=120)


def test_the_versions_agree():
    try:
        assert importlib.metadata.version("libkda") == libkda.__version__
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("not installed")


def test_the_package_is_typed():
    assert (command.HERE / "py.typed").is_file() and (command.HERE / "_core.pyi").is_file()


def test_info_tells_how_it_was_built():
    info = libkda.info()
    assert info["version"] == libkda.__version__
    assert "cpu" in json.dumps(info) and "reference" in json.dumps(info)


@installed
def test_the_command_comes_with_the_package():
    shown = kda("info", "--json")
    assert shown.returncode == 0 and json.loads(shown.stdout)
    assert kda("no-such-command").returncode == 2


@pytest.mark.skipif(not CASES, reason="no case files")
def test_replay_files_are_read_and_written(tmp_path):
    for path in CASES:
        case = libkda.replay.read(path)
        copy = tmp_path / path.name
        libkda.replay.write(copy, case)
        again = libkda.replay.read(copy)
        assert again.metadata == case.metadata and again.tensors.keys() == case.tensors.keys()
        for name, tensor in case.tensors.items():
            assert (again.tensors[name].dtype, again.tensors[name].array.shape) == (tensor.dtype, tensor.array.shape)
            assert again.tensors[name].array.tobytes() == tensor.array.tobytes()


@installed
def test_a_case_written_here_replays(tmp_path):
    world = World(21, tokens=5, io="bfloat16")
    world.fill(1, 2)
    before = world.pool.copy()
    rows = dict(slots=np.array([1, 2], np.int32), cu_seqlens=np.array([0, 3, 5], np.int32))
    libkda.plan(backend="cpu", **world.problem()).extend(**world.arguments(), **rows)
    tensors = {name: Tensor.of(array, "BF16") for name, array in world.arrays.items()}
    others = dict(rows, A_log=world.A_log, dt_bias=world.dt_bias, state=before, **{"expect.state": world.pool})
    tensors.update({name: Tensor.of(array) for name, array in others.items()})
    tensors["expect.out"] = Tensor.of(Tensor(world.out, "BF16").values())
    metadata = {"kda.replay": "1", "kda.op": "extend", "kda.gate": "softplus", "kda.beta": "sigmoid", "kda.qk_l2norm": "1",
                "kda.scale": repr(world.key_dim ** -0.5)}
    path = tmp_path / "extend.safetensors"
    libkda.replay.write(path, Case(metadata, tensors))
    shown = kda("replay", path)
    assert shown.returncode == 0, shown.stdout + shown.stderr
    world.pool[1, 0, 0, 0] += 1
    libkda.replay.write(path, Case(metadata, tensors))
    assert kda("replay", path).returncode == 1


def test_damaged_files_are_refused(tmp_path):
    good = tmp_path / "good.safetensors"
    libkda.replay.write(good, Case({"kda.replay": "1", "kda.op": "move"}, {"state": Tensor.of(np.zeros((2, 3), np.float32))}))
    content = good.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = content[8:8 + size]

    def with_header(text):
        return len(text).to_bytes(8, "little") + text + content[8 + size:]

    damaged = [b"", content[:7], content[:20], content[:-1], (1 << 62).to_bytes(8, "little") + content[8:], with_header(b"[]"),
               with_header(b"{"), with_header(header.replace(b'"F32"', b'"F33"')), with_header(header.replace(b"[2,3]", b"[2,-3]")),
               with_header(header.replace(b"[2,3]", b"[2,4]")), with_header(header.replace(b"[0,24]", b"[24,0]")),
               with_header(header.replace(b"[0,24]", b"[0,1e9]")), with_header(header.replace(b"kda.op", b"kda.oq")),
               with_header(header.replace(b'"kda.replay":"1"', b'"kda.replay":"9"')), with_header(b"[" * 100000),
               with_header(header.replace(b"[2,3]", b"[4294967296,4294967296,0]"))]
    path = tmp_path / "damaged.safetensors"
    for position, bad in enumerate(damaged):
        path.write_bytes(bad)
        try:
            case = libkda.replay.read(path)
        except ValueError as error:
            assert "damaged.safetensors" in str(error)
        else:
            pytest.fail(f"damaged file {position} was read: {case}")


def test_the_built_in_model_is_unpacked_only_where_it_is_wanted():
    needs_built_in_model = command.needs_built_in_model

    assert needs_built_in_model(["generate"]) and needs_built_in_model(["generate", "--prompt", "a"])
    for words in ([], ["info"], ["generate", "-h"], ["generate", "--help"], ["generate", "--model", "x"], ["generate", "--model=x"]):
        assert not needs_built_in_model(words)


def test_a_model_that_cannot_be_unpacked_is_one_line_with_the_way_out(monkeypatch, tmp_path):
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "unpack-demo-model").write_text("raise PermissionError('no room')")
    monkeypatch.setattr(command, "HERE", tmp_path)
    monkeypatch.delenv("KDA_MODEL_DIR", raising=False)
    with pytest.raises(OSError, match="cannot be unpacked into .*no room; way out: set XDG_CACHE_HOME"):
        command.demo_model()
