"""A random Kimi-Linear of five layers through unmodified transformers on libkda. Needs torch, flash-linear-attention 0.6 and
transformers 5.24."""

import torch
from transformers import KimiLinearConfig
from transformers.models.kimi_linear.modeling_kimi_linear import KimiLinearForCausalLM

import libkda.fla


@torch.inference_mode()
def main():
    torch.manual_seed(0)
    config = KimiLinearConfig(
        vocab_size=200, hidden_size=64, intermediate_size=128, moe_intermediate_size=32, num_hidden_layers=5, num_attention_heads=2,
        num_key_value_heads=2, kv_lora_rank=32, qk_rope_head_dim=16, v_head_dim=32, qk_nope_head_dim=32, num_experts_per_tok=2,
        num_local_experts=4, linear_head_dim=32, linear_num_heads=2, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    model = KimiLinearForCausalLM(config).eval()
    prompt = torch.randint(3, 200, (1, 20))
    tokens = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=8, min_new_tokens=8, do_sample=False)
    print("generated", tokens[0, 20:].tolist())
    print(libkda.fla.report())


if __name__ == "__main__":
    main()
