"""The audit log on disk: writing, rotation, chains, and several processes."""

from __future__ import annotations

import json
import logging
import os
import resource
import stat
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest

from mcp_tool_filter.adapters.watch import audit_log as module
from mcp_tool_filter.adapters.watch.audit_log import AuditWriter
from mcp_tool_filter.errors import StartError
from mcp_tool_filter.observers.audit.entry import START, LazyValue, check, link, render
from tests.adapters.watch.writing import eventually, lines_in, writing


# The audit log on a real disk: nothing waits for it, and nothing is lost without a word
@pytest.mark.parametrize("sync", ["never", "interval", "always"])
def test_each_entry_is_a_line_that_carries_the_hash_of_the_one_before(
    sync: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk has it soon, if the user wants that."""
    path, synced = tmp_path / "audit.jsonl", list[int]()
    monkeypatch.setattr(os, "fsync", synced.append)
    monkeypatch.setattr(module, "_LONGEST_WAIT", 0.05)
    with writing(path, fsync=sync) as opened:
        for number in range(100):
            opened.write({"n": number})
        eventually(lambda: synced or sync == "never")
    assert bool(synced) is (sync != "never")
    assert [json.loads(line)["n"] for line in lines_in(path)] == list(range(100))
    assert not list(check(lines_in(path), before="0" * 64))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_lines_are_written_together_not_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that wakes for each line would cost more than the line."""
    monkeypatch.setattr(module, "_MOMENT", 0.3)
    batches: list[int] = []
    append = AuditWriter._append

    def counted(self: AuditWriter, entries: list[bytes | dict[str, object]]) -> None:
        batches.append(len(entries))
        append(self, entries)

    monkeypatch.setattr(AuditWriter, "_append", counted)
    path = tmp_path / "audit.jsonl"
    with writing(path) as opened:
        for number in range(200):
            opened.write({"n": number})
            time.sleep(0.001)
    assert len(lines_in(path)) == sum(batches) == 200
    assert len(batches) < 50


def test_slow_parts_of_an_entry_are_made_in_the_thread(tmp_path: Path) -> None:
    path, makers = tmp_path / "audit.jsonl", []

    def make() -> dict[str, object]:
        makers.append(threading.current_thread().name)
        return {"bytes": 7}

    with writing(path) as opened:
        opened.write({"n": 1, "arguments": LazyValue(make, 7)})
        opened.write({"n": 2})
    assert makers == ["audit log"]
    assert [json.loads(line)["n"] for line in lines_in(path)] == [1, 2]
    assert json.loads(lines_in(path)[0])["arguments"] == {"bytes": 7}


def test_a_line_cut_by_a_crash_is_reported_and_the_chain_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with writing(path) as opened:
        opened.write({"n": 1})
    with path.open("ab") as file:
        file.write(b'{"n": 2, "pr')
    with writing(path) as opened:
        opened.write({"n": 3})
    lines = lines_in(path)
    assert json.loads(lines[2])["event"] == "torn"
    assert [problem.number for problem in check(lines)] == [2]


def test_a_cut_line_is_reported_whole_or_not_at_all(tmp_path: Path) -> None:
    """On a nearly full disk, half of the report stood there, and the next line behind it."""
    path = tmp_path / "audit.jsonl"
    path.write_bytes(cut := link(render({"n": 1}), START) + b'\n{"n": 2, "pr')
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(cut) + 10, limits[1]))
    try:
        with pytest.raises(StartError, match="Cannot write the audit log"):
            AuditWriter(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == cut


def test_a_full_disk_is_reported_once_and_dropped_entries_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A limit on the size of files makes a write fail as a full disk does."""
    path = tmp_path / "audit.jsonl"
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    caplog.set_level(logging.WARNING)
    opened = AuditWriter(path)
    try:
        opened.write({"n": 0})
        eventually(lambda: path.stat().st_size)
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, limits[1]))
        for number in range(1, 6):
            opened.write({"n": number})
            eventually(partial(_has_dropped, opened, number))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    opened.write({"n": 6})
    eventually(lambda: opened.dropped == 0)
    opened.close()
    entries = [json.loads(line) for line in lines_in(path)]
    assert [one.get("n", one.get("count")) for one in entries] == [0, 5, 6]
    assert not list(check(lines_in(path)))
    errors = [one for one in caplog.records if one.levelno >= logging.ERROR]
    assert len(errors) == 1
    assert "can be written again" in caplog.text


def _has_dropped(opened: AuditWriter, number: int) -> bool:
    return opened.dropped == number


def test_a_full_queue_drops_entries_and_counts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_QUEUED", 10)
    path = tmp_path / "audit.jsonl"
    with writing(path) as opened:
        for number in range(5000):
            opened.write({"n": number})
    entries = [json.loads(line) for line in lines_in(path)]
    dropped = sum(one.get("count", 0) for one in entries) + opened.dropped
    assert dropped > 0
    assert dropped + sum("n" in one for one in entries) == 5000


@pytest.mark.parametrize("path", ["", "none/audit.jsonl", "/", ".", "pipe", "notes"])
def test_a_file_that_cannot_be_written_stops_the_start_and_stays_as_it_was(
    path: str, tmp_path: Path
) -> None:
    """A mistyped name must not append lines to another file; root could replace /dev/null."""
    os.mkfifo(tmp_path / "pipe", 0o644)
    (tmp_path / "notes").write_text("milk\n")
    (tmp_path / "notes").chmod(0o644)
    there = Path(path) if path == "." else tmp_path / path
    with pytest.raises(StartError, match="Cannot write the audit log") as error:
        AuditWriter(there)
    why = {"pipe": "It is not a regular file", "notes": "It contains something other than"}
    assert error.value.why.startswith(why.get(path, ""))
    assert (tmp_path / "notes").read_text() == "milk\n"
    assert {(one.name, stat.S_IMODE(one.stat().st_mode)) for one in tmp_path.iterdir()} == {
        ("pipe", 0o644),
        ("notes", 0o644),
    }


def test_a_second_writer_has_a_part_of_its_own(tmp_path: Path) -> None:
    """For example the second window of a client, or a quick restart."""
    path = tmp_path / "audit.jsonl"
    (tmp_path / "audit.jsonl.pid1").write_text("# not a log\n")
    for round in range(2):
        with writing(path) as first, writing(path) as second, writing(path) as third:
            for number, opened in enumerate((first, second, third)):
                opened.write({"n": number, "round": round})
        parts = sorted(tmp_path.glob("audit.jsonl.pid[0-9][0-9]*"))
        assert len(parts) == 2, "free parts are used again"
    for number, file in enumerate([path, *parts]):
        lines = lines_in(file)
        assert not list(check(lines, before=START))
        assert [json.loads(line)["n"] for line in lines] == [number, number]
    assert (tmp_path / "audit.jsonl.pid1").read_text() == "# not a log\n"


@pytest.mark.parametrize("length", [1, 4, 5, 9])
def test_a_log_whose_first_line_was_cut_is_still_one(length: int, tmp_path: Path) -> None:
    file = tmp_path / "audit.jsonl"
    file.write_bytes(b'{"v":1,"t'[:length])
    AuditWriter(file).close()
    assert b'"event":"torn"' in file.read_bytes()


def _refuse(*_args: object) -> None:
    raise PermissionError(13, "Permission denied")


def test_a_folder_without_write_permission_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "audit.jsonl"
    monkeypatch.setattr(Path, "rename", _refuse)
    with writing(path, largest=1024) as opened:
        for number in range(100):
            opened.write({"n": number})
            time.sleep(0.001)
    assert [json.loads(line)["n"] for line in lines_in(path)] == list(range(100))
    assert caplog.text.count("Cannot rotate the audit log") == 1
    assert "can be written again" not in caplog.text


def test_long_texts_in_the_queue_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow disk must not make all arguments stay in memory."""
    monkeypatch.setattr(module, "_MOST_HELD", 1000)
    monkeypatch.setattr(module, "_MOMENT", 1.0)
    path = tmp_path / "audit.jsonl"
    with writing(path) as opened:
        for _ in range(10):
            opened.write({"arguments": LazyValue(lambda: {"bytes": 300}, 300)})
        opened.write({"n": 1})
        eventually(lambda: path.stat().st_size)
        opened.write({"arguments": LazyValue(lambda: {"bytes": 300}, 300)})
    entries = [json.loads(line) for line in lines_in(path)]
    assert [one.get("count") for one in entries] == [7, None, None, None, None, None]
    assert sum("arguments" in one for one in entries) == 4


def test_the_chain_goes_on_after_the_process_is_killed(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    script = (
        "import sys; from pathlib import Path;"
        "from mcp_tool_filter.adapters.watch.audit_log import AuditWriter;"
        f"w = AuditWriter(Path({str(path)!r}));"
        "n = 0\nwhile True: n += 1; w.write({'n': n})"
    )
    for _ in range(3):
        grown = path.stat().st_size if path.exists() else 0
        with subprocess.Popen([sys.executable, "-c", script]) as process:
            eventually(partial(_has_grown, path, grown + 10_000))
            process.kill()
    with writing(path) as opened:
        opened.write({"n": "last"})
    lines = lines_in(path)
    torn = [n for n, line in enumerate(lines, 1) if b'"torn"' in line]
    assert {problem.number + 1 for problem in check(lines)} <= set(torn)
    assert json.loads(lines[-1])["n"] == "last"


def _has_grown(path: Path, size: int) -> bool:
    return path.exists() and path.stat().st_size > size


# The file of the audit log over time: rotated, moved away, and continued after a restart
@pytest.mark.parametrize("has_links", [True, False])
def test_a_large_file_is_rotated_and_compressed(
    has_links: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the file system has no hard links."""
    if not has_links:
        monkeypatch.setattr(os, "link", _refuse)
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
