"""Files that only their user can read, locked against other tasks and processes."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from mcp_tool_filter.adapters.oauth import store as files
from mcp_tool_filter.adapters.oauth.store import locked, replace_file, stamp_of


def test_a_file_and_its_folder_are_for_their_user_only(tmp_path: Path) -> None:
    file = tmp_path / "new" / "file"
    replace_file(file, b"x")
    assert file.read_bytes() == b"x"
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700


def test_a_stamp_changes_with_each_version_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "file"
    assert stamp_of(file) is None
    replace_file(file, b"one")
    before = stamp_of(file)
    assert before == stamp_of(file)
    replace_file(file, b"two")
    assert stamp_of(file) not in (None, before)


async def test_only_one_task_holds_the_lock_at_a_time(tmp_path: Path) -> None:
    order: list[str] = []

    async def work(name: str) -> None:
        async with locked(tmp_path / "lock"):
            order.append(f"{name} begins")
            await asyncio.sleep(0.01)
            order.append(f"{name} ends")

    await asyncio.gather(work("a"), work("b"))
    assert order in (
        ["a begins", "a ends", "b begins", "b ends"],
        ["b begins", "b ends", "a begins", "a ends"],
    )


async def test_waiting_for_a_lock_of_another_process_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = (
        "import fcntl, sys; file = open(sys.argv[1], 'w');"
        " fcntl.flock(file, fcntl.LOCK_EX); print(flush=True); sys.stdin.read()"
    )
    monkeypatch.setattr(files, "_PATIENCE", 0.1)
    with subprocess.Popen(
        [sys.executable, "-c", program, tmp_path / "lock"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout
        other.stdout.readline()
        with pytest.raises(TimeoutError):
            async with locked(tmp_path / "lock"):
                pass
    async with locked(tmp_path / "lock"):
        pass
