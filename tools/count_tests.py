#!/usr/bin/env python3
"""count_tests.py LOG STATUS SUITE: prints "passed failed skipped" of a suite's log.

Counts the summaries of GoogleTest, Python's unittest and pytest. A log with none is one test that passed if STATUS is 0,
but a failure if SUITE starts with "tests-": a test program that ran nothing must not look like success. A non-zero STATUS is always at least one failure.
"""
import re
import sys


def main():
    text = open(sys.argv[1], errors="replace").read()
    status = int(sys.argv[2])

    def total(pattern):
        return sum(int(n) for n in re.findall(pattern, text))

    passed = total(r"\[  PASSED  \] (\d+) test")
    failed = total(r"\[  FAILED  \] (\d+) test")
    skipped = total(r"\[  SKIPPED \] (\d+) test")
    # GoogleTest counts a skipped test as neither passed nor failed; unittest counts it among those run.
    for run, verdict in re.findall(r"Ran (\d+) tests? in .*\n\n(.*)", text):
        skips = sum(int(n) for n in re.findall(r"skipped=(\d+)", verdict))
        bad = sum(int(n) for n in re.findall(r"(?:failures|errors)=(\d+)", verdict))
        passed, failed, skipped = passed + int(run) - skips - bad, failed + bad, skipped + skips
    for line in re.findall(r"^(?:=+ )?(?:\d+ [a-z]+, )*\d+ [a-z]+ in [\d.]+s.*$", text, re.M):
        counts = {word: int(n) for n, word in re.findall(r"(\d+) ([a-z]+)", line)}
        passed += counts.get("passed", 0)
        failed += counts.get("failed", 0) + counts.get("errors", 0) + counts.get("error", 0)
        skipped += counts.get("skipped", 0)
    if passed + failed + skipped == 0 and status == 0:
        passed, failed = (0, 1) if sys.argv[3].startswith("tests-") else (1, 0)
    if status != 0 and failed == 0:
        failed = 1
    print(passed, failed, skipped)


if __name__ == "__main__":
    main()
