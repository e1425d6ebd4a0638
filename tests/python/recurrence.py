"""The token recurrence in float64 NumPy: what every answer is measured against. Shares no code with the library."""

import numpy as np


def softplus(x):
    return np.where(x > 20, x, np.log1p(np.exp(np.minimum(x, 20))))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def step(state, q, k, v, g, beta, scale):
    """One token of one head, state [V, K]: (new state, out [V])."""
    state = state * np.exp(g)
    state = state + np.outer(beta * (v - state @ k), k)
    return state, scale * state @ q


def prepared(q, k, a, b, A_log, dt_bias, *, gate="softplus", beta="sigmoid", lower_bound=-5.0, l2norm=True):
    """(q, k, log decay, step) in float64, from raw inputs of value-head shape [T, HV, ...]."""
    q, k, a, b = (np.asarray(x, np.float64) for x in (q, k, a, b))
    if l2norm:
        q, k = (x / np.sqrt((x * x).sum(-1, keepdims=True) + 1e-6) for x in (q, k))
    if gate != "precomputed":
        raw = a + (0 if dt_bias is None else np.asarray(dt_bias, np.float64).reshape(1, *a.shape[1:]))
        if gate == "softplus":
            a = -np.exp(np.asarray(A_log, np.float64)).reshape(1, -1, 1) * softplus(raw)
        else:
            a = lower_bound * sigmoid(raw if A_log is None else np.exp(np.asarray(A_log, np.float64)).reshape(1, -1, 1) * raw)
    b = {"sigmoid": sigmoid, "sigmoid2": lambda x: 2 * sigmoid(x), "none": lambda x: x}[beta](b)
    return q, k, a, b


def tree(state, q, k, v, a, b, parents, scale=None, **forms):
    """One row: outs [T, HV, V] and the state after every node [T, HV, V, K]. state [HV, V, K]; q, k [T, H, K]."""
    tokens, value_heads, value_dim = v.shape
    group = value_heads // q.shape[1]
    q, k = (np.repeat(x, group, axis=1) for x in (q, k))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    q, k, g, beta = prepared(q, k, a, b, **forms)
    outs = np.zeros((tokens, value_heads, value_dim))
    states = np.zeros((tokens, *state.shape))
    for t in range(tokens):
        before = state if parents[t] < 0 else states[parents[t]]
        for h in range(value_heads):
            states[t, h], outs[t, h] = step(np.asarray(before[h], np.float64), q[t, h], k[t, h], np.asarray(v[t, h], np.float64), g[t, h],
                                            beta[t, h], scale)
    return outs, states


def relative_error(x, y):
    return np.linalg.norm(np.asarray(x, np.float64) - y) / max(np.linalg.norm(y), 1e-30)
