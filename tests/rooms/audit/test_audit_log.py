"""The audit log on disk: writing, rotation, chains, and several processes."""

from __future__ import annotations

import gzip
import json
import logging
import os
import re
import resource
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from mcp_tool_filter.core.errors import StartError
from mcp_tool_filter.rooms.audit import audit_log as module
from mcp_tool_filter.rooms.audit.audit_log import AuditWriter
from mcp_tool_filter.rooms.audit.entry import START, Entry, LazyValue, check, link, render
from tests.waiting import eventually


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "audit.jsonl"


def lines_in(path: Path) -> list[bytes]:
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return raw.splitlines()


def writing(path: Path, **settings: Any) -> closing[AuditWriter]:
    return closing(AuditWriter(path, **settings))


def write(opened: AuditWriter, count: int, *, pause: float = 0.0) -> None:
    """Write so many entries, numbered from 0."""
    for number in range(count):
        opened.write({"n": number})
        time.sleep(pause)


def numbers_in(*files: Path) -> list[object]:
    """Return the number of each entry; of others, how many entries were dropped."""
    entries = [json.loads(line) for file in files for line in lines_in(file)]
    return [one.get("n", one.get("count")) for one in entries]


# The audit log on a real disk: nothing waits for it, and nothing is lost without a word
def test_each_entry_is_a_line_that_carries_the_hash_of_the_one_before(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk has it soon."""
    synced = list[int]()
    monkeypatch.setattr(os, "fsync", synced.append)
    monkeypatch.setattr(module, "_LONGEST_WAIT", 0.05)
    with writing(path) as opened:
        write(opened, 100)
        eventually(lambda: synced and opened._is_synced)
    assert numbers_in(path) == list(range(100))
    assert not list(check(lines_in(path), before="0" * 64))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_lines_are_written_together(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that wakes for each line would cost more than the line."""
    monkeypatch.setattr(module, "_MOMENT", 0.3)
    batches: list[int] = []
    append = AuditWriter._append

    def counted(self: AuditWriter, entries: list[bytes | Entry]) -> None:
        batches.append(len(entries))
        append(self, entries)

    monkeypatch.setattr(AuditWriter, "_append", counted)
    with writing(path) as opened:
        write(opened, 200, pause=0.001)
    assert len(lines_in(path)) == sum(batches) == 200
    assert len(batches) < 50


def test_slow_parts_of_an_entry_are_made_in_the_thread(path: Path) -> None:
    makers = list[str]()

    def make() -> dict[str, object]:
        makers.append(threading.current_thread().name)
        return {"bytes": 7}

    with writing(path) as opened:
        opened.write({"n": 1, "arguments": LazyValue(make, 7)})
        opened.write({"n": 2})
    assert makers == ["audit log"]
    assert numbers_in(path) == [1, 2]
    assert json.loads(lines_in(path)[0])["arguments"] == {"bytes": 7}


def test_a_line_cut_by_a_crash_is_reported_and_the_chain_goes_on(path: Path) -> None:
    with writing(path) as opened:
        opened.write({"n": 1})
    with path.open("ab") as file:
        file.write(b'{"n": 2, "pr')
    with writing(path) as opened:
        opened.write({"n": 3})
    lines = lines_in(path)
    assert json.loads(lines[2])["event"] == "torn"
    assert [problem.number for problem in check(lines)] == [2]


@contextmanager
def full_at(size: int) -> Iterator[None]:
    """Limit the size of files: a write fails as it does on a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_cut_line_is_reported_whole_or_not_at_all(path: Path) -> None:
    """On a nearly full disk, half of the report stood there, and the next line behind it."""
    path.write_bytes(cut := link(render({"n": 1}), START) + b'\n{"n": 2, "pr')
    with full_at(len(cut) + 10), pytest.raises(StartError, match="Cannot write the audit log"):
        AuditWriter(path)
    assert path.read_bytes() == cut


def test_a_full_disk_is_reported_once_and_dropped_entries_are_counted(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def drop(number: int) -> None:
        opened.write({"n": number})
        eventually(lambda: opened.dropped == number)

    with writing(path) as opened:
        opened.write({"n": 0})
        eventually(lambda: path.stat().st_size)
        with full_at(path.stat().st_size):
            for number in range(1, 6):
                drop(number)
        opened.write({"n": 6})
        eventually(lambda: opened.dropped == 0)
    assert numbers_in(path) == [0, 5, 6]
    assert not list(check(lines_in(path)))
    assert len([one for one in caplog.records if one.levelno >= logging.ERROR]) == 1
    assert "can be written again" in caplog.text


def test_a_full_queue_drops_and_counts_entries(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_QUEUED", 10)
    with writing(path) as opened:
        write(opened, 5000)
    entries = [json.loads(line) for line in lines_in(path)]
    dropped = sum(one.get("count", 0) for one in entries) + opened.dropped
    assert dropped > 0
    assert dropped + sum("n" in one for one in entries) == 5000


@pytest.mark.parametrize("name", ["", "none/audit.jsonl", "/", ".", "pipe", "notes"])
def test_an_unwritable_file_stops_the_start_and_stays_as_it_was(name: str, tmp_path: Path) -> None:
    """A mistyped name must not append lines to another file; root could replace /dev/null."""
    os.mkfifo(tmp_path / "pipe", 0o644)
    (tmp_path / "notes").write_text("milk\n")
    (tmp_path / "notes").chmod(0o644)
    with pytest.raises(StartError, match="Cannot write the audit log") as error:
        AuditWriter(Path(name) if name == "." else tmp_path / name)
    why = {"pipe": "It is not a regular file", "notes": "It contains something other than"}
    assert error.value.why.startswith(why.get(name, ""))
    assert (tmp_path / "notes").read_text() == "milk\n"
    modes = {one.name: stat.S_IMODE(one.stat().st_mode) for one in tmp_path.iterdir()}
    assert modes == {"pipe": 0o644, "notes": 0o644}


def test_a_second_writer_has_a_part_of_its_own(path: Path, tmp_path: Path) -> None:
    """For example the second window of a client, or a quick restart."""
    (tmp_path / "audit.jsonl.pid1").write_text("# not a log\n")
    for round in range(2):
        with writing(path) as first, writing(path) as second, writing(path) as third:
            for number, opened in enumerate((first, second, third)):
                opened.write({"n": number, "round": round})
        parts = sorted(tmp_path.glob("audit.jsonl.pid[0-9][0-9]*"))
        assert len(parts) == 2, "free parts are used again"
    for number, file in enumerate([path, *parts]):
        assert not list(check(lines_in(file), before=START))
        assert numbers_in(file) == [number, number]
    assert (tmp_path / "audit.jsonl.pid1").read_text() == "# not a log\n"


@pytest.mark.parametrize("length", [1, 4, 5, 9])
def test_a_log_whose_first_line_was_cut_is_still_one(length: int, path: Path) -> None:
    path.write_bytes(b'{"v":1,"t'[:length])
    AuditWriter(path).close()
    assert b'"event":"torn"' in path.read_bytes()


def _refuse(*_args: object) -> None:
    raise PermissionError(13, "Permission denied")


def test_a_folder_without_write_permission_is_reported_once(
    path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "rename", _refuse)
    with writing(path, largest=1024) as opened:
        write(opened, 100, pause=0.001)
    assert numbers_in(path) == list(range(100))
    assert caplog.text.count("Cannot rotate the audit log") == 1
    assert "can be written again" not in caplog.text


def test_long_texts_in_the_queue_are_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow disk must not make all arguments stay in memory."""
    monkeypatch.setattr(module, "_MOST_HELD", 1000)
    monkeypatch.setattr(module, "_MOMENT", 1.0)
    long: dict[str, object] = {"n": 300, "arguments": LazyValue(dict, 300)}
    with writing(path) as opened:
        for _ in range(10):
            opened.write(long)
        opened.write({"n": 1})
        eventually(lambda: opened._given)  # the lines are in the file a moment before
        opened.write(long)
    assert numbers_in(path) == [7, 300, 300, 300, 1, 300]


# The file of the audit log over time: rotated, moved away, and continued after a restart
@pytest.mark.parametrize("has_links", [True, False])
def test_a_large_file_is_rotated_and_compressed(
    has_links: bool, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the file system has no hard links."""
    if not has_links:
        monkeypatch.setattr(os, "link", _refuse)
    with writing(path, largest=2000) as opened:
        write(opened, 200, pause=0.0005)
    eventually(lambda: {one.suffix for one in tmp_path.iterdir()} == {".gz", ".jsonl"})
    aside = sorted(tmp_path.glob("audit.jsonl.*.gz"), key=module.age_of)
    lines = [line for file in [*aside, path] for line in lines_in(file)]
    assert len(aside) >= 2
    assert numbers_in(*aside, path) == list(range(200))
    assert not list(check(lines, before="0" * 64))
    assert {stat.S_IMODE(one.stat().st_mode) for one in aside} == {0o600}


NOW = datetime(2026, 11, 18, 10, tzinfo=UTC).timestamp()
PLANTED = [
    f".audit.jsonl.{os.getpid()}", "audit.jsonl.20261118T100000Z",
    "audit.jsonl.20261118T100000Z.gz",
    ".audit.jsonl.20261118T100000Z.gz", ".audit.jsonl.20261118T100000Z-1.gz",
]  # fmt: skip


@pytest.mark.parametrize("is_there", [True, False])
def test_rotation_writes_through_no_link(is_there: bool, path: Path, tmp_path: Path) -> None:
    """Others may write to the folder, and know all names that are made from the time."""
    victim = tmp_path / "victim"
    if is_there:
        victim.write_bytes(b"")
    for name in PLANTED:
        path.with_name(name).symlink_to(victim)
    with writing(path, largest=300, now=lambda: NOW) as opened:
        write(opened, 50, pause=0.001)
    eventually(lambda: list(tmp_path.glob("audit.jsonl.*Z-*.gz")))
    assert victim.exists() == is_there
    assert not is_there or victim.read_bytes() == b""


@pytest.mark.parametrize("name", ["audit.jsonl", "audit.jsonl.pid1"])
def test_a_link_in_the_place_of_a_log_is_not_written(
    name: str, path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"")
    with writing(path) as opened:
        opened.write({"n": 1})
        eventually(lambda: path.stat().st_size)
        path.with_name(name).unlink(missing_ok=True)
        path.with_name(name).symlink_to(victim)
        with writing(path.with_name("other")) if name == path.name else writing(path) as second:
            second.write({"n": 2})
        opened.write({"n": 3})
        eventually(lambda: name != path.name or "somebody else has put there" in caplog.text)
    assert victim.read_bytes() == b""


def test_a_log_may_be_a_link_of_ours(path: Path, tmp_path: Path) -> None:
    path.symlink_to(tmp_path / "log")
    with writing(path) as opened:
        opened.write({"n": 1})
    assert numbers_in(tmp_path / "log") == [1]


@pytest.mark.parametrize("how", ["moved", "removed"])
def test_a_file_that_is_moved_away_is_created_again(how: str, path: Path) -> None:
    with writing(path) as opened:
        opened.write({"n": 1})
        eventually(lambda: path.stat().st_size)
        first = lines_in(path)
        path.rename(path.with_name("moved")) if how == "moved" else path.unlink()
        opened.write({"n": 2})
        eventually(path.exists)
    assert not list(check([*first, *lines_in(path)], before="0" * 64))
    assert numbers_in(path)[-1] == 2


def test_the_age_of_a_file_survives_restarts(path: Path) -> None:
    line = link(render({"v": 1, "time": "2026-11-18T09:00:00.000Z"}), START)
    path.write_bytes(line + b"\n")
    now = datetime(2026, 11, 18, 10, tzinfo=UTC).timestamp()
    with writing(path, oldest=3600, now=lambda: now) as opened:
        opened.write({"n": 1})
    eventually(lambda: list(path.parent.glob("audit.jsonl.*.gz")))


@pytest.mark.parametrize("is_packed", [True, False])
@pytest.mark.parametrize("is_there", [True, False])
def test_rotation_and_restart_keep_the_chain(is_packed: bool, is_there: bool, path: Path) -> None:
    """The file in use is empty then; a new chain would hide that older files are missing."""
    with writing(path, largest=1) as opened:
        opened.write({"n": 1})
        eventually(lambda: list(path.parent.glob("audit.jsonl.*.gz")))
    (aside,) = path.parent.glob("audit.jsonl.*.gz")
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


def test_a_rotation_leaves_no_moment_for_another_writer(path: Path, tmp_path: Path) -> None:
    """Both would continue the same line."""
    with writing(path, largest=300) as first:
        for number in range(60):
            first.write({"n": number})
            with writing(path) as second:
                second.write({"part": number})
    # Several of one second are called …Z, …Z-1 and so on, until they are compressed.
    eventually(lambda: not [one for one in tmp_path.iterdir() if re.search(r"Z(-\d+)?$", one.name)])
    main = [file for file in tmp_path.iterdir() if ".pid" not in file.name]
    entries = [json.loads(line) for file in main for line in lines_in(file)]
    assert sorted(one["n"] for one in entries) == list(range(60))
    befores = [one["prev"] for one in entries]
    assert len(set(befores)) == len(befores)
