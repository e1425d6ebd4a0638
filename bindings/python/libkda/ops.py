"""libkda's operations as PyTorch operators torch.ops.libkda.*: out-variants for torch.compile and CUDA-graph capture.

    import libkda, libkda.ops
    plan = libkda.plan(backend="cpu", heads=32, key_dim=128, max_rows=8)
    handle = libkda.ops.register_plan(plan)
    libkda.ops.decode(handle, q=q, k=k, v=v, a=a, b=b, A_log=A_log, out=out, state=pool, slots=slots)

Every operator takes the plan's handle (an int, so that compiled graphs hold it as a constant) and the keywords of the method
of Plan of the same name. Outputs are arguments; nothing is returned; nothing is allocated on the CPU, and on CUDA only the
workspace where none is given. The stream is torch's current one. The functions of this module call the operators, but for plain
CPU tensors outside compilation, where they go straight to the plan: torch's own way through an operator costs 9 us there.
"""

from __future__ import annotations

import itertools
import threading

import torch

from . import _core

__all__ = ["register_plan", "release_plan", "extend", "decode", "verify", "commit", "move", "conv_extend", "conv_decode", "conv_verify",
           "conv_commit", "conv_move"]

_NUMBERS = {
    "extend": ("float? scale", "float? lower_bound"),
    "decode": ("float? scale", "float? lower_bound"),
    "verify": ("float? scale", "float? lower_bound"),
    "commit": ("int? layers", "int? state_layer_stride", "int? dst_layer_stride", "int? record_layer_stride", "int? snapshot_layer_stride"),
    "move": ("int? layers", "int? source_layer_stride", "int? destination_layer_stride"),
    "conv_extend": (), "conv_decode": (), "conv_verify": (),
}
_NUMBERS["conv_commit"], _NUMBERS["conv_move"] = _NUMBERS["commit"], _NUMBERS["move"]
# Pools that some calls write: in place, or as the default destination of a list.
_SOMETIMES_WRITTEN = ("state", "source", "workspace", "device_status")

_plans: dict[int, _core.Plan] = {}
_handles = itertools.count(1)
_lock = threading.Lock()
_library = torch.library.Library("libkda", "DEF")


def register_plan(plan: _core.Plan) -> int:
    """A handle of the plan for the operators. The plan lives until release_plan(handle)."""
    with _lock:
        handle = next(_handles)
        _plans[handle] = plan
    return handle


def release_plan(handle: int) -> None:
    """Forgets a handle; calls with it are then refused."""
    with _lock:
        _plans.pop(handle, None)


def _plan(handle: int) -> _core.Plan:
    try:
        return _plans[handle]
    except KeyError:
        raise ValueError(f"{handle} is not a handle of libkda.ops.register_plan, or it was released") from None


def _define(operation: str):
    tensors = [*_core.tensor_arguments(operation), ("workspace", True), ("device_status", True)]
    names = [name for name, _ in tensors] + [number.split()[1] for number in _NUMBERS[operation]]
    schema, alias = [], iter("abcdefghijklmn")
    for name, written in tensors:
        mark = f"({next(alias)}!)" if written or name in _SOMETIMES_WRITTEN else ""
        schema.append(f"Tensor{mark}? {name}=None")
    schema += [f"{number}=None" for number in _NUMBERS[operation]]
    _library.define(f"{operation}(int plan, *, {', '.join(schema)}) -> ()")
    method = getattr(_core.Plan, operation)

    def on_cpu(plan: int, **arguments) -> None:
        method(_plan(plan), **arguments)

    def on_cuda(plan: int, **arguments) -> None:
        made = _plan(plan)
        if arguments.get("workspace") is None and made.workspace_bytes:
            device = next(t.device for t in arguments.values() if isinstance(t, torch.Tensor) and t.is_cuda)
            arguments["workspace"] = torch.empty(made.workspace_bytes, dtype=torch.uint8, device=device)
        method(made, **arguments)

    def fake(plan: int, **arguments) -> None:
        return None  # outputs are arguments: there is nothing to describe

    _library.impl(operation, on_cpu, "CPU")
    _library.impl(operation, on_cuda, "CUDA")
    torch.library.register_fake(f"libkda::{operation}", fake, lib=_library)
    operator = getattr(torch.ops.libkda, operation).default

    def call(plan: int, **arguments) -> None:
        if not torch.compiler.is_compiling() and all(
                type(value) is torch.Tensor and value.is_cpu for value in arguments.values() if hasattr(value, "is_cpu")):
            method(_plan(plan), **arguments)
        else:
            operator(plan, **arguments)

    call.__name__ = call.__qualname__ = operation
    call.__doc__ = f"torch.ops.libkda.{operation}: Plan.{operation} of the plan with this handle."
    return call


extend = _define("extend")
decode = _define("decode")
verify = _define("verify")
commit = _define("commit")
move = _define("move")
conv_extend = _define("conv_extend")
conv_decode = _define("conv_decode")
conv_verify = _define("conv_verify")
conv_commit = _define("conv_commit")
conv_move = _define("conv_move")
