#!/usr/bin/env python3
"""Prints the tables of docs/performance.md's GPU section from a results file of kda_cuda_bench.

usage: bench/cuda/tables.py bench/results/cuda-h200.json [bench/results/fla-h200.json]

The second file, of bench/cuda/peers.py, adds flash-linear-attention's decode and verify timed with the same method.
"""
import json
import sys

# SGLang 0.5.23's Triton kernels on the same kind of card, microseconds (other runs).
SGLANG_DECODE = {("fp32", 12, 1): 5.3, ("fp32", 32, 1): 5.9, ("fp32", 12, 32): 19.6, ("fp32", 32, 32): 42.5,
                 ("fp32", 32, 128): 157.8, ("bf16", 12, 1): 3.4, ("bf16", 32, 1): 4.6, ("bf16", 12, 32): 10.6,
                 ("bf16", 32, 32): 24.5, ("bf16", 32, 128): 79.2, ("fp32", 12, 8): 8.1, ("fp32", 32, 8): 12.7,
                 ("bf16", 12, 8): 5.7, ("bf16", 32, 8): 8.4}
SGLANG_VERIFY = {("fp32", 8, "chain"): 179, ("fp32", 8, "tree"): 231, ("fp32", 16, "chain"): 329,
                 ("fp32", 16, "tree"): 521, ("bf16", 8, "chain"): 109, ("bf16", 8, "tree"): 118,
                 ("bf16", 16, "chain"): 200, ("bf16", 16, "tree"): 244}

# FLA's chunk kernel, FlashKDA (fp32 state) and the goal for extend, milliseconds (other runs).
EXTEND_PEERS = {(12, "1x8192"): (1.246, 0.960, 0.14), (12, "mixed6"): (0.974, 0.461, 0.11), (12, "8x1024"): (0.958, 0.253, 0.08),
                (12, "1x65536"): (3.966, 7.100, 0.85), (12, "64x256"): (1.240, 0.404, 0.12), (32, "1x8192"): (1.415, 1.097, 0.28),
                (32, "mixed6"): (1.438, 0.714, 0.25), (32, "8x1024"): (1.419, 0.470, 0.16), (32, "1x65536"): (7.554, 8.194, 1.90),
                (32, "64x256"): (2.380, 0.944, 0.30), (64, "1x8192"): (2.075, 1.295, 0.50), (64, "mixed6"): (2.096, 1.071, 0.42),
                (64, "8x1024"): (2.105, 0.859, 0.30), (64, "1x65536"): (14.399, 9.832, 2.60), (64, "64x256"): (3.964, 1.778, 0.58),
                (96, "1x8192"): (2.911, 1.503, 0.55), (96, "mixed6"): (2.931, 1.446, 0.50), (96, "8x1024"): (2.867, 1.244, 0.42),
                (96, "1x65536"): (21.700, 11.497, 4.20), (96, "64x256"): (5.965, 2.615, 0.85)}


def fields(name):
    values = {}
    for word in name.split():
        if "=" in word:
            key, value = word.split("=")
            values[key] = int(value)
    return values


def spread(row):
    return f"{row['median_us']:.1f} ({row['min_us']:.1f}–{row['max_us']:.1f})"


def fla_times(path):
    """Median microseconds of flash-linear-attention, by "decode fp32 H=12 N=1 D=128" and the like."""
    with open(path, encoding="utf-8") as file:
        return {row["name"].removeprefix("fla "): f"{row['median_us']:.1f}" for row in json.load(file)["results"]}


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__.strip())
    fla = fla_times(sys.argv[2]) if len(sys.argv) == 3 else {}
    with open(sys.argv[1], encoding="utf-8") as file:
        data = json.load(file)
    rows = data["results"]
    print(f"{data['machine']}; commit {data['commit']}; `{data['command']}`. {data['method']}. µs, median (least–most).\n")

    copies = {}
    for row in rows:
        if row["name"].startswith("copy "):
            _, units, _, dtype = row["name"].split()[:4]
            key = (dtype, int(units))
            copies[key] = min(copies.get(key, 1e9), row["median_us"])
    print("| decode | N | H | kda | best copy of the same bytes | ratio | SGLang | FLA |\n|---|---|---|---|---|---|---|---|")
    for row in rows:
        if row["name"].startswith("decode ") and "R=" not in row["name"]:
            dtype, f = row["name"].split()[1], fields(row["name"])
            if f["D"] != 128:
                continue
            copy = copies.get((dtype, f["N"] * f["H"]))
            ratio = f"{row['median_us'] / copy:.2f}" if copy else ""
            peer = SGLANG_DECODE.get((dtype, f["H"], f["N"]), "")
            print(f"| {dtype} | {f['N']} | {f['H']} | {spread(row)} | {f'{copy:.1f}' if copy else ''} | {ratio} | {peer} | {fla.get(row['name'], '')} |")

    print("\n| verify, D=128 | N | H | T | draft | exact | fast | SGLang, states per token | FLA, states per token |\n|---|---|---|---|---|---|---|---|---|")
    table = {}
    for row in rows:
        words = row["name"].split()
        if words[0] in ("verify", "verify_pending") and words[-1] in ("exact", "fast"):
            f = fields(row["name"])
            if f["D"] == 128:
                table.setdefault((words[0], words[1], f["N"], f["H"], f["T"], words[-2]), {})[words[-1]] = row
    for (op, dtype, n, h, t, draft), found in table.items():
        label = dtype + (", pending commit" if op == "verify_pending" else "")
        peer = SGLANG_VERIFY.get((dtype, t, draft), "") if (op, n, h) == ("verify", 32, 32) else ""
        print(f"| {label} | {n} | {h} | {t} | {draft} | " +
              " | ".join(spread(found[k]) if k in found else "" for k in ("exact", "fast")) + f" | {peer} | {fla.get(f'verify {dtype} H={h} N={n} D=128 T={t} {draft}', '') if op == 'verify' else ''} |")

    print("\n| commit of 4 nodes | N | H | exact |\n|---|---|---|---|")
    for row in rows:
        if row["name"].startswith("commit "):
            f = fields(row["name"])
            print(f"| {row['name'].split()[1]} | {f['N']} | {f['H']} | {spread(row)} |")
    extends = {}
    for row in rows:
        words = row["name"].split()
        if words[0] == "extend" and words[-2].startswith("rows="):
            extends[words[1], int(words[2][2:]), words[-2][5:], words[-1]] = row
    if extends:
        print("\n| extend, fp32 pool, ms | H | fast | fast, 64 MB of workspace | exact | FLA chunk | FlashKDA | goal |\n"
              "|---|---|---|---|---|---|---|---|")
        for (dtype, heads, shape, form), row in extends.items():
            if dtype != "fp32" or form != "fast":
                continue
            others = [f"{extends[dtype, heads, shape, other]['median_us'] / 1e3:.2f}"
                      if (dtype, heads, shape, other) in extends else "" for other in ("64MB", "exact")]
            peers = [f"{ms:.2f}" for ms in EXTEND_PEERS.get((heads, shape), ())] or [""] * 3
            low, high = row["min_us"] / 1e3, row["max_us"] / 1e3
            print(f"| {shape} | {heads} | {row['median_us'] / 1e3:.3f} ({low:.3f}–{high:.3f}) | " + " | ".join(others + peers) + " |")


if __name__ == "__main__":
    main()
