"""FLA-shaped calls on libkda: [B, T, ...] tensors and functional states become one extend, decode or verify of a plan.

Shared by libkda.functional and libkda.fla. `Call.refusal()` answers whether libkda can run a call, `Call.run()` runs it.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import threading

import torch

from . import _core, default_context
from .errors import Error, Refusal, refuse

_DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
_E_SHAPE, _E_DTYPE, _E_DEVICE, _E_COMBINATION, _E_NUMBER = 1003, 1004, 1008, 1011, 1012
_MOST_PLANS = 128
_MOST_NODES = 64


@functools.lru_cache(maxsize=None)
def _context(device: torch.device) -> _core.Context:
    if device.type == "cpu":
        return default_context()
    return _core.Context(cuda_device=device.index + 1)


class PlanCache:
    """Plans by problem, least recently used dropped first. A plan depends on the call's own properties alone, so that a
    result never depends on earlier calls."""

    def __init__(self, capacity: int = _MOST_PLANS) -> None:
        self._plans: collections.OrderedDict = collections.OrderedDict()
        self._capacity = capacity
        self._lock = threading.Lock()

    def find(self, key):
        with self._lock:
            plan = self._plans.get(key)
            if plan is not None:
                self._plans.move_to_end(key)
            return plan

    def get(self, key):
        plan = self.find(key)
        if plan is None:
            device, problem = key
            plan = _core.Plan(_context(device), **dict(problem))
            with self._lock:
                self._plans[key] = plan
                while len(self._plans) > self._capacity:
                    self._plans.popitem(last=False)
        return plan

    def __len__(self) -> int:
        return len(self._plans)


plans = PlanCache()


def _bucket(n: int) -> int:
    """The next power of two: one plan serves calls of similar size."""
    return 1 << max(n - 1, 0).bit_length()


@functools.lru_cache(maxsize=256)
def _range(stop: int, step: int, device: torch.device) -> torch.Tensor:
    with torch.inference_mode(False):
        return torch.arange(0, stop, step, dtype=torch.int32, device=device)


@functools.lru_cache(maxsize=256)
def _nowhere(rows: int, device: torch.device) -> torch.Tensor:
    with torch.inference_mode(False):
        return torch.full((rows,), -1, dtype=torch.int32, device=device)


def _plain(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """Detached, and with a contiguous last dimension (transformers passes transposed views at prefill)."""
    if tensor is None:
        return None
    tensor = tensor.detach()
    return tensor if tensor.stride(-1) == 1 or tensor.shape[-1] == 1 else tensor.contiguous()


@dataclasses.dataclass
class Call:
    """One call in FLA's terms. Shapes: q, k [B, T, H, K]; v [B, T, HV, V]; g [B, T, HV, K]; beta [B, T, HV]."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    g: torch.Tensor
    beta: torch.Tensor
    A_log: torch.Tensor | None
    dt_bias: torch.Tensor | None
    scale: float | None
    initial_state: torch.Tensor | None
    output_final_state: bool
    l2norm: bool
    raw_gate: bool
    raw_beta: bool
    allow_neg_eigval: bool
    lower_bound: float | None
    v_first: bool
    cu_seqlens: torch.Tensor | None
    numerics: str
    snapshot_every: int = 0  # tokens between returned intermediate states; 0 = none
    out: torch.Tensor | None = None
    in_place: bool = False  # initial_state is a pool that is written
    slots: torch.Tensor | None = None  # in place: [N], or [N, T] for one stored state a token
    accepted: torch.Tensor | None = None  # with slots [N, T]: row n starts from slots[n, accepted[n] - 1]

    @property
    def rows(self) -> int:
        return self.q.shape[0] if self.cu_seqlens is None else self.cu_seqlens.shape[0] - 1

    @property
    def gate(self) -> str:
        if not self.raw_gate:
            return "precomputed"
        return "softplus" if self.lower_bound is None else "bounded"

    def _value_error(self) -> Error | None:
        """What libkda's problem cannot express, or None."""
        q, v = self.q, self.v
        for name, tensor in (("q", q), ("k", self.k), ("v", v), ("g", self.g), ("beta", self.beta)):
            if tensor.dtype not in _DTYPES:
                return refuse(_E_DTYPE, name, str(tensor.dtype), "float32, bfloat16 or float16")
            if tensor.device != q.device:
                return refuse(_E_DEVICE, name, str(tensor.device), str(q.device))
        if q.device.type not in ("cpu", "cuda"):
            return refuse(_E_DEVICE, "q", str(q.device), "cpu or cuda")
        if self.k.dtype != q.dtype or v.dtype != q.dtype:
            return refuse(_E_DTYPE, "k, v", f"{self.k.dtype}, {v.dtype}", f"q's dtype {q.dtype}")
        if q.dim() != 4 or v.dim() != 4 or self.k.shape != q.shape or v.shape[:2] != q.shape[:2]:
            return refuse(_E_SHAPE, "q, k, v", f"{list(q.shape)}, {list(self.k.shape)}, {list(v.shape)}",
                          "[B, T, H, K], [B, T, H, K], [B, T, HV, V]")
        batch, tokens, heads, key_dim = q.shape
        value_heads, value_dim = v.shape[2:]
        if min(heads, value_heads, key_dim, value_dim) < 1 or value_heads % heads:
            return refuse(_E_SHAPE, "v", str(list(v.shape)), f"HV a multiple of H={heads}")
        if list(self.g.shape) != [batch, tokens, value_heads, key_dim]:
            return refuse(_E_SHAPE, "g", str(list(self.g.shape)), str([batch, tokens, value_heads, key_dim]))
        if list(self.beta.shape) != [batch, tokens, value_heads]:
            return refuse(_E_SHAPE, "beta", str(list(self.beta.shape)), str([batch, tokens, value_heads]))
        if self.raw_gate:
            if self.A_log is None and self.lower_bound is None:
                return refuse(_E_COMBINATION, "A_log", "None", "A_log, or lower_bound for the bounded gate")
            for name, tensor, count in (("A_log", self.A_log, value_heads), ("dt_bias", self.dt_bias, value_heads * key_dim)):
                if tensor is None:
                    continue
                if tensor.numel() != count or tensor.dtype not in _DTYPES or tensor.device != q.device:
                    return refuse(_E_SHAPE, name, f"{tensor.dtype} {list(tensor.shape)} on {tensor.device}",
                                  f"{count} floating-point elements on {q.device}")
            if self.lower_bound is not None and not self.lower_bound < 0:
                return refuse(_E_NUMBER, "lower_bound", str(self.lower_bound), "a number below 0")
        if self.allow_neg_eigval and not self.raw_beta:
            return refuse(_E_COMBINATION, "allow_neg_eigval", "True without use_beta_sigmoid_in_kernel", "both")
        if self.cu_seqlens is not None:
            cu = self.cu_seqlens
            if batch != 1 or cu.dim() != 1 or cu.shape[0] < 1 or cu.dtype not in (torch.int32, torch.int64):
                return refuse(_E_SHAPE, "cu_seqlens", f"{cu.dtype} {list(cu.shape)} with B={batch}", "int32 or int64 [N+1], B=1")
        out = self.out
        if out is not None and (out.shape != v.shape or out.dtype != v.dtype or out.device != v.device or not out.is_contiguous()):
            return refuse(_E_SHAPE, "out", f"{out.dtype} {list(out.shape)}", f"contiguous {v.dtype} {list(v.shape)} on {v.device}")
        return self._state_error(value_heads, key_dim, value_dim)

    def _state_error(self, value_heads: int, key_dim: int, value_dim: int) -> Error | None:
        state = self.initial_state
        if state is None:
            return refuse(_E_COMBINATION, "initial_state", "None", "a pool for the in-place form") if self.in_place else None
        inner = [value_heads, value_dim, key_dim] if self.v_first else [value_heads, key_dim, value_dim]
        if state.dim() != 4 or list(state.shape[1:]) != inner or (not self.in_place and state.shape[0] != self.rows):
            return refuse(_E_SHAPE, "initial_state", str(list(state.shape)), str([self.rows, *inner]))
        if state.device != self.q.device or not state.is_floating_point():
            return refuse(_E_DEVICE, "initial_state", f"{state.dtype} on {state.device}", f"floating point on {self.q.device}")
        if not self.in_place:
            return None
        if state.dtype not in (torch.float32, torch.bfloat16):
            return refuse(_E_DTYPE, "initial_state", str(state.dtype), "float32 or bfloat16 for a pool")
        if not state[0:1].is_contiguous():
            return refuse(_E_SHAPE, "initial_state", f"strides {state.stride()}", "a compact slot")
        if self.slots is None:
            if state.shape[0] < self.rows:
                return refuse(_E_SHAPE, "initial_state", str(list(state.shape)), f"at least {self.rows} slots")
        elif self.slots.dim() == 2:
            if self.slots.shape[0] != self.rows or self.slots.shape[1] > _MOST_NODES:
                return refuse(_E_SHAPE, "ssm_state_indices", str(list(self.slots.shape)), f"[{self.rows}, up to {_MOST_NODES}]")
        elif self.slots.dim() != 1 or self.slots.shape[0] != self.rows:
            return refuse(_E_SHAPE, "ssm_state_indices", str(list(self.slots.shape)), f"[{self.rows}] or [{self.rows}, T]")
        elif self.cu_seqlens is not None or self.q.shape[1] != 1:
            # FLA would store the states of later tokens to the slots of the following rows.
            return refuse(_E_SHAPE, "ssm_state_indices", f"{list(self.slots.shape)} for rows longer than one token", "[N, T]")
        return None

    def problem(self) -> tuple:
        """The plan's key: (device, problem). Sizes are rounded up, so that few plans serve many calls."""
        batch, tokens, heads, key_dim = self.q.shape
        io = _DTYPES[self.q.dtype]
        problem = dict(
            backend=self.q.device.type, heads=heads, value_heads=self.v.shape[2], key_dim=key_dim, value_dim=self.v.shape[3],
            io_dtype=io, gate_dtype=io if self.g.dtype == self.q.dtype else "float32",
            beta_dtype=io if self.beta.dtype == self.q.dtype else "float32",
            state_layout="vk" if self.v_first else "kv", gate=self.gate,
            beta=("sigmoid2" if self.allow_neg_eigval else "sigmoid") if self.raw_beta else "none",
            qk_l2norm=bool(self.l2norm), extend_numerics=self.numerics, max_rows=_bucket(self.rows),
            max_tokens=_bucket(batch * tokens), operations=(self.operation,))
        if self.in_place:
            problem["state_dtype"] = _DTYPES[self.initial_state.dtype]
        if self.operation == "verify":
            problem["max_nodes"] = min(_bucket(self.slots.shape[1]), _MOST_NODES)
        if self.snapshot_every:
            problem["max_snapshots"] = _bucket(self.rows + batch * tokens // self.snapshot_every)
        device = self.q.device
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        return device, tuple(problem.items())

    @property
    def operation(self) -> str:
        if self.in_place and self.slots is not None and self.slots.dim() == 2:
            return "verify"
        if self.numerics == "exact" and self.cu_seqlens is None and self.q.shape[1] == 1 and not self.snapshot_every:
            return "decode"  # the bits of extend, with one kernel made for one token
        return "extend"

    def refusal(self) -> Error | Refusal | None:
        """Why libkda cannot run this call, or None. Plans nothing, allocates nothing."""
        error = self._value_error()
        if error is not None:
            return error
        device, problem = key = self.problem()
        if plans.find(key) is not None:
            return None
        return self._capture_error(device) or _context(device).can_run(**dict(problem))

    @staticmethod
    def _capture_error(device: torch.device) -> Error | None:
        """Why no plan can be made now: making one may allocate, which a capture forbids."""
        if device.type != "cuda" or not torch.cuda.is_current_stream_capturing():
            return None
        return refuse(_E_COMBINATION, "this call", "the first of its kind, during stream capture", "a plan made before the capture",
                      "run the step once before capturing it")

    def run(self):
        """(out, final state or None, intermediate states or None). Raises Error."""
        error = self._value_error()
        if error is not None:
            raise error
        q, v = self.q, self.v
        batch, tokens, heads, key_dim = q.shape
        value_heads, value_dim = v.shape[2:]
        rows = self.rows
        device = q.device
        # Tokens outside the rows read as zero, as in FLA.
        out = self.out
        if out is None:
            out = (torch.empty if self.cu_seqlens is None else torch.zeros)(v.shape, dtype=v.dtype, device=device)
        final = self.initial_state if self.in_place else None
        if self.output_final_state and not self.in_place:
            inner = (value_dim, key_dim) if self.v_first else (key_dim, value_dim)
            final = torch.empty((rows, value_heads, *inner), dtype=torch.float32, device=device)
        if batch * tokens == 0 or rows == 0:
            if final is not None and not self.in_place:
                final.zero_() if self.initial_state is None else final.copy_(self.initial_state)
            return out, final, self._no_snapshots(final)

        key = self.problem()
        plan = plans.find(key)
        if plan is None:
            error = self._capture_error(key[0])
            if error is not None:
                raise error
            plan = plans.get(key)
        arguments = dict(
            q=self._packed(_plain(q)), k=self._packed(_plain(self.k)), v=self._packed(_plain(v)), a=self._packed(self._gate(_plain(self.g))),
            b=self._packed(self._gate(self.beta.detach())), out=self._packed(out), scale=1.0 if self.scale == 0 else self.scale)
        if self.raw_gate:
            arguments["A_log"] = None if self.A_log is None else self.A_log.detach().contiguous()
            arguments["dt_bias"] = None if self.dt_bias is None else self.dt_bias.detach().contiguous()
            arguments["lower_bound"] = self.lower_bound
        operation = self.operation
        if operation != "decode":
            arguments["cu_seqlens"] = _range(tokens * batch + 1, tokens, device) if self.cu_seqlens is None else self.cu_seqlens
        self._add_states(arguments, final)
        h = self._add_snapshots(arguments) if self.snapshot_every else None
        if device.type == "cuda":
            arguments["workspace"] = torch.empty(plan.workspace_bytes, dtype=torch.uint8, device=device)
        getattr(plan, operation)(**arguments)
        if self.scale == 0:
            out.zero_()
        return out, final, h

    def _add_states(self, arguments: dict, final: torch.Tensor | None) -> None:
        rows, device = self.rows, self.q.device
        if self.in_place:
            arguments["state"] = self.initial_state.detach()
            if self.slots is None:
                arguments["slots"] = _range(rows, 1, device)
            elif self.slots.dim() == 1:
                arguments["slots"] = self.slots
            else:
                first = self.slots[:, 0] if self.accepted is None else self.slots.gather(
                    1, (self.accepted.to(torch.int64) - 1).clamp_min(0)[:, None])[:, 0]
                arguments["slots"] = first
                arguments["node_slots"] = self.slots
            return
        if self.initial_state is not None:
            state = self.initial_state.detach()
            if state.dtype != torch.float32:
                state = state.float()
            arguments["state"] = state if state[0:1].is_contiguous() else state.contiguous()
            arguments["slots"] = _range(rows, 1, device)
        if final is not None:
            arguments["dst_slots"] = _range(rows, 1, device)
            arguments["dst_state"] = final
        elif self.initial_state is not None:
            arguments["dst_slots"] = _nowhere(rows, device)

    def _no_snapshots(self, final: torch.Tensor | None) -> torch.Tensor | None:
        if not self.snapshot_every:
            return None
        return self._snapshot_pool(0)

    def _snapshot_pool(self, count: int) -> torch.Tensor:
        inner = (self.v.shape[3], self.k.shape[3]) if self.v_first else (self.k.shape[3], self.v.shape[3])
        batch = self.q.shape[0]
        return torch.empty((batch, count // batch if batch else 0, self.v.shape[2], *inner), dtype=self.k.dtype, device=self.q.device)

    def _add_snapshots(self, arguments: dict) -> torch.Tensor:
        """The state before every chunk, in the order of the rows. Lengths are read on the host, as FLA does."""
        batch, tokens = self.q.shape[:2]
        cuts = range(0, batch * tokens + 1, tokens) if self.cu_seqlens is None else self.cu_seqlens.tolist()
        entries = [(row, at) for row in range(self.rows) for at in range(0, cuts[row + 1] - cuts[row], self.snapshot_every)]
        pool = self._snapshot_pool(len(entries))
        device = self.q.device
        listed = torch.tensor(entries, dtype=torch.int32).reshape(-1, 2).to(device)
        arguments["snapshot_rows"], arguments["snapshot_positions"] = listed[:, 0], listed[:, 1]
        arguments["snapshot_slots"] = _range(len(entries), 1, device)
        arguments["snapshots"] = pool.flatten(0, 1)
        return pool

    def _gate(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor if tensor.dtype in (self.q.dtype, torch.float32) else tensor.float()

    @staticmethod
    def _packed(tensor: torch.Tensor) -> torch.Tensor:
        """[B, T, ...] as [B*T, ...]: a view where the batch stride allows it."""
        return tensor.flatten(0, 1)
