"""Programs that tests need: skipped where one is missing, failed where nothing may be skipped."""

from __future__ import annotations

import os
import shutil

import pytest


def need_program(name: str, package: str = "") -> str:
    """Return its path. Where it is missing the test is skipped, or fails if nothing may be."""
    found = shutil.which(name)
    if found is None:
        reason = f"{name} not found: apt-get install {package or name}"
        if os.environ.get("FILTER_TESTS_PEERS") == "required":
            pytest.fail(reason)
        pytest.skip(reason)
    return found
