"""A fresh clone of the repository, as a newcomer has it: what git tracks, and nothing else."""

from __future__ import annotations

import shutil
import site
import subprocess
import sys
import venv
from pathlib import Path

from tests.proxy import REPOSITORY


def clone_into(folder: Path) -> Path:
    """Copy what git tracks, or would add, as it is here now."""
    words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.check_output(words, text=True, cwd=REPOSITORY).split("\0")
    for name in filter(None, names):
        if (REPOSITORY / name).is_file():  # not deleted
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(REPOSITORY / name, folder / name)
    return folder


def install_into(clone: Path) -> None:
    """Make the clone's programs out of our own environment, without a package index."""
    venv.create(clone / ".venv", symlinks=True)
    [packages] = (clone / ".venv" / "lib").glob("python*/site-packages")
    ours = [str(clone / "addon"), *site.getsitepackages(), *sys.path]
    (packages / "ours.pth").write_text("\n".join(dict.fromkeys(ours)))
    program = clone / ".venv" / "bin" / "mcp-tool-filter"
    program.write_text(f'#!/bin/sh\nexec {clone}/.venv/bin/python -m mcp_tool_filter "$@"\n')
    program.chmod(0o755)
