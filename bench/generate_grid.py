#!/usr/bin/env python3
"""Speed and accepted length of `kda generate` over a grid of speculation settings.

    bench/generate_grid.py build/release/cli/kda > bench/results/generate.json
    bench/generate_grid.py --table bench/results/generate.json

Every run's tokens are compared with those of plain decoding; a difference ends the program with exit code 1. Settings take
turns within a repetition, so that a busy moment of the machine does not fall on one of them alone.
"""
import argparse
import json
import statistics
import subprocess
import sys
import time

PROMPTS = [
    "The :func:`sorted` function returns a new list",
    "CREATE TABLE",
    "import os\n\ndef main():\n    ",
    "In Rust, ownership is",
]
NEW_TOKENS = 128
TOUCHED_BYTES = 13_100_000  # of weights, by one token of the built-in model


def grid():
    yield {"algorithm": "NONE"}
    for steps in (2, 3, 4, 6):
        yield {"algorithm": "EAGLE3", "steps": steps, "topk": 1, "nodes": steps + 1}
    for steps, topk, nodes in ((2, 2, 4), (3, 2, 6), (4, 2, 8), (3, 3, 8), (4, 4, 8), (3, 4, 12), (4, 4, 12), (5, 4, 16), (6, 4, 24)):
        yield {"algorithm": "EAGLE3", "steps": steps, "topk": topk, "nodes": nodes}
    for steps, topk, nodes in ((3, 1, 4), (4, 2, 6), (5, 4, 8), (5, 4, 16)):
        yield {"algorithm": "NGRAM", "steps": steps, "topk": topk, "nodes": nodes}


def run(kda, setting, prompt, threads):
    command = [kda, "generate", "--json", "--ignore-eos", "--max-new-tokens", str(NEW_TOKENS), "--prompt", prompt,
               "--threads", str(threads), "--speculative-algorithm", setting["algorithm"]]
    if setting["algorithm"] != "NONE":
        command += ["--speculative-num-steps", str(setting["steps"]), "--speculative-eagle-topk", str(setting["topk"]),
                    "--speculative-num-draft-tokens", str(setting["nodes"])]
    return json.loads(subprocess.run(command, check=True, capture_output=True).stdout)


def read_seconds():
    """Least and median time of one thread reading a buffer as large as what a token touches (memchr)."""
    buffer, times = bytes(bytearray(TOUCHED_BYTES)), []
    for _ in range(50):
        begin = time.perf_counter()
        buffer.find(b"\x01")
        times.append(time.perf_counter() - begin)
    return min(times), statistics.median(times)


def measure(kda, threads, repeats):
    settings = list(grid())
    samples = [[] for _ in settings]
    plain = {}
    for _ in range(repeats):
        for setting, rows in zip(settings, samples):
            reports = [run(kda, setting, prompt, threads) for prompt in PROMPTS]
            for prompt, report in zip(PROMPTS, reports):
                if report["output_tokens"] != plain.setdefault(prompt, report["output_tokens"]):
                    sys.exit(f"{setting}: tokens differ from plain decoding on {prompt!r}")
            stats = [report["stats"] for report in reports]
            total = lambda key: sum(s[key] for s in stats)
            rounds = total("verify_rounds") or sum(s["decode"]["tokens"] for s in stats)
            rows.append({
                "tokens_per_second": sum(s["decode"]["tokens"] for s in stats) / sum(s["decode"]["seconds"] for s in stats),
                "tokens_per_round": NEW_TOKENS * len(PROMPTS) / rounds if setting["algorithm"] != "NONE" else 1.0,
                "draft_us": total("draft_seconds") / rounds * 1e6,
                "verify_us": total("verify_seconds") / rounds * 1e6,
                "commit_us": total("commit_seconds") / rounds * 1e6,
            })
    results = [{**setting, **{key: statistics.median(row[key] for row in rows) for key in rows[0]},
                "least_tokens_per_second": min(row["tokens_per_second"] for row in rows),
                "most_tokens_per_second": max(row["tokens_per_second"] for row in rows)}
               for setting, rows in zip(settings, samples)]
    least, median = read_seconds()
    return {"threads": threads, "repeats": repeats, "prompts": len(PROMPTS), "new_tokens": NEW_TOKENS,
            "read_bytes": TOUCHED_BYTES, "read_us_least": least * 1e6, "read_us_median": median * 1e6, "results": results}


def table(report):
    plain = report["results"][0]["tokens_per_second"]
    print("| algorithm | steps | top-k | nodes | tokens a round | draft us | verify us | commit us | tokens/s (least-most) | of plain |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for r in report["results"]:
        shape = " | ".join(str(r.get(key, "")) for key in ("steps", "topk", "nodes"))
        print(f"| {r['algorithm']} | {shape} | {r['tokens_per_round']:.2f} | {r['draft_us']:.0f} | {r['verify_us']:.0f} | "
              f"{r['commit_us']:.0f} | {r['tokens_per_second']:.0f} ({r['least_tokens_per_second']:.0f}-"
              f"{r['most_tokens_per_second']:.0f}) | {r['tokens_per_second'] / plain:.2f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kda", nargs="?", help="the program")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--table", metavar="JSON", help="print the table of an earlier run")
    arguments = parser.parse_args()
    if arguments.table:
        with open(arguments.table, encoding="utf-8") as file:
            table(json.load(file))
    elif arguments.kda:
        json.dump(measure(arguments.kda, arguments.threads, arguments.repeats), sys.stdout, indent=1)
        print()
    else:
        parser.error("name the kda program, or --table JSON")


if __name__ == "__main__":
    main()
