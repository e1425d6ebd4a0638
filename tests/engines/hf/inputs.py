"""Random calls in FLA's shapes, and FLA's naive functions as the judge. Shares no code with libkda."""

import dataclasses

import torch
import torch.nn.functional as F
from fla.ops.kda.gate import naive_kda_gate, naive_kda_lowerbound_gate
from fla.ops.kda.naive import naive_recurrent_kda

# rel = |x - y| / |y| over a tensor: (out, state) by numerics and io dtype, as docs/numerics.md has them.
LIMITS = {
    ("exact", torch.float32): (1e-5, 1e-5), ("exact", torch.bfloat16): (2.5e-3, 1e-5), ("exact", torch.float16): (6e-4, 1e-5),
    ("fast", torch.float32): (1e-4, 1e-4), ("fast", torch.bfloat16): (5e-3, 4e-3), ("fast", torch.float16): (5e-3, 4e-3),
}


def rel(x, y):
    return ((x.double() - y.double()).norm() / y.double().norm().clamp_min(1e-30)).item()


@dataclasses.dataclass
class Inputs:
    """One call of chunk_kda or fused_recurrent_kda."""

    seed: int = 0
    batch: int = 2
    tokens: int = 70
    heads: int = 2
    value_heads: int = 4
    key_dim: int = 64
    value_dim: int = 64
    dtype: torch.dtype = torch.float32
    gate: str = "precomputed"  # or softplus, bounded, bounded without A_log
    raw_beta: bool = False
    neg: bool = False
    l2norm: bool = True
    state: bool = True
    v_first: bool = False
    cuts: tuple = ()
    scale: float | None = None
    parameter_dtype: torch.dtype = torch.float32

    def __post_init__(self):
        torch.manual_seed(self.seed)
        if self.cuts:
            self.batch, self.tokens = 1, self.cuts[-1]
        rows = len(self.cuts) - 1 if self.cuts else self.batch
        shape = (self.batch, self.tokens)
        self.q = torch.randn(*shape, self.heads, self.key_dim).to(self.dtype)
        k = torch.randn(1, 1, self.heads, self.key_dim) + 0.7 * torch.randn(*shape, self.heads, self.key_dim)
        self.k = (k if self.l2norm else F.normalize(k, dim=-1)).to(self.dtype)
        self.v = torch.randn(*shape, self.value_heads, self.value_dim).to(self.dtype)
        raw = torch.randn(*shape, self.value_heads, self.key_dim) * 3
        self.g = -torch.exp(torch.empty_like(raw).uniform_(-6, 2)) if self.gate == "precomputed" else raw.to(self.dtype)
        step = torch.randn(*shape, self.value_heads) * 2
        self.beta = step.to(self.dtype) if self.raw_beta else step.sigmoid().to(self.dtype)
        self.A_log = None if self.gate in ("precomputed", "bounded without A_log") else torch.randn(self.value_heads).to(self.parameter_dtype)
        self.dt_bias = None if self.gate == "precomputed" else torch.randn(self.value_heads * self.key_dim).to(self.parameter_dtype)
        inner = (self.value_dim, self.key_dim) if self.v_first else (self.key_dim, self.value_dim)
        self.initial = torch.randn(rows, self.value_heads, *inner) if self.state else None
        self.cu_seqlens = torch.tensor(self.cuts) if self.cuts else None

    def arguments(self):
        result = dict(q=self.q, k=self.k, v=self.v, g=self.g, beta=self.beta, scale=self.scale, initial_state=self.initial,
                      output_final_state=True, use_qk_l2norm_in_kernel=self.l2norm, use_gate_in_kernel=self.gate != "precomputed",
                      use_beta_sigmoid_in_kernel=self.raw_beta, allow_neg_eigval=self.neg, state_v_first=self.v_first,
                      cu_seqlens=self.cu_seqlens)
        if self.gate != "precomputed":
            result.update(A_log=self.A_log, dt_bias=self.dt_bias, lower_bound=None if self.gate == "softplus" else -5.0)
        return result

    def judged(self):
        """(out, final state) of FLA's naive recurrence in float32, row by row."""
        q, k = self.q.float(), self.k.float()
        if self.l2norm:
            q, k = (x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6) for x in (q, k))
        g = self.g.float()
        if self.gate == "softplus":
            g = naive_kda_gate(g, self.A_log.float(), self.dt_bias.float())
        elif self.gate == "bounded":
            g = naive_kda_lowerbound_gate(g, self.A_log.float(), self.dt_bias.float(), -5.0)
        elif self.gate == "bounded without A_log":
            g = -5.0 * torch.sigmoid(g + self.dt_bias.float().view(self.value_heads, self.key_dim))
        beta = self.beta.float()
        if self.raw_beta:
            beta = beta.sigmoid() * (2 if self.neg else 1)
        cuts = self.cuts or None
        outs, finals = [], []
        for row in range(len(cuts) - 1 if cuts else self.batch):
            part = (slice(0, 1), slice(cuts[row], cuts[row + 1])) if cuts else (slice(row, row + 1), slice(None))
            state = None if self.initial is None else self.initial[row:row + 1]
            if state is not None and self.v_first:
                state = state.transpose(-1, -2)
            out, final = naive_recurrent_kda(q[part], k[part], self.v[part].float(), g[part], beta[part], scale=self.scale,
                                             initial_state=state, output_final_state=True)
            outs.append(out)
            finals.append(final.transpose(-1, -2) if self.v_first else final)
        out = torch.cat(outs, dim=1 if cuts else 0)
        if cuts and cuts[0]:
            out = torch.cat([torch.zeros_like(self.v[:, :cuts[0]]).float(), out], dim=1)
        return out, torch.cat(finals)
