"""Compares kda doctor with SGLang's own argument parser and argument resolution over generated launch commands.

usage: compare.py KDA_PROGRAM [--count 600] [--words 400] [--seed 1] [--plant]
--count launches go through the resolution; --words launches with malformed words go through the parser.
Needs the environment of requirements.txt (this Python must have it). Exit 0 = every answer equal.
--plant hands the doctor a description with one fact changed: the comparison must then fail.
"""
import argparse
import json
import os
import random
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
GPUS = [0, 80, 89, 90, 100, 103, 120]
BACKENDS = ["triton", "cutedsl", "flashinfer", "flashkda", "nvidia_kda", "ptx_kda", "helion", "intel_xpu"]
FLAGS = {"enable_linear_replayssm", "enable_linear_replayssm_spec", "disable_radix_cache", "disable_overlap_schedule",
         "enable_unified_memory", "enable_page_major_kv_layout", "disable_prefill_cuda_graph"}


def draw(rng, models):
    """One random launch: option by option, each with the chance that keeps most launches interesting."""
    args, env = {}, {}

    def maybe(chance, name, values):
        if rng.random() < chance:
            args[name] = rng.choice(values)

    maybe(0.3, "linear_attn_backend", BACKENDS)
    maybe(0.35, "linear_attn_decode_backend", BACKENDS)
    maybe(0.35, "linear_attn_prefill_backend", BACKENDS)
    maybe(0.35, "linear_attn_verify_backend", BACKENDS + ["nv_cutedsl"])
    maybe(0.4, "mamba_ssm_dtype", ["float32", "bfloat16", "bfloat16"])
    maybe(0.2, "mamba_radix_cache_strategy", ["auto", "no_buffer", "extra_buffer", "extra_buffer_lazy"])
    maybe(0.15, "disable_radix_cache", [True])
    maybe(0.2, "disable_overlap_schedule", [True])
    maybe(0.12, "enable_linear_replayssm", [True])
    maybe(0.2, "enable_linear_replayssm_spec", [True])
    maybe(0.1, "linear_replayssm_cache_len", [0, 8, 16, 24, 32])
    maybe(0.1, "page_size", [1, 64])
    maybe(0.08, "mamba_track_interval", [4, 64, 256])
    maybe(0.08, "disable_prefill_cuda_graph", [True])
    maybe(0.06, "cuda_graph_backend_prefill", ["breakable", "full", "disabled"])
    maybe(0.06, "enable_page_major_kv_layout", [True])
    maybe(0.06, "enable_unified_memory", [True])
    if rng.random() < 0.6:
        algorithm = rng.choice(["EAGLE", "EAGLE", "EAGLE3", "NEXTN", "NGRAM", "NGRAM", "DFLASH", "eagle", "EAGEL"])
        args["speculative_algorithm"] = algorithm
        if algorithm in ("NGRAM", "EAGEL"):
            maybe(0.3, "speculative_ngram_max_bfs_breadth", [1, 4])
            maybe(0.3, "speculative_num_draft_tokens", [4, 8, 16])
        elif algorithm == "DFLASH":
            if rng.random() < 0.8:
                args["speculative_draft_model_path"] = models["kimi-linear"]
            maybe(0.8, "speculative_num_draft_tokens", [4, 8, 12])
            maybe(0.3, "speculative_eagle_topk", [1, 4])
        else:
            args["speculative_draft_model_path"] = models["kimi-linear"]
            kind = rng.random()
            if kind < 0.75:
                args["speculative_num_steps"] = rng.choice([1, 3, 5])
                args["speculative_eagle_topk"] = rng.choice([1, 1, 2, 4])
                args["speculative_num_draft_tokens"] = rng.choice([2, 4, 8, 16])
            elif kind < 0.8:
                args["speculative_eagle_topk"] = 4
    if rng.random() < 0.06:
        args["disaggregation_mode"] = rng.choice(["prefill", "decode"])
    if rng.random() < 0.1:
        env["SGLANG_RAGGED_VERIFY_MODE"] = rng.choice(["static", "cap-accept", "compact", "dense"])
    if rng.random() < 0.06:
        env["SGLANG_ENABLE_PP_SPEC"] = "1"
    return {"model": rng.choice(list(models)), "sm": rng.choice(GPUS), "args": args, "env": env}


def command(job, folder):
    words = [f"{name}={value}" for name, value in job["env"].items()] + ["sglang", "serve", "--model-path", folder]
    for name, value in job["args"].items():
        words.append("--" + name.replace("_", "-"))
        if name not in FLAGS:
            words.append(str(value))
    return words


WORDS = ["8", "abc", "1_0", " 8 ", "-1", "-x", "0.5", "true", "", '{"a": 1}', "{", "[]", "8k", "triton", "auto", "a b", "-a b", "x=y",
         "1e3", "1Ki", "None", "null", "it's", "fp8", "\\", "é", "-5.5", "-.5", "-5x", "--x=1"]
# Options whose values have a syntax of their own or choices in no fixed order: the doctor does not judge these.
OWN_SYNTAX = {"--model-path", "--config", "--help", "--cuda-graph-config", "--sampling-backend", "--lora-target-modules",
              "--lora-paths", "--log-requests-level", "--fuseep-mode", "--max-lora-chunk-size", "--dsa-triton-union"}
PARSER_CODES = {"SGL-VALUE", "SGL-VALUE-MISSING", "SGL-FLAG-VALUE", "SGL-UNRECOGNIZED", "SGL-AMBIGUOUS", "SGL-CHOICE"}


def draw_words(rng, options):
    """A launch of random options: shortened, misspelt, joined, with too many, too few or odd words."""
    words = []
    for _ in range(rng.randint(1, 4)):
        names, takes, choices = rng.choice(options)
        name, kind = rng.choice(names), rng.random()
        if kind < 0.08:
            name = name[:rng.randint(3, len(name))]
        elif kind < 0.1:
            name = "--" + name[2:].replace("-", "_")
        elif kind < 0.12:
            name = "--bogus"
        values = []
        if takes != "0" or rng.random() < 0.15:
            values = [rng.choice((choices or WORDS) + WORDS) for _ in range(rng.choice([0, 1, 1, 1, 1, 2]))]
        if values and rng.random() < 0.25:
            words += [f"{name}={values[0]}"] + values[1:]
        else:
            words += [name] + values
    return words


def compare_words(kda, rng, count, model):
    """How many of the launches the doctor reads otherwise than SGLang's parser."""
    judge = [sys.executable, os.path.join(HERE, "parse.py")]
    options = json.loads(subprocess.run(judge + ["--options"], capture_output=True, text=True).stdout.splitlines()[-1])
    options = [option for option in options if not OWN_SYNTAX & set(option[0])]
    jobs = [["--model-path", model] + draw_words(rng, options) for _ in range(count)]
    done = subprocess.run(judge, input="\n".join(map(json.dumps, jobs)), capture_output=True, text=True)
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if len(answers) != count:
        sys.exit(f"the parser answered {len(answers)} of {count} launches:\n{done.stderr[-2000:]}")
    refused = failures = 0
    for words, engine in zip(jobs, answers):
        # The model is given apart: a drawn --model would be refused before the parser's errors are shown.
        said = subprocess.run([kda, "doctor", "--json", "--no-fixes", "--gpu", "h200", "--model-config", model, "--",
                               "sglang", "serve"] + words, capture_output=True, text=True)
        expected = engine.get("text", "")
        refused += bool(expected)
        if said.returncode not in (0, 1, 3, 4):
            good, text = "help" in engine and "help" in said.stderr, said.stderr
        else:
            report = json.loads(said.stdout)
            launch = report["phases"][0]
            text = launch["message"] if launch["code"] in PARSER_CODES else ""
            unknown = report["engine"]["unknown_options"]
            if expected.startswith("ambiguous option"):  # the candidates come in another order
                good = sorted((text or "").replace(",", "").split()) == sorted(expected.replace(",", "").split())
            elif expected.startswith("unrecognized arguments") and unknown:  # listed, not refused
                good = text in ("", expected)
            else:
                good = text == expected and ("text" in engine or not unknown)
        if not good:
            failures += 1
            if failures <= 20:
                print(f"{words}\n    parser: {engine}\n    doctor: {text}")
    print(f"{count} launches for the parser, {refused} refused")
    return failures


def ask_engine(jobs, models):
    lines = "\n".join(json.dumps({**job, "model": models[job["model"]]}) for job in jobs)
    done = subprocess.run([sys.executable, os.path.join(HERE, "resolve.py")], input=lines, capture_output=True, text=True)
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if len(answers) != len(jobs):
        sys.exit(f"the engine answered {len(answers)} of {len(jobs)} launches:\n{done.stderr[-2000:]}")
    return answers


def ask_doctor(kda, job, folder, data):
    gpu = "cpu" if job["sm"] == 0 else f"sm_{job['sm']}"
    options = ["--data", data] if data else []
    done = subprocess.run([kda, "doctor", "--json", "--no-fixes", "--gpu", gpu] + options + ["--"] + command(job, folder),
                          capture_output=True, text=True)
    if done.returncode not in (0, 1, 3, 4):
        return {"broken": done.stderr.strip()}
    report = json.loads(done.stdout)
    launch = report["phases"][0]
    if launch["outcome"] == "refused" and launch["when"] == "launch":
        return {"text": launch["message"] or ""}
    return {"resolved": report["engine"]["resolved"]}


def difference(engine, doctor):
    """Empty if equal, else what differs."""
    if "broken" in doctor:
        return doctor["broken"]
    if "error" in engine:
        if "text" not in doctor:
            return f"the engine refuses ({engine['error']}: {engine['text'][:160]}), the doctor does not"
        said, expected = (" ".join(text.split()) for text in (doctor["text"], engine["text"]))
        return "" if said == expected else f"refusal texts differ: doctor {said[:200]!r}, engine {expected[:200]!r}"
    if "text" in doctor:
        return f"the doctor refuses ({doctor['text'][:160]}), the engine does not"
    wrong = []
    for name, value in engine["resolved"].items():
        mine = doctor["resolved"].get(name)
        if name == "mamba_radix_cache_strategy" and engine["resolved"]["disable_radix_cache"]:
            continue
        if value != mine:
            wrong.append(f"{name}: doctor {mine!r}, engine {value!r}")
    return "; ".join(wrong)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kda")
    parser.add_argument("--count", type=int, default=600)
    parser.add_argument("--words", type=int, default=400)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--plant", action="store_true")
    options = parser.parse_args()
    models = {name: os.path.join(HERE, "models", name) for name in sorted(os.listdir(os.path.join(HERE, "models")))}
    rng = random.Random(options.seed)
    jobs = [draw(rng, models) for _ in range(options.count)]
    answers = ask_engine(jobs, models)
    with tempfile.TemporaryDirectory() as data:
        planted = ""
        if options.plant:
            with open(os.path.join(ROOT, "engines", "sglang.json")) as file:
                description = json.load(file)
            for step in description["steps"]:
                if step["id"] == "sglang.pin.kimi_verify":
                    step["when"] = "false"
            os.makedirs(os.path.join(data, "engines"))
            with open(os.path.join(data, "engines", "sglang.json"), "w") as file:
                json.dump(description, file)
            planted = data
        refused = failures = 0
        for job, engine in zip(jobs, answers):
            refused += "error" in engine
            text = difference(engine, ask_doctor(options.kda, job, models[job["model"]], planted))
            if text:
                failures += 1
                if failures <= 20:
                    print(f"sm_{job['sm']} {' '.join(command(job, job['model']))}\n    {text}")
    print(f"{len(jobs)} launches, {refused} refused by the engine, {len(jobs) - refused} resolved")
    total = len(jobs)
    if not options.plant:
        failures += compare_words(options.kda, rng, options.words, models["kimi-linear"])
        total += options.words
    # GoogleTest's words, which the test runner counts
    print(f"[  PASSED  ] {total - failures} tests.")
    if failures:
        print(f"[  FAILED  ] {failures} tests.")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
