import importlib.util

import pytest

NEEDED = ("torch", "fla", "transformers")
missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
if missing:
    pytest.exit(f"tests/engines/hf need {', '.join(missing)}: run tests/engines/hf/run, which makes the environment", returncode=4)
