"""SGLang's own argument resolution for a pretended GPU, on a machine without one: the judge of kda doctor.

usage: resolve.py < LINES   one JSON object a line:
  {"model": folder with config.json, "sm": 0 (CPU) | 80 | 90 | 100 | 103 | 120, "args": {ServerArgs field: value}, "env": {...}}
prints one JSON object a line: {"resolved": {...}} or {"error": class, "text": text}.
It sees what fails during argument resolution; the values that the launcher's parser would refuse pass here.
"""
import json
import os
import sys

os.environ["CUDA_VISIBLE_DEVICES"] = ""
import torch  # noqa: E402

# Before any pretence: these look at the real machine when they are imported.
import sglang.srt.arg_groups.pipeline  # noqa: E402,F401
import sglang.srt.layers.attention.linear.kda_backend  # noqa: E402,F401
import sglang.srt.utils as utils  # noqa: E402
from sglang.srt.arg_groups.overrides import resolving_view  # noqa: E402
from sglang.srt.runtime_context import override_platform  # noqa: E402
from sglang.srt.server_args import ServerArgs  # noqa: E402

FIELDS = (
    "linear_attn_backend", "linear_attn_decode_backend", "linear_attn_prefill_backend", "linear_attn_verify_backend",
    "mamba_ssm_dtype", "mamba_radix_cache_strategy", "disable_overlap_schedule", "disable_radix_cache",
    "speculative_algorithm", "speculative_eagle_topk", "speculative_num_steps", "speculative_num_draft_tokens",
)
real_is_cuda = utils.is_cuda


def answer(job):
    sm = job["sm"]
    utils.is_cuda = (lambda: True) if sm else real_is_cuda
    torch.cuda.get_device_capability = lambda *a, **k: (sm // 10, sm % 10)
    facts = {}
    if sm:
        facts = dict(is_cuda=True, is_sm90=sm // 10 == 9, is_sm100=sm // 10 == 10, is_blackwell=sm // 10 >= 10,
                     device_sm=sm, is_hip=False, is_npu=False, is_xpu=False)
    before = {name: os.environ.get(name) for name in job.get("env", {})}
    os.environ.update(job.get("env", {}))
    try:
        with override_platform(**facts):
            fixed = dict(model_path=job["model"], tokenizer_path=job["model"], device="cuda" if sm else "cpu",
                         load_format="dummy", mem_fraction_static=0.8, chunked_prefill_size=2048,
                         max_running_requests=16)
            arguments = ServerArgs(**{**fixed, **job.get("args", {})})
            arguments.resolve_once()
            view = resolving_view(arguments)
            resolved = {field: getattr(view, field) for field in FIELDS}
            resolved["prefill_graph"] = str(view.cuda_graph_config.prefill.backend)
            return {"resolved": resolved}
    except Exception as error:
        return {"error": type(error).__name__, "text": str(error)}
    except SystemExit as error:
        return {"error": "SystemExit", "text": str(error)}
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        # A resolution publishes its state dtype to the environment; the next job starts without it.
        os.environ.pop("SGLANG_MAMBA_SSM_DTYPE", None)


for line in sys.stdin:
    if line.strip():
        print(json.dumps(answer(json.loads(line)), default=str), flush=True)
