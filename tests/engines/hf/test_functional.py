"""libkda.functional, and FLA's own entry points served by libkda, against FLA's naive functions over FLA's argument grid."""

import pytest
import torch
from fla.ops.kda import chunk_kda as fla_chunk
from fla.ops.kda import fused_recurrent_kda as fla_recurrent
from inputs import LIMITS, Inputs, rel

import libkda
import libkda.fla
from libkda import functional

half, brain = torch.float16, torch.bfloat16
GRID = [
    dict(batch=1, tokens=63, heads=1, value_heads=1),
    dict(batch=2, tokens=130, heads=3, value_heads=3, key_dim=60, value_dim=60, dtype=half, l2norm=False),
    dict(batch=3, tokens=100, heads=4, value_heads=4, key_dim=100, value_dim=100, scale=0.1),
    dict(batch=1, tokens=200, heads=2, value_heads=4, key_dim=128, value_dim=128, dtype=brain, gate="softplus", raw_beta=True),
    dict(batch=1, tokens=90, heads=1, value_heads=3, key_dim=256, value_dim=64, dtype=half, gate="bounded", raw_beta=True, neg=True),
    dict(batch=2, tokens=33, key_dim=12, value_dim=20, gate="bounded without A_log", v_first=True),
    dict(batch=4, tokens=1, dtype=brain, gate="softplus", raw_beta=True, v_first=True, parameter_dtype=brain),
    dict(batch=1, tokens=65, state=False, dtype=half, gate="softplus", parameter_dtype=half),
    dict(cuts=(0, 15), heads=4, value_heads=4, key_dim=60, value_dim=60, dtype=half),
    dict(cuts=(0, 100, 100, 137, 150), key_dim=128, value_dim=32, dtype=brain, gate="bounded", raw_beta=True, v_first=True),
    dict(cuts=(3, 15, 100), dtype=torch.float32, gate="softplus"),
]
FUNCTIONS = {
    "functional.chunk_kda": (functional.chunk_kda, "fast"), "functional.fused_recurrent_kda": (functional.fused_recurrent_kda, "exact"),
    "fla chunk_kda": (fla_chunk, "fast"), "fla fused_recurrent_kda": (fla_recurrent, "exact"),
}


def served(inputs):
    """Our kernels on GPUs take head sizes of multiples of 16."""
    return torch.get_default_device().type == "cpu" or (inputs.key_dim % 16 == 0 and inputs.value_dim % 16 == 0)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("case", range(len(GRID)))
def test_against_the_naive_recurrence(name, case):
    inputs = Inputs(seed=case, **GRID[case])
    function, numerics = FUNCTIONS[name]
    before = None if inputs.initial is None else inputs.initial.clone()
    libkda.fla.reset_counters()
    if not served(inputs):
        if name.startswith("fla"):
            pytest.skip("FLA's own kernel answers: see test_a_declined_call_goes_to_fla")
        with pytest.raises(libkda.Error, match="16"):
            function(**inputs.arguments())
        return
    out, final = function(**inputs.arguments())
    judged_out, judged_final = inputs.judged()
    out_limit, state_limit = LIMITS[numerics, inputs.dtype]
    assert out.dtype == inputs.dtype and final.dtype == torch.float32 and out.shape == inputs.v.shape
    assert rel(out, judged_out) < out_limit and rel(final, judged_final) < state_limit
    assert before is None or torch.equal(before, inputs.initial)
    if name.startswith("fla"):
        assert sum(libkda.fla.counters()["served"].values()) == 1 and not libkda.fla.counters()["declined"]


def test_a_declined_call_goes_to_fla():
    if torch.get_default_device().type == "cpu":
        pytest.skip("FLA's own kernels need a GPU")
    inputs = Inputs(batch=2, tokens=9, key_dim=12, value_dim=20)
    libkda.fla.reset_counters()
    out, final = fla_recurrent(**inputs.arguments())
    judged_out, judged_final = inputs.judged()
    assert rel(out, judged_out) < 1e-4 and rel(final, judged_final) < 1e-4
    assert sum(libkda.fla.counters()["declined"].values()) == 1 and not libkda.fla.counters()["served"]


def test_the_judge_sees_a_wrong_flag():
    inputs = Inputs(gate="softplus", raw_beta=True)
    out, _ = functional.chunk_kda(**{**inputs.arguments(), "allow_neg_eigval": True})
    assert rel(out, inputs.judged()[0]) > 0.1


def test_exact_chunk_gives_the_bits_of_the_recurrence():
    inputs = Inputs(dtype=brain, gate="softplus", raw_beta=True)
    chunk = functional.chunk_kda(**inputs.arguments(), numerics="exact")
    recurrent = functional.fused_recurrent_kda(**inputs.arguments())
    assert torch.equal(chunk[0], recurrent[0]) and torch.equal(chunk[1], recurrent[1])


@pytest.mark.parametrize("cuts", [(), (0, 10, 10, 75, 140)])
@pytest.mark.parametrize("chunk_size", [32, 64])
def test_intermediate_states(cuts, chunk_size):
    inputs = Inputs(dtype=brain, cuts=cuts)
    with torch.inference_mode():
        out, final, h = fla_chunk(**inputs.arguments(), return_intermediate_states=True, chunk_size=chunk_size)
        plain_out, plain_final = fla_chunk(**inputs.arguments())
    assert torch.equal(out, plain_out) and torch.equal(final, plain_final)
    rows = [(0, a, b) for a, b in zip(cuts, cuts[1:])] if cuts else [(row, 0, inputs.tokens) for row in range(inputs.batch)]
    states = []
    for row, (batch, first, last) in enumerate(rows):
        for position in range(0, last - first, chunk_size):
            part = Inputs(dtype=brain, cuts=cuts)
            for name in ("q", "k", "v", "g", "beta"):
                setattr(part, name, getattr(inputs, name)[batch:batch + 1, first:first + position])
            part.initial, part.cuts, part.batch = inputs.initial[row:row + 1], (), 1
            states.append(part.judged()[1] if position else part.initial)
    assert h.dtype == brain and h.flatten(0, 1).shape == torch.cat(states).shape
    assert rel(h.flatten(0, 1), torch.cat(states)) < 6e-3


def refusal_of(function, arguments):
    with pytest.raises((ValueError, AssertionError)) as error:
        function(**arguments)
    return type(error.value), str(error.value)


@pytest.mark.parametrize("change", [
    dict(state_v_first=True, transpose_state_layout=True),
    dict(cu_seqlens=torch.tensor([0, 70])),
    dict(initial_state=torch.zeros(2, 4, 64, 64, dtype=half)),
    dict(use_gate_in_kernel=True),
    dict(chunk_size=16),
    dict(use_gate_in_kernel=True, A_log=torch.zeros(4), safe_gate=True),
    dict(use_gate_in_kernel=True, A_log=torch.zeros(4), safe_gate=True, lower_bound=-6.0),
    dict(allow_neg_eigval=True),
    dict(k=torch.zeros(2, 70, 2, 32)),
    dict(g=torch.zeros(2, 70, 2, 64)),
    dict(beta=torch.zeros(2, 70, 2)),
    dict(v=torch.zeros(2, 70, 3, 64)),
    dict(q=torch.zeros(2, 70, 2, 257), k=torch.zeros(2, 70, 2, 257)),
])
def test_errors_are_those_of_fla(change):
    arguments = {**Inputs().arguments(), **change}
    libkda.fla.reset_counters()
    fla_answer = refusal_of(fla_chunk, arguments)
    assert not libkda.fla.counters()["served"] and sum(libkda.fla.counters()["declined"].values()) == 1
    assert refusal_of(functional.chunk_kda, arguments) == fla_answer


def test_intermediate_states_need_inference_mode():
    with torch.no_grad(), pytest.raises(AssertionError, match="only allowed in inference mode"):
        functional.chunk_kda(**Inputs().arguments(), return_intermediate_states=True)
    with torch.inference_mode(), pytest.raises(AssertionError, match="disable_recompute=False"):
        functional.chunk_kda(**Inputs().arguments(), return_intermediate_states=True, disable_recompute=True)


@pytest.mark.parametrize("change", [
    dict(state_v_first=True, transpose_state_layout=True), dict(cu_seqlens=torch.tensor([0, 70])), dict(allow_neg_eigval=True),
])
def test_errors_of_the_recurrence_are_those_of_fla(change):
    arguments = {**Inputs().arguments(), **change}
    assert refusal_of(functional.fused_recurrent_kda, arguments) == refusal_of(fla_recurrent, arguments)


def declined(call):
    libkda.fla.reset_counters()
    with pytest.raises(Exception):  # FLA's own kernels need a GPU
        call()
    counted = libkda.fla.counters()
    assert not counted["served"], counted
    return [reason for _, reason in counted["declined"]]


@pytest.mark.skipif(torch.cuda.is_available(), reason="FLA serves these itself on a GPU")
def test_declined_calls_are_counted_and_go_to_fla(monkeypatch):
    inputs = Inputs()
    with_grad = {**inputs.arguments(), "v": inputs.v.clone().requires_grad_()}
    assert declined(lambda: fla_chunk(**with_grad)) == ["a gradient is needed"]
    with torch.no_grad():
        fla_chunk(**with_grad)
    assert not fla_recurrent(**with_grad)[0].requires_grad
    assert "unexpected keyword argument 'typo'" in declined(lambda: fla_chunk(**inputs.arguments(), typo=1))[0]
    assert declined(lambda: fla_chunk(**{**inputs.arguments(), "q": inputs.q.double(), "k": inputs.k.double()}))
    assert declined(lambda: fla_recurrent(**{**inputs.arguments(), "beta": torch.zeros(2, 70, 4, 64)}))
    monkeypatch.setenv("FLA_LIBKDA", "0")
    assert declined(lambda: fla_chunk(**inputs.arguments())) == []


def test_what_functional_refuses():
    inputs = Inputs()
    with pytest.raises(libkda.Error) as refusal:
        functional.chunk_kda(**{**inputs.arguments(), "v": inputs.v.clone().requires_grad_()})
    assert "gradient" in str(refusal.value) and refusal.value.way_out
    with pytest.raises(TypeError, match="typo"):
        functional.chunk_kda(**inputs.arguments(), typo=1)
    with pytest.raises(libkda.Error):
        functional.chunk_kda(**{**inputs.arguments(), "v": inputs.v.half()})
    with pytest.raises(libkda.Error):
        functional.fused_recurrent_kda(**inputs.arguments(), numerics="quick")


def test_views_of_transposed_tensors_are_served():
    inputs = Inputs(dtype=brain)
    expected = functional.chunk_kda(**inputs.arguments())
    strided = {name: getattr(inputs, name).permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2) for name in ("q", "k", "v")}
    out = functional.chunk_kda(**{**inputs.arguments(), **strided})
    assert torch.equal(out[0], expected[0]) and torch.equal(out[1], expected[1])


def test_serving_entry_with_pools():
    """fused_recurrent_kda_fwd as engines call it: in place, by slot; and one stored state a token."""
    from fla.ops.kda.fused_recurrent import fused_recurrent_kda_fwd

    inputs = Inputs(batch=3, tokens=1)
    pool = torch.full((6, 4, 64, 64), float("nan"))
    slots = torch.tensor([4, 0, 2])
    pool[slots] = inputs.initial
    arguments = {name: value for name, value in inputs.arguments().items() if name not in ("initial_state", "output_final_state")}
    out, final = fused_recurrent_kda_fwd(**arguments, initial_state=pool, ssm_state_indices=slots)
    judged_out, judged_final = inputs.judged()
    assert final is pool and rel(out, judged_out) < 1e-5 and rel(pool[slots], judged_final) < 1e-5
    assert pool[[1, 3, 5]].isnan().all()

    inputs = Inputs(batch=2, tokens=3, seed=1)
    pool = torch.full((9, 4, 64, 64), float("nan"))
    slots = torch.tensor([[1, 2, 3], [4, 5, 6]])
    pool[2], pool[4] = inputs.initial
    arguments = {name: value for name, value in inputs.arguments().items() if name not in ("initial_state", "output_final_state")}
    out, _ = fused_recurrent_kda_fwd(**arguments, initial_state=pool, ssm_state_indices=slots, num_accepted_tokens=torch.tensor([2, 1]))
    judged_out, judged_final = inputs.judged()
    assert rel(out, judged_out) < 1e-5 and rel(pool[slots[:, -1]], judged_final) < 1e-5
    assert pool[[0, 7, 8]].isnan().all() and not pool[1:7].isnan().any()
