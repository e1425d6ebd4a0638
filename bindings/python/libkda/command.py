"""The command `kda` of an installed package: the program packed beside this file, with the built-in model at hand."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent


def demo_model() -> pathlib.Path:
    """The built-in model as a plain Hugging Face directory: $KDA_MODEL_DIR, or unpacked into the user's cache at the first call.

    Raises FileNotFoundError where the package was built without it, OSError where it cannot be unpacked.
    """
    if named := os.environ.get("KDA_MODEL_DIR"):
        return pathlib.Path(named)
    unpack = HERE / "tools" / "unpack-demo-model"
    if not unpack.is_file():
        raise FileNotFoundError("this libkda was built without the built-in model; set KDA_MODEL_DIR to a checkpoint, or "
                                "build with --config-settings cmake.define.KDA_PYTHON_DEMO_MODEL=ON")
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    target = cache / "libkda" / "demo-model"
    done = subprocess.run([sys.executable, str(unpack), str(target)], stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise OSError(f"the built-in model cannot be unpacked into {target}: {reason}; way out: set XDG_CACHE_HOME to a folder "
                      "that can be written, or KDA_MODEL_DIR to a checkpoint")
    sys.stderr.write(done.stderr)
    return target


def program() -> pathlib.Path:
    """The compiled kda command. Raises FileNotFoundError where the package was built without it."""
    path = HERE / "bin" / "kda"
    if not path.is_file():
        raise FileNotFoundError("this libkda was built without the kda command; build with --config-settings cmake.define.KDA_BUILD_TOOLS=ON")
    return path


def needs_built_in_model(arguments: list[str]) -> bool:
    """Whether the command will run the built-in model: kda generate that neither names another nor only shows its help."""
    if arguments[:1] != ["generate"]:
        return False
    return not any(word in ("-h", "--help", "--model") or word.startswith("--model=") for word in arguments[1:])


def main() -> None:
    """Replaces this process by the compiled command."""
    arguments = sys.argv[1:]
    try:
        path = program()
        if needs_built_in_model(arguments):
            os.environ["KDA_MODEL_DIR"] = str(demo_model())
    except OSError as error:  # FileNotFoundError too
        print(f"kda: {error}", file=sys.stderr)
        sys.exit(2)
    os.execv(path, ["kda", *arguments])


if __name__ == "__main__":
    main()
