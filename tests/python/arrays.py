"""Random calls as NumPy arrays: wide gates, correlated keys, ragged and empty rows, NaN wherever nothing may be read."""

import numpy as np

import libkda

BACKENDS = ["reference", "cpu"]


def to_bfloat16(x):
    """Bits of the nearest bfloat16, as uint16."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def widen(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


class Io:
    """Arrays of one io dtype: what a call takes, and the numbers in it."""

    def __init__(self, dtype):
        self.dtype = dtype

    def array(self, values):
        if self.dtype == "bfloat16":
            return to_bfloat16(values)
        return np.ascontiguousarray(values, self.dtype)

    def argument(self, array):
        return libkda.view(array) if self.dtype == "bfloat16" else array

    def values(self, array):
        return widen(array) if self.dtype == "bfloat16" else array.astype(np.float32)

    def nan(self, shape):
        return self.array(np.full(shape, np.nan, np.float32))


class World:
    """Inputs of one geometry. `arguments` are what a call takes, `inputs` the same numbers in float64."""

    def __init__(self, seed, *, tokens, heads=2, value_heads=4, key_dim=24, value_dim=12, io="float32", gate="softplus", beta="sigmoid",
                 layout="vk", slots=6):
        self.rng = np.random.default_rng(seed)
        self.io, self.gate, self.beta, self.layout = Io(io), gate, beta, layout
        self.heads, self.value_heads, self.key_dim, self.value_dim, self.tokens = heads, value_heads, key_dim, value_dim, tokens
        rng = self.rng
        common = rng.standard_normal((1, heads, key_dim))
        keys = common + 0.7 * rng.standard_normal((tokens, heads, key_dim))
        raw = rng.standard_normal((tokens, value_heads, key_dim)) * 4
        if gate == "precomputed":
            raw = -np.exp(rng.uniform(-6, 3, raw.shape))
        step = rng.standard_normal((tokens, value_heads)) * 3
        if beta == "none":
            step = rng.uniform(0, 1, step.shape)
        arrays = dict(q=rng.standard_normal((tokens, heads, key_dim)), k=keys, v=rng.standard_normal((tokens, value_heads, value_dim)),
                      a=raw, b=step)
        self.arrays = {name: self.io.array(values) for name, values in arrays.items()}
        self.A_log = rng.uniform(-1, 1, value_heads).astype(np.float32)
        self.dt_bias = rng.standard_normal((value_heads, key_dim)).astype(np.float32)
        inner = (value_dim, key_dim) if layout == "vk" else (key_dim, value_dim)
        self.pool = np.full((slots, value_heads, *inner), np.nan, np.float32)

    def fill(self, *slots):
        for slot in slots:
            self.pool[slot] = self.rng.standard_normal(self.pool.shape[1:])

    def problem(self, **changes):
        io = self.io.dtype
        problem = dict(heads=self.heads, value_heads=self.value_heads, key_dim=self.key_dim, value_dim=self.value_dim, io_dtype=io,
                       gate=self.gate, beta=self.beta, state_layout=self.layout, max_rows=8, max_tokens=max(self.tokens, 1))
        return {**problem, **changes}

    def arguments(self, first=0, last=None):
        """The token arguments of tokens [first, last), `out` full of NaN, and the pool."""
        part = {name: self.io.argument(array[first:last]) for name, array in self.arrays.items()}
        if self.gate != "precomputed":
            part.update(A_log=self.A_log, dt_bias=self.dt_bias)
        self.out = self.io.nan(self.arrays["v"][first:last].shape)
        return dict(part, out=self.io.argument(self.out), state=self.pool)

    def row(self, first, last):
        """The judge's arguments for tokens [first, last)."""
        part = {name: self.io.values(array[first:last]).astype(np.float64) for name, array in self.arrays.items()}
        return dict(part, A_log=self.A_log, dt_bias=self.dt_bias, gate=self.gate, beta=self.beta)

    def vk(self, state):
        """A slot, or an array of slots, as [..., V, K]."""
        return state if self.layout == "vk" else np.swapaxes(state, -1, -2)
