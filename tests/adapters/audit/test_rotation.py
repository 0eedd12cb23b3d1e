"""The file of the audit log over time: rotated, moved away, and continued after a restart."""

from __future__ import annotations

import json
import stat
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from mcp_tool_filter.adapters.watch.audit_log import AuditWriter
from mcp_tool_filter.observers.audit.entry import START, check, link, render
from tests.adapters.audit.writing import eventually, lines_in, writing


def test_a_large_file_is_rotated_and_compressed(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with writing(path, largest=2000) as opened:
        for number in range(200):
            opened.write({"n": number})
            time.sleep(0.0005)
    eventually(
        lambda: not [one for one in tmp_path.iterdir() if one.suffix not in (".gz", ".jsonl")]
    )
    aside = sorted(tmp_path.glob("audit.jsonl.*.gz"), key=lambda one: _number_in(one))
    lines = [line for file in [*aside, path] for line in lines_in(file)]
    assert len(aside) >= 2
    assert [json.loads(line)["n"] for line in lines] == list(range(200))
    assert not list(check(lines, before="0" * 64))
    assert {stat.S_IMODE(one.stat().st_mode) for one in aside} == {0o600}


def _number_in(path: Path) -> int:
    found: int = json.loads(lines_in(path)[0])["n"]
    return found


def test_an_old_file_is_rotated(tmp_path: Path) -> None:
    path, now = tmp_path / "audit.jsonl", [1000.0]
    opened = AuditWriter(path, oldest=60, now=lambda: now[0])
    opened.write({"n": 1})
    eventually(lambda: path.stat().st_size)
    now[0] += 61
    opened.write({"n": 2})
    eventually(lambda: list(tmp_path.glob("audit.jsonl.*.gz")))
    opened.close()


@pytest.mark.parametrize("how", ["moved", "removed"])
def test_a_file_that_is_moved_away_is_created_again(how: str, tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with writing(path) as opened:
        opened.write({"n": 1})
        eventually(lambda: path.stat().st_size)
        first = lines_in(path)
        path.rename(tmp_path / "moved") if how == "moved" else path.unlink()
        opened.write({"n": 2})
        eventually(path.exists)
    assert not list(check([*first, *lines_in(path)], before="0" * 64))
    assert json.loads(lines_in(path)[-1])["n"] == 2


def test_the_age_of_a_file_survives_restarts(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    line = link(render({"v": 1, "time": "2026-11-18T09:00:00.000Z"}), START)
    path.write_bytes(line + b"\n")
    now = datetime(2026, 11, 18, 10, tzinfo=UTC).timestamp()
    opened = AuditWriter(path, oldest=3600, now=lambda: now)
    opened.write({"n": 1})
    opened.close()
    eventually(lambda: list(tmp_path.glob("audit.jsonl.*.gz")))


def test_a_clock_that_goes_back_changes_nothing(tmp_path: Path) -> None:
    path, now = tmp_path / "audit.jsonl", [10_000.0]
    opened = AuditWriter(path, oldest=60, now=lambda: now[0])
    for step in (0, -5000, 3):
        now[0] += step
        opened.write({"n": step})
        time.sleep(0.05)
    opened.close()
    assert [json.loads(line)["n"] for line in lines_in(path)] == [0, -5000, 3]


@pytest.mark.parametrize("is_packed", [True, False])
@pytest.mark.parametrize("is_there", [True, False])
def test_a_restart_after_a_rotation_continues_the_chain(
    is_packed: bool, is_there: bool, tmp_path: Path
) -> None:
    """The file in use is empty then; a new chain would hide that older files are missing."""
    path = tmp_path / "audit.jsonl"
    with writing(path, largest=1) as opened:
        opened.write({"n": 1})
        eventually(lambda: list(tmp_path.glob("audit.jsonl.*.gz")))
    (aside,) = tmp_path.glob("audit.jsonl.*.gz")
    first = lines_in(aside)
    if not is_packed:
        aside.with_suffix("").write_bytes(b"".join(line + b"\n" for line in first))
        aside.unlink()
    assert path.read_bytes() == b""
    if not is_there:
        path.unlink()
    with writing(path) as opened:
        opened.write({"n": 2})
    assert not list(check([*first, *lines_in(path)], before=START))


def test_a_rotation_leaves_no_moment_for_another_writer(tmp_path: Path) -> None:
    """Both would continue the same line."""
    path = tmp_path / "audit.jsonl"
    with writing(path, largest=300) as first:
        for number in range(60):
            first.write({"n": number})
            with writing(path) as second:
                second.write({"part": number})
    eventually(lambda: not [one for one in tmp_path.iterdir() if one.name.endswith("Z")])
    main = [file for file in tmp_path.iterdir() if ".pid" not in file.name]
    lines = [line for file in main for line in lines_in(file)]
    assert sorted(json.loads(line)["n"] for line in lines) == list(range(60))
    befores = [json.loads(line)["prev"] for line in lines]
    assert len(set(befores)) == len(befores)
