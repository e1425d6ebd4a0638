"""Replay files: one captured call as one safetensors file, read and written as NumPy arrays.

    case = libkda.replay.read("verify-tree.safetensors")
    case.metadata["kda.op"], case.tensors["q"].array, case.tensors["q"].dtype
    libkda.replay.write("copy.safetensors", case)

`kda replay FILE` runs such a file and compares it with its `expect.*` tensors. Files are untrusted: whatever is in them, read()
returns a Case or raises ValueError, and never reads outside the file. The metadata keys and tensor names are in docs/python.md.
"""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import tempfile

import numpy as np

from . import _core

__all__ = ["Case", "Tensor", "read", "write"]

# dtype in the file -> NumPy dtype of the array. BF16 lies as its bits: NumPy has no bfloat16.
_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4", "I16": "<i2", "I8": "i1", "U32": "<u4",
           "U16": "<u2", "U8": "u1", "BOOL": "?"}
_MOST_HEADER_BYTES = 16 << 20
_METADATA_KEYS = {"kda." + name for name in (
    "replay op gate lower_bound beta qk_l2norm scale state_layout null_slot0 single_root numerics backend target plan").split()}
_VERSION = "1"


@dataclasses.dataclass
class Tensor:
    """An array and its dtype in the file ("F32", "BF16", "I32", ...). BF16 is held as uint16 bits."""

    array: np.ndarray
    dtype: str

    @classmethod
    def of(cls, array: np.ndarray, dtype: str | None = None) -> Tensor:
        """The tensor of an array; say "BF16" for the bits of bfloat16."""
        array = np.asarray(array)
        if dtype is None:
            names = [name for name, code in _DTYPES.items() if np.dtype(code) == array.dtype and name != "BF16"]
            if not names:
                raise ValueError(f"{array.dtype} has no place in a replay file: {', '.join(_DTYPES)}")
            dtype = names[0]
        if dtype not in _DTYPES or array.dtype != np.dtype(_DTYPES[dtype]):
            raise ValueError(f"{dtype} is not the dtype of an array of {array.dtype}")
        return cls(array, dtype)

    def argument(self):
        """What a method of Plan takes: the array, or a View of it where its dtype is bfloat16."""
        return _core.View(self.array, "bfloat16") if self.dtype == "BF16" else self.array

    def values(self) -> np.ndarray:
        """The numbers, bfloat16 widened to float32."""
        if self.dtype != "BF16":
            return self.array
        return (self.array.astype(np.uint32) << 16).view(np.float32)


@dataclasses.dataclass
class Case:
    """One call: metadata (strings, `kda.*` keys) and tensors by name."""

    metadata: dict[str, str]
    tensors: dict[str, Tensor]

    def check(self) -> None:
        """Raises ValueError unless the metadata are those of a replay file of this version."""
        if self.metadata.get("kda.replay") != _VERSION:
            raise ValueError(f"kda.replay is {self.metadata.get('kda.replay')!r}, this version reads {_VERSION!r}")
        if "kda.op" not in self.metadata:
            raise ValueError("kda.op is missing")
        unknown = sorted(key for key in self.metadata if key.startswith("kda.") and key not in _METADATA_KEYS)
        if unknown:
            raise ValueError(f"unknown metadata {', '.join(unknown)}")


def _no_duplicates(pairs):
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a name occurs twice")
    return result


def _tensor(name: str, entry, data: memoryview) -> Tensor:
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"{name}: expected dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise ValueError(f"{name}: unknown dtype {dtype!r}")
    for numbers in (shape, offsets):
        if not isinstance(numbers, list) or not all(type(n) is int and 0 <= n < 1 << 48 for n in numbers):
            raise ValueError(f"{name}: shape and data_offsets are lists of non-negative integers")
    item = np.dtype(_DTYPES[dtype])
    count = 1
    for n in shape:
        count *= n
    if len(shape) > 8 or len(offsets) != 2 or not offsets[0] <= offsets[1] <= len(data) or count * item.itemsize != offsets[1] - offsets[0]:
        raise ValueError(f"{name}: {dtype} {shape} does not fit data_offsets {offsets} of {len(data)} bytes")
    return Tensor(np.frombuffer(data[offsets[0]:offsets[1]], item).reshape(shape).copy(), dtype)


def read(path: str | os.PathLike) -> Case:
    """Reads and checks a replay file. Raises ValueError for a file that is none, OSError where it cannot be read."""
    path = pathlib.Path(path)
    content = path.read_bytes()
    try:
        if len(content) < 8:
            raise ValueError("shorter than a safetensors header")
        size = int.from_bytes(content[:8], "little")
        if size > min(_MOST_HEADER_BYTES, len(content) - 8):
            raise ValueError(f"a header of {size} bytes does not fit the file of {len(content)}")
        try:
            header = json.loads(content[8:8 + size].decode("utf-8"), object_pairs_hook=_no_duplicates)
        except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
            raise ValueError(f"the header is not JSON: {error}") from None
        if not isinstance(header, dict):
            raise ValueError("the header is not an object")
        metadata = header.pop("__metadata__", {})
        if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
            raise ValueError("__metadata__ holds strings")
        data = memoryview(content)[8 + size:]
        case = Case(metadata, {name: _tensor(name, entry, data) for name, entry in header.items()})
        case.check()
        return case
    except ValueError as error:
        raise ValueError(f"{path}: not a replay file: {error}") from None


def write(path: str | os.PathLike, case: Case) -> None:
    """Writes a replay file. An interrupted call leaves what was at `path`. Raises ValueError for a case that is none."""
    case.check()
    path = pathlib.Path(path)
    header: dict = {"__metadata__": dict(case.metadata)}
    parts, offset = [], 0
    for name, tensor in case.tensors.items():
        array = np.ascontiguousarray(Tensor.of(tensor.array, tensor.dtype).array)
        header[name] = {"dtype": tensor.dtype, "shape": list(tensor.array.shape), "data_offsets": [offset, offset + array.nbytes]}
        parts.append(array.tobytes())
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}-", delete=False) as scratch:
        try:
            scratch.write(len(text).to_bytes(8, "little") + text + b"".join(parts))
            scratch.close()
            os.replace(scratch.name, path)
        except BaseException:
            os.unlink(scratch.name)
            raise
