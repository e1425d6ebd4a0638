"""The examples of docs/python.md that need NumPy alone run as they are printed."""

import pathlib
import re

import pytest

TEXT = (pathlib.Path(__file__).parent.parent.parent / "docs" / "python.md").read_text()
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.S)
PLAIN = [block for block in BLOCKS if "import torch" not in block]


def test_the_document_has_examples():
    assert len(PLAIN) >= 4 and len(BLOCKS) > len(PLAIN)


@pytest.mark.parametrize("position", range(len(PLAIN)))
def test_example(position, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    exec(compile(PLAIN[position], f"docs/python.md example {position}", "exec"), {})
