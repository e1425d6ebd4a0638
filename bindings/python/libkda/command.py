"""The command `kda` of an installed package: the program packed beside this file, with the built-in model at hand."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent


def demo_model() -> pathlib.Path:
    """The built-in model as a plain Hugging Face directory: $KDA_MODEL_DIR, or unpacked into the user's cache at the first call.

    Raises FileNotFoundError where the package was built without it.
    """
    if named := os.environ.get("KDA_MODEL_DIR"):
        return pathlib.Path(named)
    unpack = HERE / "tools" / "unpack-demo-model"
    if not unpack.is_file():
        raise FileNotFoundError("this libkda was built without the built-in model; set KDA_MODEL_DIR to a checkpoint, or "
                                "build with --config-settings cmake.define.KDA_PYTHON_DEMO_MODEL=ON")
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    target = cache / "libkda" / "demo-model"
    subprocess.run([sys.executable, str(unpack), str(target)], check=True)
    return target


def program() -> pathlib.Path:
    """The compiled kda command. Raises FileNotFoundError where the package was built without it."""
    path = HERE / "bin" / "kda"
    if not path.is_file():
        raise FileNotFoundError("this libkda was built without the kda command; build with --config-settings cmake.define.KDA_BUILD_TOOLS=ON")
    return path


def main() -> None:
    """Replaces this process by the compiled command."""
    arguments = sys.argv[1:]
    try:
        path = program()
        if arguments[:1] == ["generate"] and "--help" not in arguments and "--model" not in arguments:
            os.environ["KDA_MODEL_DIR"] = str(demo_model())
    except (FileNotFoundError, subprocess.CalledProcessError) as error:
        print(f"kda: {error}", file=sys.stderr)
        sys.exit(2)
    os.execv(path, ["kda", *arguments])


if __name__ == "__main__":
    main()
