"""Importing this module makes flash-linear-attention 0.6 run KDA on libkda: unmodified chunk_kda and fused_recurrent_kda calls,
FLA's KimiDeltaAttention layer, and transformers models that use them, on CUDA and on CPUs.

FLA_LIBKDA=0 turns it off (looked up at every call). Calls that libkda does not serve are declined and go to FLA's own code:
those that FLA would refuse, those that need gradients, those being captured without a plan made before. See report().
"""

from __future__ import annotations

import collections
import threading

from fla.backends import BaseBackend, register
from fla.ops.kda.chunk import chunk_kda

from .functional import chunk_call, gradient_needed
from ._calls import Call

__all__ = ["LibKDA", "configure", "counters", "report", "reset_counters"]

_lock = threading.Lock()
_served: collections.Counter = collections.Counter()
_declined: collections.Counter = collections.Counter()
_numerics = {"chunk_kda": "fast", "fused_recurrent_kda_fwd": "exact"}


def configure(*, chunk_numerics: str = "fast") -> None:
    """Numerics of chunk_kda from now on: "fast", or "exact" for the bits of fused_recurrent_kda."""
    if chunk_numerics not in ("fast", "exact"):
        raise ValueError(f"chunk_numerics must be 'fast' or 'exact', got {chunk_numerics!r}")
    _numerics["chunk_kda"] = chunk_numerics


def counters() -> dict:
    """{"served": {function: calls}, "declined": {(function, reason): calls}} since the import or reset_counters()."""
    with _lock:
        return {"served": dict(_served), "declined": dict(_declined)}


def reset_counters() -> None:
    """Starts counting afresh."""
    with _lock:
        _served.clear()
        _declined.clear()


def report() -> str:
    """The counters as text, one line each."""
    counted = counters()
    lines = [f"libkda served {count} {function}" for function, count in sorted(counted["served"].items())]
    lines += [f"libkda declined {count} {function}: {reason}" for (function, reason), count in sorted(counted["declined"].items())]
    return "\n".join(lines) or "libkda was asked for nothing"


def _answer(function: str, reason: str | None) -> tuple[bool, str | None]:
    if reason is None:
        return True, None
    with _lock:
        _declined[function, reason] += 1
    return False, reason


def _count(function: str) -> None:
    with _lock:
        _served[function] += 1


def _refusal(call: Call) -> str | None:
    refused = call.refusal()
    if refused is None:
        return None
    return refused.message if hasattr(refused, "message") else str(refused)


class LibKDA(BaseBackend):
    """libkda as a backend of FLA's dispatcher. Everything that may refuse a call is in the verifiers: an exception in an
    implementation would reach the caller."""

    backend_type = "libkda"
    env_var = "FLA_LIBKDA"
    priority = 2  # before FlashKDA

    def chunk_kda_verifier(self, q, k, v, g, beta, *args, **kwargs):
        try:
            call = chunk_call(q, k, v, g, beta, *args, numerics=_numerics["chunk_kda"], **kwargs)
            reason = _refusal(call)
            if reason is None and gradient_needed(q, k, v, g, beta, call.initial_state, call.A_log, call.dt_bias):
                reason = "a gradient is needed"
        except Exception as error:  # what FLA refuses itself: its own text shall come up
            reason = str(error) or type(error).__name__
        return _answer("chunk_kda", reason)

    def chunk_kda(self, q, k, v, g, beta, *args, **kwargs):
        call = chunk_call(q, k, v, g, beta, *args, numerics=_numerics["chunk_kda"], **kwargs)
        out, final, h = call.run()
        _count("chunk_kda")
        return (out, final, h) if call.snapshot_every else (out, final)

    @staticmethod
    def _recurrent_call(q, k, v, g, beta, A_log=None, dt_bias=None, initial_state=None, scale=None, output_final_state=False,
                        inplace_final_state=True, state_v_first=False, cu_seqlens=None, ssm_state_indices=None,
                        num_accepted_tokens=None, use_qk_l2norm_in_kernel=False, use_gate_in_kernel=False,
                        use_beta_sigmoid_in_kernel=False, allow_neg_eigval=False, lower_bound=None, out=None, **kwargs) -> Call:
        if kwargs:
            raise TypeError(f"unknown keyword {next(iter(kwargs))!r}")
        if ssm_state_indices is not None and not inplace_final_state:
            raise ValueError("ssm_state_indices without inplace_final_state")
        if num_accepted_tokens is not None and (ssm_state_indices is None or ssm_state_indices.dim() != 2):
            raise ValueError("num_accepted_tokens without ssm_state_indices [N, T]")
        return Call(q, k, v, g, beta, A_log if use_gate_in_kernel else None, dt_bias if use_gate_in_kernel else None, scale,
                    initial_state, output_final_state, use_qk_l2norm_in_kernel, use_gate_in_kernel, use_beta_sigmoid_in_kernel,
                    allow_neg_eigval, lower_bound, state_v_first, cu_seqlens, _numerics["fused_recurrent_kda_fwd"], out=out,
                    in_place=inplace_final_state, slots=ssm_state_indices, accepted=num_accepted_tokens)

    def fused_recurrent_kda_fwd_verifier(self, *args, **kwargs):
        try:
            reason = _refusal(self._recurrent_call(*args, **kwargs))
        except Exception as error:
            reason = str(error) or type(error).__name__
        return _answer("fused_recurrent_kda_fwd", reason)

    def fused_recurrent_kda_fwd(self, *args, **kwargs):
        out, final, _ = self._recurrent_call(*args, **kwargs).run()
        _count("fused_recurrent_kda_fwd")
        return out, final


register(chunk_kda)(LibKDA)
register("kda")(LibKDA)
