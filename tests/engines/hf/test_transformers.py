"""Unmodified transformers models of the three KDA types on libkda against their own pure torch code: the same greedy tokens."""

import contextlib
import importlib

import pytest
import torch

import libkda.fla

SMALL = dict(vocab_size=200, hidden_size=64, intermediate_size=128, moe_intermediate_size=32, num_hidden_layers=5, num_attention_heads=2,
             num_key_value_heads=2, kv_lora_rank=32, qk_rope_head_dim=16, v_head_dim=32, qk_nope_head_dim=32, num_experts_per_tok=2,
             n_shared_experts=1, pad_token_id=0, bos_token_id=1, eos_token_id=2)
TYPES = ["kimi_linear", "bailing_hybrid", "glm5_next"]


def modeling(model_type):
    return importlib.import_module(f"transformers.models.{model_type}.modeling_{model_type}")


def build(model_type):
    import transformers

    torch.manual_seed(0)
    module = modeling(model_type)
    if model_type == "kimi_linear":
        config = transformers.KimiLinearConfig(**SMALL, num_local_experts=4, linear_head_dim=32, linear_num_heads=2)
        model = module.KimiLinearForCausalLM(config)
    elif model_type == "bailing_hybrid":
        config = transformers.BailingHybridConfig(**SMALL, num_local_experts=8, n_group=2, topk_group=1, head_dim=32, first_k_dense_replace=1,
                                                  layer_group_size=5)
        model = module.BailingHybridForCausalLM(config)
    else:
        text = dict(SMALL, n_routed_experts=4, linear_head_dim=32, linear_num_heads=2, qk_rope_head_dim=0, q_lora_rank=32, index_topk=64,
                    index_head_dim=32, index_n_heads=2)
        vision = dict(depth=1, hidden_size=32, num_heads=2, intermediate_size=64, out_hidden_size=64, projection_intermediate_size=64)
        config = transformers.Glm5NextConfig(text_config=text, vision_config=vision)
        model = module.Glm5NextForConditionalGeneration(config)
    # Random weights as they come give near-uniform logits: spread them, so that greedy choices are no coin tosses.
    for name, parameter in model.named_parameters():
        if parameter.dim() >= 2:
            torch.nn.init.normal_(parameter, std=0.15)
    return model.eval()


@contextlib.contextmanager
def pure_torch(model_type, model):
    """The model's own torch functions in place of FLA's."""
    module = modeling(model_type)
    names = ("chunk_kimi_delta_attention", "recurrent_kimi_delta_attention")
    kept = {name: getattr(module, name) for name in names}
    for name in names:
        setattr(module, name, kept[name].__wrapped__)
    try:
        yield
    finally:
        for name in names:
            setattr(module, name, kept[name])


def generate(model, prompt, mask):
    with torch.inference_mode():
        return model.generate(prompt, attention_mask=mask, max_new_tokens=12, min_new_tokens=12, do_sample=False)


@pytest.mark.parametrize("model_type", TYPES)
@pytest.mark.parametrize("batch", [1, 4])
def test_same_greedy_tokens(model_type, batch):
    model = build(model_type)
    prompt = torch.randint(3, 200, (batch, 70))
    mask = torch.ones_like(prompt)
    for row in range(1, batch):  # left padding
        prompt[row, :7 * row], mask[row, :7 * row] = 0, 0
    libkda.fla.reset_counters()
    ours = generate(model, prompt, mask)
    served = libkda.fla.counters()
    assert served["served"]["chunk_kda"] > 0 and served["served"]["fused_recurrent_kda_fwd"] > 0 and not served["declined"], served
    libkda.fla.reset_counters()
    with pure_torch(model_type, model):
        theirs = generate(model, prompt, mask)
    assert not libkda.fla.counters()["served"]
    assert torch.equal(ours, theirs)


@pytest.mark.parametrize("model_type", TYPES[:2])
def test_continuation_from_the_cache(model_type):
    model = build(model_type)
    prompt = torch.randint(3, 200, (2, 40))
    with torch.inference_mode():
        whole = model(prompt).logits
        first = model(prompt[:, :25], use_cache=True)
        second = model(prompt[:, 25:], past_key_values=first.past_key_values, use_cache=True)
    error = (torch.cat([first.logits, second.logits], 1) - whole).norm() / whole.norm()
    assert error < 1e-3
