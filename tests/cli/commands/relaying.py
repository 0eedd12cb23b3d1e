"""What the tests of the stdio relay share."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tests.raw_upstream import TIMEOUT
from tests.stdio_client import is_alive

DENY = ("--deny", "^delete_")


def names_in(answer: Any) -> list[str]:
    return [tool["name"] for tool in answer["result"]["tools"]]


def text_in(answer: Any) -> str:
    text: str = answer["result"]["content"][0]["text"]
    return text


def written_in(file: Path) -> str:
    """Wait until a process has written something."""
    end = time.monotonic() + TIMEOUT
    while not (file.exists() and file.read_text()) and time.monotonic() < end:
        time.sleep(0.01)
    return file.read_text()


def pid_in(file: Path) -> int:
    """Wait until a process has written its id."""
    return int(written_in(file))


def gone(pid: int) -> bool:
    """Wait until a process has ended."""
    end = time.monotonic() + TIMEOUT
    while is_alive(pid) and time.monotonic() < end:
        time.sleep(0.01)
    return not is_alive(pid)
