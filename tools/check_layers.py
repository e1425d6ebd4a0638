#!/usr/bin/env python3
"""Checks the include directions of the tree: a folder may include itself and the folders listed for it, nothing else."""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
BASE = {"core", "errors"}
ALLOWED = {
    "src/core": {"core"},
    "src/errors": BASE,
    "src/reference": BASE | {"reference"},
    "src/cpu": BASE | {"cpu"},
    "src/cuda": BASE | {"cuda"},
    "src/plan": BASE | {"plan", "reference", "cpu", "cuda"},
    "src/capture": BASE | {"plan", "capture", "cpu"},
    "src/runtime": BASE | {"plan", "runtime"},
    "src/api": BASE | {"plan", "runtime", "capture", "api", "cpu", "cuda"},
    # Clients of the public headers only.
    "io": {"io", "capture"},
    "model": {"io", "model"},
    "doctor": {"io", "doctor"},
    "cli": {"io", "model", "doctor", "cli", "bench"},
}
FOLDERS = {"core", "errors", "reference", "cpu", "cuda", "plan", "capture", "runtime", "api", "io", "model", "doctor",
           "cli", "bench"}


def main():
    bad = 0
    for folder, allowed in ALLOWED.items():
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix not in {".h", ".hpp", ".cpp", ".cu", ".cuh", ".def", ".inc"}:
                continue
            for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1):
                found = re.match(r'\s*#\s*include\s+"([a-z_]+)/', line)
                if found and found[1] in FOLDERS and found[1] not in allowed:
                    print(f"{path.relative_to(ROOT)}:{number}: {folder} may not include {found[1]}/")
                    bad += 1
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
