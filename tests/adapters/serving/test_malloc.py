"""Memory for large bodies: kept, or given back, where the C library can do so."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from mcp_tool_filter.adapters.serving import malloc as room

SCRIPT = """
import os
from pathlib import Path
from mcp_tool_filter.adapters.serving.malloc import return_free_memory, keep_free_memory

def megabytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf('SC_PAGE_SIZE') >> 20

keep_free_memory()
before = megabytes()
bodies = [b"x" * (4 << 20) for _ in range(10)]
del bodies
print(megabytes() - before)
return_free_memory()
print(megabytes() - before)
"""


def test_freed_memory_is_kept_and_given_back() -> None:
    """Of 40 MB, with glibc."""
    ended = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, check=True)
    kept, left = map(int, ended.stdout.split())
    assert kept > 30
    assert left < 10


@pytest.mark.parametrize("error", [OSError, TypeError, AttributeError])
def test_another_c_library_is_left_alone(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(_name: str | None) -> ctypes.CDLL:
        raise error

    monkeypatch.setattr(ctypes, "CDLL", load)
    room._glibc.cache_clear()
    room.keep_free_memory()
    room.return_free_memory()
    room._glibc.cache_clear()
