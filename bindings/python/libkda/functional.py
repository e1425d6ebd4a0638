"""chunk_kda and fused_recurrent_kda as flash-linear-attention 0.6 has them, without FLA and on CPU and CUDA.

Names, order, defaults, errors and semantics are FLA's: states are functional (the initial state is never written, the final
state is a new fp32 tensor), tokens outside cu_seqlens read as zero. Forward only. Two deliberate differences: a keyword that
FLA would ignore in silence is a TypeError, and where a gradient would be needed the call is refused (libkda.Error).
"""

from __future__ import annotations

import warnings

import torch

from ._calls import _E_COMBINATION, Call
from .errors import refuse

__all__ = ["chunk_kda", "fused_recurrent_kda"]


def _layout(state_v_first: bool, kwargs: dict) -> bool:
    """state_v_first, or its old name transpose_state_layout."""
    if "transpose_state_layout" not in kwargs:
        return state_v_first
    if state_v_first:
        raise ValueError("Cannot pass both `state_v_first` and the deprecated `transpose_state_layout`.")
    warnings.warn("`transpose_state_layout` is deprecated and renamed to `state_v_first`.", DeprecationWarning, stacklevel=3)
    return kwargs.pop("transpose_state_layout")


def _check_rows(q, initial_state, cu_seqlens) -> None:
    if cu_seqlens is None:
        return
    if q.shape[0] != 1:
        raise ValueError(f"The batch size is expected to be 1 rather than {q.shape[0]} when using `cu_seqlens`."
                         f"Please flatten variable-length inputs before processing.")
    if initial_state is not None and initial_state.shape[0] != len(cu_seqlens) - 1:
        raise ValueError(f"The number of initial states is expected to be equal to the number of input sequences, "
                         f"i.e., {len(cu_seqlens) - 1} rather than {initial_state.shape[0]}.")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise AssertionError(message)


def _check_beta_form(allow_neg_eigval: bool, use_beta_sigmoid_in_kernel: bool) -> None:
    if allow_neg_eigval and not use_beta_sigmoid_in_kernel:
        raise ValueError("`allow_neg_eigval=True` requires `use_beta_sigmoid_in_kernel=True`.")


def _no_unknown(function: str, kwargs: dict) -> None:
    if kwargs:
        raise TypeError(f"{function}() got an unexpected keyword argument {next(iter(kwargs))!r}")


def gradient_needed(*tensors: torch.Tensor | None) -> bool:
    """Whether autograd would record a call on these tensors."""
    return torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors)


def chunk_call(q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False, use_qk_l2norm_in_kernel=False,
               use_gate_in_kernel=False, use_beta_sigmoid_in_kernel=False, allow_neg_eigval=False, safe_gate=False,
               lower_bound=None, disable_recompute=False, return_intermediate_states=False, state_v_first=False,
               cu_seqlens=None, cu_seqlens_cpu=None, cp_context=None, use_graph=False, max_num_seqs=None, *,
               numerics="fast", **kwargs) -> Call:
    """chunk_kda's arguments as a Call. Raises what FLA raises, in FLA's order."""
    state_v_first = _layout(state_v_first, kwargs)
    if cp_context is not None:
        raise refuse(_E_COMBINATION, "cp_context", "given", "None: one process")
    _check_rows(q, initial_state, cu_seqlens)
    if initial_state is not None:
        _require(initial_state.dtype == torch.float32, "initial_state must be in float32.")
    A_log, dt_bias = kwargs.pop("A_log", None), kwargs.pop("dt_bias", None)
    if not use_gate_in_kernel:
        A_log = dt_bias = None
    elif A_log is None and lower_bound is None:
        raise ValueError("`A_log` must be provided when `use_gate_in_kernel=True` and `lower_bound` is not set.")
    chunk_size = kwargs.pop("chunk_size", 64)
    if chunk_size not in (32, 64):
        raise ValueError(f"`chunk_size` must be either 32 or 64 for KDA, got {chunk_size}.")
    if safe_gate and use_gate_in_kernel:
        if lower_bound is None:
            raise ValueError("`lower_bound` must be specified when `safe_gate=True` and `use_gate_in_kernel=True`.")
        if not -5 <= lower_bound < 0:
            raise ValueError(f"`lower_bound` must be in the safe range [-5, 0), got {lower_bound}.")
    _check_beta_form(allow_neg_eigval, use_beta_sigmoid_in_kernel)
    B, T, H, K, HV = *q.shape, v.shape[2]
    _require(q.shape == k.shape, f"q and k must have the same shape, got q={q.shape} vs k={k.shape}")
    _require(K <= 256, f"Currently we only support key headdim <=256 for KDA, got {K}.")
    _require(HV % H == 0, f"For GVA, num_v_heads (HV={HV}) must be evenly divisible by num_qk_heads (H={H}), "
                          f"but got HV % H = {HV % H}")
    _require(g.shape == (B, T, HV, K), f"g must have shape [B, T, HV, K]={[B, T, HV, K]}, got {list(g.shape)}")
    _require(beta.shape == (B, T, HV), f"beta must have shape [B, T, HV]={[B, T, HV]}, got {list(beta.shape)}")
    if return_intermediate_states:
        _require(torch.is_inference_mode_enabled(), "return_intermediate_states is only allowed in inference mode")
        _require(disable_recompute is False, "return_intermediate_states must be used with disable_recompute=False")
    if use_graph and (disable_recompute or (None not in (cu_seqlens, max_num_seqs) and len(cu_seqlens) != max_num_seqs + 1)):
        raise refuse(_E_COMBINATION, "use_graph", "with disable_recompute, or cu_seqlens of another length than max_num_seqs + 1",
                     "cu_seqlens padded to max_num_seqs + 1 entries")
    _no_unknown("chunk_kda", kwargs)
    return Call(q, k, v, g, beta, A_log, dt_bias, scale, initial_state, output_final_state, use_qk_l2norm_in_kernel,
                use_gate_in_kernel, use_beta_sigmoid_in_kernel, allow_neg_eigval, lower_bound, state_v_first, cu_seqlens, numerics,
                snapshot_every=chunk_size if return_intermediate_states else 0)


def chunk_kda(q, k, v, g, beta, scale=None, initial_state=None, output_final_state=False, use_qk_l2norm_in_kernel=False,
              use_gate_in_kernel=False, use_beta_sigmoid_in_kernel=False, allow_neg_eigval=False, safe_gate=False,
              lower_bound=None, disable_recompute=False, return_intermediate_states=False, state_v_first=False,
              cu_seqlens=None, cu_seqlens_cpu=None, cp_context=None, use_graph=False, max_num_seqs=None, *,
              numerics="fast", **kwargs):
    """Kimi Delta Attention over whole sequences: (o, final_state), or (o, final_state, h) with return_intermediate_states.

    q, k: [B, T, H, K] fp32, bf16 or fp16, K up to 256; v: [B, T, HV, V] of the same dtype, HV a multiple of H.
    g: [B, T, HV, K], log decay, or with use_gate_in_kernel the raw gate: -exp(A_log) * softplus(g + dt_bias), or with lower_bound
        lower_bound * sigmoid(exp(A_log) * (g + dt_bias)). Keywords A_log (HV elements) and dt_bias (HV*K elements).
    beta: [B, T, HV], the step, or with use_beta_sigmoid_in_kernel its logit (allow_neg_eigval: 2 * sigmoid).
    initial_state: [N, HV, K, V] fp32, with state_v_first [N, HV, V, K]; never written. N = B, or rows of cu_seqlens ([N+1], B = 1).
    o: [B, T, HV, V] of q's dtype. final_state: a new fp32 tensor, None unless output_final_state.
    h: [B, NT, HV, K, V] of k's dtype, the state before every chunk_size (32 or 64) tokens; needs torch.inference_mode().
    numerics: "fast", or "exact" for the bits that fused_recurrent_kda gives.

    Raises ValueError and AssertionError as FLA does, TypeError for an unknown keyword, libkda.Error for what libkda cannot run.
    """
    call = chunk_call(q, k, v, g, beta, scale, initial_state, output_final_state, use_qk_l2norm_in_kernel, use_gate_in_kernel,
                      use_beta_sigmoid_in_kernel, allow_neg_eigval, safe_gate, lower_bound, disable_recompute,
                      return_intermediate_states, state_v_first, cu_seqlens, cu_seqlens_cpu, cp_context, use_graph, max_num_seqs,
                      numerics=numerics, **kwargs)
    if gradient_needed(q, k, v, g, beta, initial_state, call.A_log, call.dt_bias):
        raise refuse(_E_COMBINATION, "an input", "requires grad while gradients are recorded", "inference: libkda computes no gradients",
                     "call it under torch.inference_mode() or torch.no_grad(), or train with FLA's own kernels")
    out, final, h = call.run()
    return (out, final, h) if return_intermediate_states else (out, final)


def fused_recurrent_kda(q, k, v, g, beta, A_log=None, dt_bias=None, scale=None, initial_state=None, output_final_state=False,
                        use_qk_l2norm_in_kernel=False, use_gate_in_kernel=False, use_beta_sigmoid_in_kernel=False,
                        allow_neg_eigval=False, lower_bound=None, state_v_first=False, cu_seqlens=None, *, numerics="exact",
                        **kwargs):
    """Kimi Delta Attention token by token: (o, final_state). Arguments as chunk_kda's.

    initial_state may have any floating dtype; the final state is fp32 and new. Has no backward in FLA either: outputs never
    require grad.
    """
    state_v_first = _layout(state_v_first, kwargs)
    _check_rows(q, initial_state, cu_seqlens)
    _check_beta_form(allow_neg_eigval, use_beta_sigmoid_in_kernel)
    _no_unknown("fused_recurrent_kda", kwargs)
    call = Call(q, k, v, g, beta, A_log if use_gate_in_kernel else None, dt_bias if use_gate_in_kernel else None, scale,
                initial_state, output_final_state, use_qk_l2norm_in_kernel, use_gate_in_kernel, use_beta_sigmoid_in_kernel,
                allow_neg_eigval, lower_bound, state_v_first, cu_seqlens, numerics)
    out, final, _ = call.run()
    return out, final
