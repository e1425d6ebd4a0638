"""python -m libkda.demo: the built-in model through unmodified transformers and flash-linear-attention on libkda, next to the
same prompt through `kda generate`. Both give the same greedy tokens; the exit status says so (0 yes, 1 no, 2 cannot run)."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time

from .command import demo_model, program

_NEEDED = ("torch", "transformers", "fla")


def _missing() -> list[str]:
    return [name for name in _NEEDED if importlib.util.find_spec(name) is None]


def with_kda(model, prompt: str, new_tokens: int) -> dict:
    """What `kda generate --json` says, plain decoding."""
    command = [program(), "generate", "--model", model, "--prompt", prompt, "--max-new-tokens", str(new_tokens), "--ignore-eos",
               "--speculative-algorithm", "NONE", "--json"]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr.strip())
    return json.loads(done.stdout)


def with_transformers(model, prompt_tokens: list[int], new_tokens: int) -> tuple[list[int], float, str]:
    """(greedy tokens, seconds, what libkda served) of transformers on the same checkpoint, in float32."""
    import torch
    import transformers

    from . import fla

    loaded = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    ids = torch.tensor([prompt_tokens])
    fla.reset_counters()
    start = time.perf_counter()
    with torch.inference_mode():
        tokens = loaded.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new_tokens, min_new_tokens=new_tokens,
                                 do_sample=False)
    return tokens[0, ids.shape[1]:].tolist(), time.perf_counter() - start, fla.report()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m libkda.demo", description=__doc__)
    parser.add_argument("--prompt", default="CREATE TABLE")
    parser.add_argument("--max-new-tokens", type=int, default=32)
    options = parser.parse_args()
    if missing := _missing():
        print(f"libkda.demo: {', '.join(missing)} not installed; way out: pip install torch transformers==5.24.0 "
              "flash-linear-attention==0.6.0", file=sys.stderr)
        return 2
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    try:
        model = demo_model()
        own = with_kda(model, options.prompt, options.max_new_tokens)
    except (FileNotFoundError, RuntimeError, subprocess.CalledProcessError) as error:
        print(f"libkda.demo: {error}", file=sys.stderr)
        return 2
    tokens, seconds, served = with_transformers(model, own["prompt_tokens"], options.max_new_tokens)
    same = tokens == own["output_tokens"]
    print(own["text"])
    print(f"\ntransformers + FLA on libkda: {len(tokens)} tokens in {seconds:.2f} s\n{served}")
    print(f"greedy tokens equal those of kda generate: {'yes' if same else 'no'}")
    if not same:
        print(f"  transformers: {tokens}\n  kda generate: {own['output_tokens']}")
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
