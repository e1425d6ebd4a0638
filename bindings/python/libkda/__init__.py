"""libkda: Kimi Delta Attention inference on anything with DLPack (NumPy, torch, CuPy, JAX).

    import libkda, numpy as np
    plan = libkda.plan(heads=2, key_dim=64, io_dtype="float32", max_tokens=16)
    plan.extend(q=q, k=k, v=v, a=a, b=b, A_log=A_log, out=out, state=pool, slots=slots, cu_seqlens=cu_seqlens)

Operations are methods of a plan: extend, decode, verify, commit, move and conv_extend, conv_decode, conv_verify, conv_commit,
conv_move. Shapes, dtypes and rules of every argument are in docs/python.md; refusals raise libkda.Error.

Modules that need more: libkda.replay (NumPy), libkda.ops and libkda.functional (torch), libkda.fla (flash-linear-attention).
"""

from __future__ import annotations

import functools
import json

from . import _core
from ._core import Context, Plan, Pool, Slot, View
from .command import demo_model
from .errors import Error, Refusal

__version__ = _core.version
__all__ = ["Context", "Error", "Plan", "Pool", "Refusal", "Slot", "View", "can_run", "default_context", "demo_model", "info", "plan", "view"]


@functools.cache
def default_context() -> Context:
    """The context that plan() and can_run() use: every core, the best SIMD target, the current GPU."""
    return Context()


def plan(*, context: Context | None = None, **problem) -> Plan:
    """Makes a plan for one geometry, or raises Error.

    Sizes: heads (H), value_heads (HV, default H), key_dim (K), value_dim (V, default K), conv_width (W, 0 = no conv), layers.
    Most a call: max_rows, max_tokens, max_nodes (draft nodes a row, up to 64), max_snapshots.
    dtypes ("float32", "bfloat16", "float16"): io_dtype, gate_dtype, beta_dtype, state_dtype, conv_state_dtype, conv_weight_dtype.
    Forms: gate ("softplus", "bounded", "precomputed"), beta ("sigmoid", "sigmoid2", "none"), qk_l2norm, state_layout ("vk", "kv"),
    conv_layout ("wc", "cw"), extend_numerics and verify_numerics ("exact", "fast").
    Choice: backend ("auto", "reference", "cpu", "cuda"), operations (names; default all), kernels ("decode=cpu_decode_exact").
    Rules: null_slot0, single_root, check_values, alignment, max_workspace_bytes.
    """
    return Plan(context or default_context(), **problem)


def can_run(*, context: Context | None = None, **problem) -> Refusal | None:
    """The same question as plan() without making it: None, or the refusal. Takes microseconds."""
    return (context or default_context()).can_run(**problem)


def view(array, dtype: str = "bfloat16") -> View:
    """An array with a dtype that its producer lacks, to pass to a call: NumPy keeps the bits of bfloat16 in a uint16 array."""
    return View(array, dtype)


def info() -> dict:
    """Version, backends, SIMD targets, GPUs and kernels of this build on this machine."""
    return json.loads(default_context().describe())
