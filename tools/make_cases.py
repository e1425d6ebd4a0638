#!/usr/bin/env python3
"""Writes the replay cases of tests/data/own: captured-call files with expectations in float64.

usage: tools/make_cases.py OUTDIR

Standard library only, and no code in common with the library: the recurrence, the trees, the convolution and the record
format are written out here once more, token by token. Inputs are rounded to their stored dtype first; expectations are
computed from the rounded inputs and are themselves not rounded (stored as float32). The numbers come from fixed seeds, so
a second run writes the same bytes.
"""
import json
import math
import os
import random
import struct
import sys

NAN = float("nan")


# ---- stored numbers --------------------------------------------------------------------------------------------------
def to_fp32(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def to_bf16(x):
    if x != x:
        return x
    bits = struct.unpack("<I", struct.pack("<f", x))[0]
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return struct.unpack("<f", struct.pack("<I", bits))[0]


def to_fp16(x):
    return struct.unpack("<e", struct.pack("<e", x))[0]


ROUND = {"F32": to_fp32, "BF16": to_bf16, "F16": to_fp16, "I32": int, "I64": int, "U8": int}
SIZE = {"F32": 4, "BF16": 2, "F16": 2, "I32": 4, "I64": 8, "U8": 1}


def pack(dtype, values):
    if dtype == "BF16":
        return b"".join(struct.pack("<f", to_bf16(v))[2:] for v in values)
    return struct.pack("<%d%s" % (len(values), {"F32": "f", "F16": "e", "I32": "i", "I64": "q", "U8": "B"}[dtype]), *values)


class Tensor:
    """Flat values of one dtype, already rounded to it."""

    def __init__(self, dtype, shape, values):
        self.dtype, self.shape = dtype, list(shape)
        self.values = [ROUND[dtype](v) for v in values]
        assert len(self.values) == math.prod(shape), (shape, len(self.values))

    def at(self, *index):
        """The values of the block at a leading index."""
        block = math.prod(self.shape[len(index):])
        flat = 0
        for i, n in zip(index, self.shape):
            flat = flat * n + i
        return self.values[flat * block:(flat + 1) * block]

    def put(self, values, *index):
        block = math.prod(self.shape[len(index):])
        flat = 0
        for i, n in zip(index, self.shape):
            flat = flat * n + i
        assert len(values) == block
        self.values[flat * block:(flat + 1) * block] = values


def write_case(path, metadata, tensors):
    order = sorted(tensors, key=lambda name: -SIZE[tensors[name].dtype])
    header = {"__metadata__": {"kda.replay": "1", **metadata}}
    body = b""
    for name in order:
        data = pack(tensors[name].dtype, tensors[name].values)
        header[name] = {"dtype": tensors[name].dtype, "shape": tensors[name].shape,
                        "data_offsets": [len(body), len(body) + len(data)]}
        body += data
    text = json.dumps(header, separators=(",", ":"))
    text += " " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text.encode() + body)


# ---- the recurrence --------------------------------------------------------------------------------------------------
def sigmoid(x):
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def softplus(x):
    return x if x > 20 else math.log1p(math.exp(x))


class Model:
    """One geometry and its per-head parameters."""

    def __init__(self, rng, H, HV, K, V, io="F32", gate="softplus", beta="sigmoid", l2norm=True, lower_bound=None,
                 scale=None, A_log=True, dt_bias=True, layout="vk", gate_dtype=None):
        self.H, self.HV, self.K, self.V, self.io = H, HV, K, V, io
        self.gate, self.beta, self.l2norm, self.layout = gate, beta, l2norm, layout
        self.lower_bound, self.scale = lower_bound, scale
        self.gate_dtype = gate_dtype or io
        self.A_log = Tensor("F32", [HV], [rng.uniform(-1, 1.5) for _ in range(HV)]) if A_log else None
        self.dt_bias = Tensor("F32", [HV, K], [rng.gauss(-1, 1.5) for _ in range(HV * K)]) if dt_bias else None

    def metadata(self, op):
        out = {"kda.op": op, "kda.gate": self.gate, "kda.beta": self.beta, "kda.qk_l2norm": "1" if self.l2norm else "0"}
        if self.scale is not None:
            out["kda.scale"] = repr(self.scale)
        if self.lower_bound is not None:
            out["kda.lower_bound"] = repr(self.lower_bound)
        if self.layout != "vk":
            out["kda.state_layout"] = self.layout
        return out

    def tokens(self, rng, T):
        """Random tokens: keys share a direction, gates range from open to closed."""
        H, HV, K, V = self.H, self.HV, self.K, self.V
        common = [rng.gauss(0, 1) for _ in range(H * K)]
        norm = 1 if self.l2norm else K ** -0.5
        if self.gate == "precomputed":
            a = [rng.choice([0.0, -1e-3, -0.1, -1.0, -8.0, -1000.0, -math.inf, -rng.expovariate(2)]) for _ in range(T * HV * K)]
        else:
            a = [rng.gauss(0, 3) for _ in range(T * HV * K)]
        b = [rng.uniform(0, 1) if self.beta == "none" else rng.gauss(0, 2) for _ in range(T * HV)]
        io = self.io
        out = {
            "q": Tensor(io, [T, H, K], [rng.gauss(0, 1) * norm for _ in range(T * H * K)]),
            "k": Tensor(io, [T, H, K], [(0.7 * common[i % (H * K)] + rng.gauss(0, 1)) * norm for i in range(T * H * K)]),
            "v": Tensor(io, [T, HV, V], [rng.gauss(0, 1) for _ in range(T * HV * V)]),
            "a": Tensor(self.gate_dtype, [T, HV, K], a),
            "b": Tensor(io, [T, HV], b),
        }
        if self.A_log:
            out["A_log"] = self.A_log
        if self.dt_bias:
            out["dt_bias"] = self.dt_bias
        return out

    def unit(self, x):
        if not self.l2norm:
            return x, 1.0
        r = 1 / math.sqrt(sum(e * e for e in x) + 1e-6)
        return [e * r for e in x], r

    def log_decay(self, tokens, t, hv):
        a = tokens["a"].at(t, hv)
        if self.gate == "precomputed":
            return a
        bias = self.dt_bias.at(hv) if self.dt_bias else [0.0] * self.K
        if self.gate == "softplus":
            return [-math.exp(self.A_log.values[hv]) * softplus(x + d) for x, d in zip(a, bias)]
        rate = math.exp(self.A_log.values[hv]) if self.A_log else 1.0
        return [(self.lower_bound or -5.0) * sigmoid(rate * (x + d)) for x, d in zip(a, bias)]

    def step_size(self, tokens, t, hv):
        b = tokens["b"].at(t)[hv]
        return {"sigmoid": lambda: sigmoid(b), "sigmoid2": lambda: 2 * sigmoid(b), "none": lambda: b}[self.beta]()

    def zero(self):
        return [[[0.0] * self.K for _ in range(self.V)] for _ in range(self.HV)]

    def step(self, tokens, t, S):
        """One token from S (one matrix [V][K] a head): the new S, the output and the correction u."""
        scale = self.scale if self.scale is not None else self.K ** -0.5
        new, out, corrections = [], [], []
        for hv in range(self.HV):
            h = hv // (self.HV // self.H)
            q, _ = self.unit(tokens["q"].at(t, h))
            k, _ = self.unit(tokens["k"].at(t, h))
            v = tokens["v"].at(t, hv)
            decay = [math.exp(g) for g in self.log_decay(tokens, t, hv)]
            beta = self.step_size(tokens, t, hv)
            head = [[s * d for s, d in zip(row, decay)] for row in S[hv]]
            u = [beta * (v[i] - sum(s * x for s, x in zip(head[i], k))) for i in range(self.V)]
            head = [[s + u[i] * x for s, x in zip(head[i], k)] for i in range(self.V)]
            out += [scale * sum(s * x for s, x in zip(head[i], q)) for i in range(self.V)]
            new.append(head)
            corrections += u
        return new, out, corrections

    # -- pools
    def slot_shape(self):
        return [self.HV, self.V, self.K] if self.layout == "vk" else [self.HV, self.K, self.V]

    def pool(self, rng, dtype, slots, poisoned=()):
        n = self.HV * self.V * self.K
        values = []
        for slot in range(slots):
            values += [NAN] * n if slot in poisoned else [rng.gauss(0, 0.5) for _ in range(n)]
        return Tensor(dtype, [slots] + self.slot_shape(), values)

    def load(self, pool, slot):
        flat = pool.at(slot)
        V, K = self.V, self.K
        pick = (lambda hv, i, j: flat[(hv * V + i) * K + j]) if self.layout == "vk" else (lambda hv, i, j: flat[(hv * K + j) * V + i])
        return [[[pick(hv, i, j) for j in range(K)] for i in range(V)] for hv in range(self.HV)]

    def flat(self, S):
        if self.layout == "vk":
            return [s for head in S for row in head for s in row]
        return [head[i][j] for head in S for j in range(self.K) for i in range(self.V)]


def expected(pool):
    """A copy of a pool to store expectations in: float32 whatever the pool's dtype."""
    return Tensor("F32", pool.shape, pool.values)


def indices(values, dtype="I32", shape=None):
    return Tensor(dtype, shape or [len(values)], values)


def starts(lengths, first=0):
    out = [first]
    for n in lengths:
        out.append(out[-1] + n)
    return out


def blank_out(model, T):
    return Tensor("F32", [T, model.HV, model.V], [NAN] * (T * model.HV * model.V))


def blind_row(tensors, cu, row, names):
    """Fills a null row's tokens with NaN: reading them shows."""
    for name in names:
        for t in range(cu[row], cu[row + 1]):
            tensors[name].put([NAN] * len(tensors[name].at(t)), t)


TOKEN_NAMES = ("q", "k", "v", "a", "b")


def random_parents(rng, nodes):
    return [-1] + [rng.randrange(-1, i) for i in range(1, nodes)] if nodes else []


def walk_tree(model, tokens, first, parents, root, out):
    """Every node from its parent's state; returns states and corrections by node."""
    states, corrections = [], []
    for node, parent in enumerate(parents):
        S, o, u = model.step(tokens, first + node, root if parent < 0 else states[parent])
        out.put(o, first + node)
        states.append(S)
        corrections.append(u)
    return states, corrections


# ---- records: header, then nodes; every part on 16 bytes ----------------------------------------------------------------
def padded(data):
    return data + b"\0" * (-len(data) % 16)


def mixed(values):
    h = 2166136261
    for v in values:
        h = ((h ^ v) * 16777619) & 0xFFFFFFFF
    return h


IO_NUMBER = {"F32": 0, "BF16": 1, "F16": 2}


def record_header(magic, parents, max_nodes, geometry):
    data = struct.pack("<4sIiI", magic, 1 << 16, len(parents), geometry)
    for node in range(max_nodes):
        data += struct.pack("<ii", parents[node] if node < len(parents) else -1, 0)
    return padded(data)


def two_floats(x):
    """x as the sum of its nearest float and what that leaves out."""
    high = struct.unpack("<f", struct.pack("<f", x))[0]
    return high, x - high


def state_record(model, tokens, first, parents, corrections, max_nodes):
    m = model
    data = record_header(b"KADR", parents, max_nodes, mixed([m.K, m.V, m.H, m.HV, IO_NUMBER[m.io], max_nodes, 0]))
    for node in range(max_nodes):
        t = first + min(node, len(parents) - 1)
        used = corrections[min(node, len(parents) - 1)]
        decay = [math.exp(g) for hv in range(m.HV) for g in m.log_decay(tokens, t, hv)]
        keys = [tokens["k"].at(t, h) for h in range(m.H)]
        data += padded(pack("F32", used)) + padded(pack("F32", decay))
        data += padded(pack(m.io, [x for key in keys for x in key])) + padded(pack("F32", [part for key in keys for part in two_floats(m.unit(key)[1])]))
    return data


def conv_record(x, first, parents, max_nodes):
    channels = x.shape[1]
    data = record_header(b"KADC", parents, max_nodes, mixed([channels, IO_NUMBER[x.dtype], max_nodes]))
    for node in range(max_nodes):
        data += padded(pack(x.dtype, x.at(first + min(node, len(parents) - 1))))
    return data


def record_buffer(rows, count):
    """rows: {row: bytes}; the rest is 0xff."""
    size = len(next(iter(rows.values())))
    data = b"".join(rows.get(row, b"\xff" * size) for row in range(count))
    return Tensor("U8", [count, size], list(data))


# ---- cases of the state operations -----------------------------------------------------------------------------------
CASES = []


def case(function):
    CASES.append(function)
    return function


def extend(model, tensors, cu, slots, state, has_state=None, dst=None, dst_pool=None, null_slot0=False, snapshots=()):
    """Expectations of extend and decode. dst: destination slot of each row in dst_pool (or in place)."""
    source, target = expected(state) if state else None, expected(dst_pool) if dst_pool else None
    out = blank_out(model, tensors["v"].shape[0])
    taken = {}
    for row in range(len(cu) - 1):
        slot = slots[row] if slots else None
        if slot is not None and (slot < 0 or (null_slot0 and slot == 0)):
            for t in range(cu[row], cu[row + 1]):
                out.put([0.0] * (model.HV * model.V), t)
            continue
        fresh = slot is None or (has_state and not has_state[row])
        S = model.zero() if fresh else model.load(state, slot)
        at = [S]
        for t in range(cu[row], cu[row + 1]):
            S, o, _ = model.step(tensors, t, S)
            out.put(o, t)
            at.append(S)
        for entry, (snapshot_row, position) in enumerate(snapshots):
            if snapshot_row == row and position >= 0:
                taken[entry] = model.flat(at[position])
        if dst is None:
            if slot is not None and (cu[row + 1] > cu[row] or fresh):
                source.put(model.flat(S), slot)
        elif dst[row] >= 0:
            (target or source).put(model.flat(S), dst[row])
    tensors["expect.out"] = out
    if source:
        tensors["expect.state"] = source
    if target:
        tensors["expect.dst_state"] = target
    return taken


@case
def extend_precomputed_sigmoid2(rng):
    model = Model(rng, H=1, HV=2, K=32, V=48, gate="precomputed", beta="sigmoid2", A_log=False, dt_bias=False)
    cu, slots = starts([9, 0, 25, 4]), [3, 1, 0, -1]
    tensors = model.tokens(rng, cu[-1])
    state = model.pool(rng, "F32", 5, poisoned=(2, 4))
    blind_row(tensors, cu, 3, TOKEN_NAMES)
    extend(model, tensors, cu, slots, state)
    tensors.update(state=state, slots=indices(slots), cu_seqlens=indices(cu))
    return model.metadata("extend"), tensors


@case
def extend_fp16_beta_none_no_norm(rng):
    model = Model(rng, H=2, HV=2, K=24, V=40, io="F16", beta="none", l2norm=False, dt_bias=False, scale=0.3)
    cu, slots = starts([17, 5], first=2), [0, 2]
    tensors = model.tokens(rng, cu[-1] + 3)  # two tokens before the rows and three after them
    state = model.pool(rng, "F32", 3, poisoned=(1,))
    extend(model, tensors, cu, slots, state)
    tensors.update(state=state, slots=indices(slots), cu_seqlens=indices(cu))
    return model.metadata("extend"), tensors


@case
def extend_kv_fork_to_bf16_pool(rng):
    model = Model(rng, H=2, HV=4, K=16, V=32, io="BF16", gate="bounded", lower_bound=-5.0, layout="kv")
    cu, slots, dst = starts([7, 12, 0, 3]), [1, 1, 3, 2], [4, 0, 2, -1]  # two rows read slot 1; the last stores nothing
    tensors = model.tokens(rng, cu[-1])
    state = model.pool(rng, "F32", 4, poisoned=(0,))
    dst_state = model.pool(rng, "BF16", 5, poisoned=(0, 1, 4))
    extend(model, tensors, cu, slots, state, dst=dst, dst_pool=dst_state)
    tensors.update(state=state, slots=indices(slots, "I64"), cu_seqlens=indices(cu, "I64"), dst_slots=indices(dst, "I64"),
                   dst_state=dst_state)
    return model.metadata("extend"), tensors


@case
def extend_bounded_no_A_log_snapshots(rng):
    """Snapshots go to slots of the state pool; slot 0 is null."""
    model = Model(rng, H=1, HV=1, K=48, V=16, io="BF16", gate="bounded", A_log=False, dt_bias=False, gate_dtype="F32")
    cu, slots = starts([32, 6, 18]), [5, 0, 2]
    snapshots, into = [(0, 16), (2, 18), (0, 0), (2, -1)], [7, 1, 3, 4]
    tensors = model.tokens(rng, cu[-1])
    state = model.pool(rng, "F32", 8, poisoned=(0, 1, 3, 4, 6, 7))
    blind_row(tensors, cu, 1, TOKEN_NAMES)
    taken = extend(model, tensors, cu, slots, state, null_slot0=True, snapshots=snapshots)
    shot = Tensor("F32", [len(into)] + model.slot_shape(), [NAN] * (len(into) * model.V * model.K))
    for entry, values in taken.items():
        tensors["expect.state"].put(values, into[entry])
        shot.put(values, entry)
    tensors.update(state=state, slots=indices(slots), cu_seqlens=indices(cu), snapshot_rows=indices([r for r, _ in snapshots]),
                   snapshot_positions=indices([p for _, p in snapshots]), snapshot_slots=indices(into))
    tensors["expect.snapshots"] = shot
    return {**model.metadata("extend"), "kda.null_slot0": "1"}, tensors


@case
def extend_all_fresh_to_pool(rng):
    """No slots: every row starts from zero and only dst_slots receives states."""
    model = Model(rng, H=1, HV=3, K=16, V=16, io="F16", beta="sigmoid2")
    cu, dst = starts([5, 0, 11]), [2, 0, 3]
    tensors = model.tokens(rng, cu[-1])
    dst_state = model.pool(rng, "F32", 4, poisoned=(0, 1, 2, 3))
    extend(model, tensors, cu, None, None, dst=dst, dst_pool=dst_state)
    tensors.update(dst_state=dst_state, dst_slots=indices(dst), cu_seqlens=indices(cu))
    return model.metadata("extend"), tensors


@case
def decode_fp16_dst_fresh(rng):
    model = Model(rng, H=2, HV=2, K=32, V=16, io="F16", gate="precomputed", A_log=False, dt_bias=False)
    slots, has_state, dst = [2, 4, -1, 5], [1, 0, 1, 1], [0, 1, 3, 5]
    cu = starts([1, 1, 1, 1])
    tensors = model.tokens(rng, 4)
    state = model.pool(rng, "F32", 6, poisoned=(0, 1, 3, 4))
    extend(model, tensors, cu, slots, state, has_state=has_state, dst=dst)
    tensors.update(state=state, slots=indices(slots, "I64"), has_state=Tensor("U8", [4], has_state), dst_slots=indices(dst))
    return model.metadata("decode"), tensors


def verify(model, rng, tensors, cu, slots, state, parents, tips, dst=None, has_state=None, node_slots=None, snapshots=()):
    """Expectations of verify and the commit of tips afterwards; returns states by row and node."""
    out, after = blank_out(model, cu[-1]), expected(state)
    everything = []
    for row in range(len(cu) - 1):
        if slots[row] < 0:
            for t in range(cu[row], cu[row + 1]):
                out.put([0.0] * (model.HV * model.V), t)
            everything.append(None)
            continue
        fresh = has_state and not has_state[row]
        root = model.zero() if fresh else model.load(state, slots[row])
        states, _ = walk_tree(model, tensors, cu[row], parents[row], root, out)
        everything.append((root, states))
        if node_slots:
            for node, slot in enumerate(node_slots[row]):
                if node < len(states) and slot >= 0:
                    after.put(model.flat(states[node]), slot)
        if tips and (tips[row] >= 0 or dst):
            where = dst[row] if dst else slots[row]
            if where >= 0:
                after.put(model.flat(states[tips[row]] if tips[row] >= 0 else root), where)
    shot = None
    if snapshots:
        shot = Tensor("F32", [len(snapshots)] + model.slot_shape(), [NAN] * (len(snapshots) * model.HV * model.V * model.K))
        for entry, (row, node) in enumerate(snapshots):
            if node >= 0:
                shot.put(model.flat(everything[row][1][node]), entry)
        tensors["expect.snapshots"] = shot
    tensors["expect.out"], tensors["expect.state"] = out, after
    return everything


@case
def verify_rows_single_root_kv(rng):
    """Parents as [N, D] with node 0's entry 0, as one engine stores it; record rows in an order of their own."""
    model = Model(rng, H=1, HV=2, K=32, V=16, io="F16", gate="precomputed", beta="sigmoid2", A_log=False, dt_bias=False,
                  layout="kv")
    lengths, slots, tips = [6, 3, 0, 8], [2, 0, 4, 1], [4, 0, -1, 7]
    cu = starts(lengths)
    parents = [[-1] + [rng.randrange(0, i) for i in range(1, n)] if n else [] for n in lengths]
    tensors = model.tokens(rng, cu[-1])
    state = model.pool(rng, "F32", 5, poisoned=(3,))
    verify(model, rng, tensors, cu, slots, state, parents, tips)
    stored = [[0] + p[1:] + [-7] * (9 - max(len(p), 1)) for p in parents]
    tensors.update(state=state, slots=indices(slots), cu_seqlens=indices(cu), tips=indices(tips, "I64"),
                   parents=indices([p for row in stored for p in row], "I64", [4, 9]), record_rows=indices([5, 0, 2, 1]))
    return {**model.metadata("verify"), "kda.single_root": "1"}, tensors


@case
def verify_node_slots(rng):
    """The state after every node goes to slots of the pool, the rows' own sources included."""
    model = Model(rng, H=1, HV=1, K=32, V=32, io="BF16", gate="bounded", lower_bound=-4.0)
    lengths, slots = [4, 3, 2], [5, 0, -1]
    cu = starts(lengths)
    parents = [[-1, 0, 0, 2], [-1, -1, 1], [-1, 0]]
    node_slots = [[6, 1, -1, 5], [2, 0, 3, -1], [4, 7, -1, -1]]
    tensors = model.tokens(rng, cu[-1])
    state = model.pool(rng, "F32", 8, poisoned=(1, 2, 3, 4, 6, 7))
    blind_row(tensors, cu, 2, TOKEN_NAMES)
    verify(model, rng, tensors, cu, slots, state, parents, None, node_slots=node_slots)
    tensors.update(state=state, slots=indices(slots), cu_seqlens=indices(cu), parents=indices([p for r in parents for p in r]),
                   node_slots=indices([s for r in node_slots for s in r], shape=[3, 4]))
    return model.metadata("verify"), tensors


@case
def commit_dst_snapshots(rng):
    """A commit given by its tokens: fresh rows, a copy for tip -1, snapshots of nodes off the accepted path's end."""
    model = Model(rng, H=2, HV=2, K=16, V=32, io="BF16")
    lengths, slots, tips = [5, 4, 3, 2], [1, 6, 3, -1], [4, 2, -1, 0]
    has_state, dst = [1, 0, 1, 1], [0, 2, 5, 7]
    cu = starts(lengths)
    parents = [[-1, 0, 1, 0, 2], [-1, 0, 0, 2], [-1, 0, 1], [-1, 0]]
    snapshots = [(0, 1), (1, 2), (0, -1)]
    tensors = model.tokens(rng, cu[-1])
    state = model.pool(rng, "F32", 8, poisoned=(0, 2, 4, 5, 6, 7))
    blind_row(tensors, cu, 3, TOKEN_NAMES)
    verify(model, rng, tensors, cu, slots, state, parents, tips, dst=dst, has_state=has_state, snapshots=snapshots)
    tensors.update(state=state, slots=indices(slots), cu_seqlens=indices(cu), parents=indices([p for r in parents for p in r]),
                   tips=indices(tips), has_state=Tensor("U8", [4], has_state), dst_slots=indices(dst),
                   snapshot_rows=indices([r for r, _ in snapshots]), snapshot_positions=indices([p for _, p in snapshots]))
    return model.metadata("commit"), tensors


def pending_round(rng, model, lengths, max_nodes):
    cu = starts(lengths)
    return cu, [random_parents(rng, n) for n in lengths], model.tokens(rng, cu[-1])


@case
def verify_pending_rounds(rng):
    """The last round's records are given; the call commits them, verifies the next draft, and its tips are committed."""
    model = Model(rng, H=1, HV=2, K=32, V=16, io="BF16", gate="bounded", lower_bound=-5.0)
    max_nodes, slots = 7, [2, 0, -1, 3]
    old_cu, old_parents, old_tokens = pending_round(rng, model, [7, 5, 3, 4], max_nodes)
    old_tokens["A_log"], old_tokens["dt_bias"] = model.A_log, model.dt_bias
    pending_tips, pending_rows, record_rows = [6, 4, 2, -1], [3, 0, 5, 1], [4, 1, 2, 6]
    state = model.pool(rng, "F32", 5, poisoned=(1, 4))
    scratch, committed = blank_out(model, old_cu[-1]), Tensor("F32", state.shape, state.values)
    rows = {}
    for row, slot in enumerate(slots):
        root = model.load(state, slot) if slot >= 0 else model.zero()
        states, corrections = walk_tree(model, old_tokens, old_cu[row], old_parents[row], root, scratch)
        rows[pending_rows[row]] = state_record(model, old_tokens, old_cu[row], old_parents[row], corrections, max_nodes)
        if slot >= 0 and pending_tips[row] >= 0:
            committed.put(model.flat(states[pending_tips[row]]), slot)
    cu, parents, tensors = pending_round(rng, model, [4, 7, 2, 1], max_nodes)
    tips = [3, 5, 0, -1]
    blind_row(tensors, cu, 2, TOKEN_NAMES)
    verify(model, rng, tensors, cu, slots, committed, parents, tips)
    tensors.update(state=state, slots=indices(slots), cu_seqlens=indices(cu), parents=indices([p for r in parents for p in r]),
                   tips=indices(tips), records=record_buffer(rows, 7), record_rows=indices(record_rows),
                   pending_tips=indices(pending_tips), pending_record_rows=indices(pending_rows))
    return model.metadata("verify_pending"), tensors


@case
def move_cycle(rng):
    """A cycle of three, a chain, a copy onto itself and two skipped entries, all at once."""
    model = Model(rng, H=1, HV=2, K=16, V=24)
    source, destination = [0, 1, 2, 3, 4, 6, -1, 5], [1, 2, 0, 4, 5, 6, 3, -1]
    state = model.pool(rng, "BF16", 8, poisoned=(7,))
    after = expected(state)
    for s, d in zip(source, destination):
        if s >= 0 and d >= 0:
            after.put(state.at(s), d)
    tensors = {"state": state, "slots": indices(source, "I64"), "dst_slots": indices(destination, "I64"), "expect.state": after}
    return {"kda.op": "move"}, tensors


@case
def move_to_bf16_pool(rng):
    model = Model(rng, H=1, HV=1, K=32, V=16)
    source, destination = [2, 0, 2], [0, 1, 3]
    state, other = model.pool(rng, "F32", 3, poisoned=(1,)), model.pool(rng, "BF16", 5, poisoned=(2, 4))
    after = expected(other)
    for s, d in zip(source, destination):
        after.put(state.at(s), d)
    tensors = {"state": state, "dst_state": other, "slots": indices(source), "dst_slots": indices(destination),
               "expect.state": expected(state), "expect.dst_state": after}
    return {"kda.op": "move"}, tensors


# ---- cases of the convolution ----------------------------------------------------------------------------------------
class Conv:
    def __init__(self, rng, C, W, io="BF16", bias=True, layout="wc", weight_dtype="F32", pool_dtype=None):
        self.C, self.W, self.io, self.layout, self.pool_dtype = C, W, io, layout, pool_dtype or io
        self.w = Tensor(weight_dtype, [C, W], [rng.gauss(0, 0.7) for _ in range(C * W)])
        self.bias = Tensor(weight_dtype, [C], [rng.gauss(0, 0.5) for _ in range(C)]) if bias else None

    def slot_shape(self):
        return [self.W - 1, self.C] if self.layout == "wc" else [self.C, self.W - 1]

    def pool(self, rng, slots, poisoned=()):
        n = (self.W - 1) * self.C
        values = []
        for slot in range(slots):  # windows hold inputs: representable in the dtype of x
            values += [NAN] * n if slot in poisoned else [ROUND[self.io](rng.gauss(0, 1)) for _ in range(n)]
        return Tensor(self.pool_dtype, [slots] + self.slot_shape(), values)

    def zero(self):
        return [[0.0] * self.C for _ in range(self.W - 1)]

    def load(self, pool, slot):
        flat, n = pool.at(slot), self.W - 1
        if self.layout == "wc":
            return [flat[i * self.C:(i + 1) * self.C] for i in range(n)]
        return [[flat[c * n + i] for c in range(self.C)] for i in range(n)]

    def flat(self, window):
        if self.layout == "wc":
            return [x for row in window for x in row]
        return [window[i][c] for c in range(self.C) for i in range(self.W - 1)]

    def step(self, x, t, window):
        """Window (oldest first) and output after token t."""
        inputs = window + [x.at(t)]
        out = []
        for c in range(self.C):
            taps = self.w.at(c)
            y = sum(taps[i] * inputs[i][c] for i in range(self.W)) + (self.bias.values[c] if self.bias else 0.0)
            out.append(y * sigmoid(y))
        return inputs[1:], out

    def tensors(self, rng, T):
        out = {"x": Tensor(self.io, [T, self.C], [rng.gauss(0, 1.5) for _ in range(T * self.C)]), "w": self.w}
        if self.bias:
            out["bias"] = self.bias
        return out


def conv_verify(conv, tensors, cu, slots, pool, parents, tips, dst=None, has_state=None):
    out, after = Tensor("F32", [cu[-1], conv.C], [NAN] * (cu[-1] * conv.C)), expected(pool)
    for row in range(len(cu) - 1):
        if slots[row] < 0:
            for t in range(cu[row], cu[row + 1]):
                out.put([0.0] * conv.C, t)
            continue
        root = conv.zero() if has_state and not has_state[row] else conv.load(pool, slots[row])
        windows = []
        for node, parent in enumerate(parents[row]):
            window, y = conv.step(tensors["x"], cu[row] + node, root if parent < 0 else windows[parent])
            windows.append(window)
            out.put(y, cu[row] + node)
        if tips[row] >= 0 or dst:
            where = dst[row] if dst else slots[row]
            if where >= 0:
                after.put(conv.flat(windows[tips[row]] if tips[row] >= 0 else root), where)
    tensors["expect.out"], tensors["expect.conv_state"] = out, after


@case
def conv_extend_channel_major(rng):
    conv = Conv(rng, C=80, W=4, pool_dtype="F32", layout="cw", weight_dtype="BF16")
    lengths, slots, has_state = [5, 2, 0, 1, 3, 0], [1, 4, 3, 6, -1, 2], [1, 0, 1, 1, 1, 0]
    cu = starts(lengths)
    tensors = conv.tensors(rng, cu[-1])
    pool = conv.pool(rng, 8, poisoned=(0, 2, 4, 5, 7))
    out, after = Tensor("F32", [cu[-1], conv.C], [NAN] * (cu[-1] * conv.C)), expected(pool)
    snapshots = [(0, 3), (1, 1), (3, 0), (0, 5)]
    shot = Tensor("F32", [len(snapshots)] + conv.slot_shape(), [NAN] * (len(snapshots) * conv.C * (conv.W - 1)))
    blind_row(tensors, cu, 4, ("x",))
    for row in range(len(lengths)):
        if slots[row] < 0:
            for t in range(cu[row], cu[row + 1]):
                out.put([0.0] * conv.C, t)
            continue
        window = conv.load(pool, slots[row]) if has_state[row] else conv.zero()
        at = [window]
        for t in range(cu[row], cu[row + 1]):
            window, y = conv.step(tensors["x"], t, window)
            out.put(y, t)
            at.append(window)
        if lengths[row] or not has_state[row]:
            after.put(conv.flat(window), slots[row])
        for entry, (snapshot_row, position) in enumerate(snapshots):
            if snapshot_row == row:
                shot.put(conv.flat(at[position]), entry)
    tensors.update({"conv_state": pool, "slots": indices(slots), "cu_seqlens": indices(cu), "has_state": Tensor("U8", [6], has_state),
                    "snapshot_rows": indices([r for r, _ in snapshots]), "snapshot_positions": indices([p for _, p in snapshots]),
                    "expect.out": out, "expect.conv_state": after, "expect.snapshots": shot})
    return {"kda.op": "conv_extend"}, tensors


@case
def conv_decode_fp16(rng):
    conv = Conv(rng, C=144, W=3, io="F16", bias=False, weight_dtype="F16")
    slots, dst = [3, -1, 0, 2], [1, 4, 5, 2]
    tensors = conv.tensors(rng, 4)
    pool = conv.pool(rng, 6, poisoned=(1, 4, 5))
    blind_row(tensors, starts([1, 1, 1, 1]), 1, ("x",))
    out, after = Tensor("F32", [4, conv.C], [0.0] * (4 * conv.C)), expected(pool)
    for row in (0, 2, 3):
        window, y = conv.step(tensors["x"], row, conv.load(pool, slots[row]))
        out.put(y, row)
        after.put(conv.flat(window), dst[row])
    tensors.update({"conv_state": pool, "slots": indices(slots, "I64"), "dst_slots": indices(dst, "I64"), "expect.out": out,
                    "expect.conv_state": after})
    return {"kda.op": "conv_decode"}, tensors


@case
def conv_verify_tree(rng):
    conv = Conv(rng, C=96, W=4, io="F32")
    lengths, slots, tips = [9, 1, 0, 6, 2], [4, 1, 0, 3, -1], [8, 0, -1, -1, 1]
    cu = starts(lengths)
    parents = [random_parents(rng, n) for n in lengths]
    tensors = conv.tensors(rng, cu[-1])
    pool = conv.pool(rng, 6, poisoned=(2, 5))
    blind_row(tensors, cu, 4, ("x",))
    conv_verify(conv, tensors, cu, slots, pool, parents, tips)
    tensors.update(conv_state=pool, slots=indices(slots), cu_seqlens=indices(cu), parents=indices([p for r in parents for p in r]),
                   tips=indices(tips))
    return {"kda.op": "conv_verify"}, tensors


@case
def conv_commit_dst(rng):
    conv = Conv(rng, C=64, W=2, pool_dtype="F32", weight_dtype="F32")
    lengths, slots, tips, dst, has_state = [3, 4, 2], [1, 0, 3], [2, -1, 1], [4, 2, 5], [1, 1, 0]
    cu = starts(lengths)
    parents = [[-1, 0, 0], [-1, -1, 0, 1], [-1, 0]]
    tensors = conv.tensors(rng, cu[-1])
    pool = conv.pool(rng, 6, poisoned=(2, 3, 4, 5))
    conv_verify(conv, tensors, cu, slots, pool, parents, tips, dst=dst, has_state=has_state)
    tensors.update(conv_state=pool, slots=indices(slots), cu_seqlens=indices(cu), parents=indices([p for r in parents for p in r]),
                   tips=indices(tips), dst_slots=indices(dst), has_state=Tensor("U8", [3], has_state))
    return {"kda.op": "conv_commit"}, tensors


@case
def conv_verify_pending_rounds(rng):
    conv = Conv(rng, C=48, W=4)
    max_nodes, slots = 6, [0, 2, -1, 3]
    old_lengths, lengths = [6, 4, 2, 3], [3, 6, 2, 5]
    pending_tips, pending_rows, record_rows, tips = [5, 3, 1, -1], [0, 1, 2, 3], [4, 5, 6, 7], [2, 5, 0, 1]
    old_cu, cu = starts(old_lengths), starts(lengths)
    old_parents, parents = ([random_parents(rng, n) for n in ls] for ls in (old_lengths, lengths))
    old = conv.tensors(rng, old_cu[-1])
    pool = conv.pool(rng, 5, poisoned=(1, 4))
    committed = Tensor(conv.io, pool.shape, pool.values)
    rows = {}
    for row, slot in enumerate(slots):
        windows = []
        for node, parent in enumerate(old_parents[row]):
            start = conv.load(pool, slot) if slot >= 0 else conv.zero()
            windows.append(conv.step(old["x"], old_cu[row] + node, start if parent < 0 else windows[parent])[0])
        rows[pending_rows[row]] = conv_record(old["x"], old_cu[row], old_parents[row], max_nodes)
        if slot >= 0 and pending_tips[row] >= 0:
            committed.put(conv.flat(windows[pending_tips[row]]), slot)
    tensors = conv.tensors(rng, cu[-1])
    blind_row(tensors, cu, 2, ("x",))
    conv_verify(conv, tensors, cu, slots, committed, parents, tips)
    tensors.update(conv_state=pool, slots=indices(slots), cu_seqlens=indices(cu), parents=indices([p for r in parents for p in r]),
                   tips=indices(tips), records=record_buffer(rows, 8), record_rows=indices(record_rows),
                   pending_tips=indices(pending_tips), pending_record_rows=indices(pending_rows))
    return {"kda.op": "conv_verify", "kda.plan": json.dumps({"problem": {"max_nodes": max_nodes, "conv_width": 4}})}, tensors


def main():
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print(__doc__.split("\n\n")[1], file=sys.stderr)
        return 2
    os.makedirs(sys.argv[1], exist_ok=True)
    for seed, function in enumerate(CASES):
        metadata, tensors = function(random.Random(seed))
        write_case(os.path.join(sys.argv[1], function.__name__.replace("_", "-") + ".safetensors"), metadata, tensors)
    return 0


if __name__ == "__main__":
    sys.exit(main())
