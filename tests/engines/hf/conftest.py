"""KDA_TEST_DEVICE=cuda runs these tests on a GPU: every tensor that does not say where it lives is made there."""

import importlib.util
import os

import pytest

NEEDED = ("torch", "fla", "transformers")
missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
if missing:
    pytest.exit(f"tests/engines/hf need {', '.join(missing)}: run tests/engines/hf/run, which makes the environment", returncode=4)

import torch  # noqa: E402

torch.set_default_device(os.environ.get("KDA_TEST_DEVICE", "cpu"))
