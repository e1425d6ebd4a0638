"""The examples of docs/python.md that need torch, and those of examples/python, run as they are printed."""

import pathlib
import re
import runpy

import pytest
import torch

if torch.get_default_device().type != "cpu":
    pytest.skip("the examples are for CPU tensors", allow_module_level=True)

ROOT = pathlib.Path(__file__).parent.parent.parent.parent
BLOCKS = [block for block in re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "python.md").read_text(), re.S) if "import torch" in block]
SCRIPTS = sorted((ROOT / "examples" / "python").glob("*.py"))


@pytest.mark.parametrize("position", range(len(BLOCKS)))
def test_example(position):
    exec(compile(BLOCKS[position], f"docs/python.md torch example {position}", "exec"), {})


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_script(script):
    runpy.run_path(str(script), run_name="__main__")
