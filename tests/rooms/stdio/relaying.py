"""What the tests of the stdio relay share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.stdio_client import is_alive
from tests.waiting import eventually

DENY = ("--deny", "^delete_")


def names_in(answer: Any) -> list[str]:
    return [tool["name"] for tool in answer["result"]["tools"]]


def text_in(answer: Any) -> str:
    text: str = answer["result"]["content"][0]["text"]
    return text


def written_in(file: Path) -> str:
    """Wait until a process has written something."""
    return eventually(lambda: file.read_text() if file.exists() else "")


def pid_in(file: Path) -> int:
    """Wait until a process has written its id."""
    return int(written_in(file))


def gone(pid: int) -> bool:
    """Wait until a process has ended."""
    eventually(lambda: not is_alive(pid))
    return True
