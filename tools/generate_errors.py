#!/usr/bin/env python3
"""Writes what depends on the error catalogue: include/kda/status.h, src/errors/catalogue.inc and docs/errors.md.

usage: tools/generate_errors.py [--check]     --check: exit 1 if a generated file is not up to date
"""
import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
CATALOGUE = ROOT / "data/errors/kda.json"
REQUIRED = ("id", "name", "phase", "message", "cause", "way_out")
GROUPS = [
    (1000, "Arguments of a call", "shape, dtype, stride, alignment, device, combination"),
    (2000, "Values of a call", "slots, parents, cu_seqlens, tips, snapshots, record rows"),
    (3000, "Plan", "what no kernel serves"),
    (4000, "State pool", "handles, pending commits, exported state"),
    (5000, "Environment", "memory, threads, devices"),
    (6000, "Files and tools", "replay files, command line; only the kda command reports these"),
    (7000, "Models", "checkpoints and tokenizers; only the kda command reports these"),
]
FIRST_TOOL_CODE = 6000  # codes from here on are not part of the ABI


def load():
    records = json.loads(CATALOGUE.read_text(encoding="utf-8"))
    seen = {}
    for record in records:
        for field in REQUIRED:
            if not record.get(field):
                sys.exit(f"{CATALOGUE.name}: {record.get('id', '?')}: field {field} is missing or empty")
        if not re.fullmatch(r"KDA-[1-7][0-9]{3}", record["id"]):
            sys.exit(f"{CATALOGUE.name}: {record['id']}: an id is KDA- and four digits, 1001 to 7999")
        if not re.fullmatch(r"KDA_E_[A-Z0-9_]+", record["name"]):
            sys.exit(f"{CATALOGUE.name}: {record['id']}: a name is KDA_E_ and capitals")
        for key in (record["id"], record["name"]):
            if key in seen:
                sys.exit(f"{CATALOGUE.name}: {key} appears twice")
            seen[key] = True
        record["code"] = int(record["id"][4:])
    codes = [record["code"] for record in records]
    if codes != sorted(codes):
        sys.exit(f"{CATALOGUE.name}: records are not in the order of their ids")
    return records


def quoted(text):
    return json.dumps(text, ensure_ascii=True)


def status_header(records):
    rows = [r for r in records if r["code"] < FIRST_TOOL_CODE]
    width = max(len(r["name"]) for r in rows)
    lines = [f"  {r['name']:<{width}} = {r['code']}, /* {r['message']} */" for r in rows]
    return "\n".join([
        "/* Generated from data/errors/kda.json by tools/generate_errors.py: do not edit. */",
        "#ifndef KDA_STATUS_H_",
        "#define KDA_STATUS_H_",
        "",
        "#include <stdint.h>",
        "",
        "/* KDA_OK, or the number n of the catalogue entry KDA-nnnn (docs/errors.md). */",
        "typedef int32_t kda_status;",
        "",
        "enum {",
        f"  {'KDA_OK':<{width}} = 0,",
        *lines,
        "};",
        "",
        "#endif /* KDA_STATUS_H_ */",
        "",
    ])


def catalogue(records):
    rows = [r for r in records if r["code"] < FIRST_TOOL_CODE]
    lines = [f"KDA_ERROR({r['name']}, {quoted(r['id'])},\n          {quoted(r['message'])},\n"
             f"          {quoted(r['way_out'])})" for r in rows]
    return "\n".join([
        "// Generated from data/errors/kda.json by tools/generate_errors.py: do not edit.",
        "// KDA_ERROR(name, code, message, way_out), in the order of the codes.",
        *lines,
        "",
    ])


def document(records):
    out = ["# Errors", "",
           "Generated from `data/errors/kda.json` by `tools/generate_errors.py`: do not edit.", "",
           "A refusal carries a stable code, what was asked, what is supported, and the way out. Codes are grouped:", ""]
    out += [f"- {start}–{start + 999}: {title} ({what})" for start, title, what in GROUPS]
    for start, title, _ in GROUPS:
        rows = [r for r in records if start <= r["code"] < start + 1000]
        if not rows:
            continue
        out += ["", f"## {title}"]
        for r in rows:
            out += ["", f"### {r['id']} `{r['name']}`", "", f"**{r['message'][0].upper() + r['message'][1:]}.** {r['cause']}", "",
                    f"Way out: {r['way_out']}."]
    return "\n".join(out) + "\n"


def main():
    arguments = sys.argv[1:]
    if arguments not in ([], ["--check"]):
        print(__doc__.strip(), file=sys.stderr)
        sys.exit(2)
    records = load()
    outputs = {
        ROOT / "include/kda/status.h": status_header(records),
        ROOT / "src/errors/catalogue.inc": catalogue(records),
        ROOT / "docs/errors.md": document(records),
    }
    stale = [path for path, text in outputs.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
    if arguments:
        for path in stale:
            print(f"{path.relative_to(ROOT)} is not up to date: run tools/generate_errors.py", file=sys.stderr)
        sys.exit(1 if stale else 0)
    for path in stale:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(outputs[path], encoding="utf-8")


if __name__ == "__main__":
    main()
