"""``audit``: adds up a log, follows it, checks it."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mcp_tool_filter.rooms.audit.command import _entries, paths_of
from mcp_tool_filter.rooms.audit.entry import START, hash_of, link, render
from tests.cli.launched import Typed
from tests.mcp_upstream import mcp_upstream, tool
from tests.stdio_client import filtered, upstream
from tests.waiting import eventually


def entry(tool: str, time: str, **more: object) -> dict[str, object]:
    usual = {"verdict": "forwarded", "answered": True, "upstream_ms": 5.0, "session": "s1"}
    return {"v": 1, "time": time, "method": "tools/call", "tool": tool, **usual, **more}


ENTRIES = [
    entry("read", "2026-11-18T09:00:00.000Z", upstream_ms=1.5),
    entry("read", "2026-11-18T10:00:00.000Z", upstream_ms=80.0, error_code=-32000),
    entry("rm", "2026-11-18T11:00:00.000Z", verdict="refused", session="s2", upstream_ms=None),
    entry("slow", "2026-11-18T12:00:00.000Z", answered=False, upstream_ms=None),
    {"v": 1, "time": "2026-11-18T12:00:01.000Z", "event": "dropped", "count": 3},
]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path, before = tmp_path / "audit.jsonl", START
    with path.open("wb") as out:
        for one in ENTRIES:
            line = line_of(one, before)
            before = hash_of(line[:-1])
            out.write(line)
    return path


def line_of(one: dict[str, object], before: str = START) -> bytes:
    return link(render(one), before) + b"\n"


@contextmanager
def followed(log: Path, *flags: str) -> Iterator[Callable[[], str]]:
    """Follow a log; what is yielded waits for the next line."""
    with filtered("audit", str(log), "--follow", *flags, home=log.parent) as it:
        yield lambda: it.hears_line().decode()
        it.process.terminate()
        assert it.hears_line() == b"", "nothing is shown twice"


def test_entries_before_a_given_time_can_be_left_out(file: Path, typed: Typed) -> None:
    argv = [file, "--json", "--since", "2026-11-18T10:30:00+00:00"]
    assert json.loads(typed("audit", *argv).out)["entries"] == 2
    assert json.loads(typed("audit", file, "--json", "--since", "1s").out)["entries"] == 0


def test_compressed_files_are_read_before_the_current_one(
    file: Path, tmp_path: Path, typed: Typed
) -> None:
    lines = file.read_bytes().splitlines(keepends=True)
    aside = tmp_path / "audit.jsonl.1.gz"
    aside.write_bytes(gzip.compress(b"".join(lines[:2])))
    file.write_bytes(b"".join(lines[2:]))
    assert "5 lines, none changed" in typed("audit", "verify", aside, file).out
    assert json.loads(typed("audit", aside, file, "--json").out)["entries"] == 4


@pytest.mark.parametrize("number", range(len(ENTRIES) - 1))
@pytest.mark.parametrize("change", ["changed", "gone"])
def test_verify_names_the_line_after_a_change(
    number: int, change: str, file: Path, typed: Typed
) -> None:
    lines = file.read_bytes().splitlines(keepends=True)
    if change == "gone":
        del lines[number]
    else:
        lines[number] = lines[number].replace(b"2026", b"2027")
    file.write_bytes(b"".join(lines))
    assert typed("audit", "verify", file, status=1).out.startswith("line ")


def test_lines_are_missing_at_the_start_unless_an_older_file_ends_with_them(
    file: Path, typed: Typed
) -> None:
    """Removing the first lines, or a whole file, must be detected."""
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[2:]))
    out = typed("audit", "verify", file, status=1).out
    assert "line 1: the line before it is missing" in out
    typed("audit", "verify", file, "--after", out.split("--after ")[1][:64])
    typed("audit", "verify", file, "--after", "0" * 64, status=1)
    other = file.with_name("audit.jsonl.20261118T090000Z.gz")
    other.write_bytes(gzip.compress(lines[0]))
    typed("audit", "verify", file, status=1)
    aside = file.with_name("audit.jsonl.20261118T100000Z-1.gz")
    aside.write_bytes(gzip.compress(b"".join(lines[:2])))
    told = f"follows the last line of {aside}, which was not checked"
    assert told in typed("audit", "verify", file).out
    typed("audit", "verify", aside, file)


def test_a_file_is_followed_with_its_replacement_and_a_new_part(file: Path) -> None:
    with followed(file) as next_line:
        for one in ENTRIES:
            assert next_line().startswith(str(one["time"]))
        with file.open("ab") as out:
            out.write(line_of(entry("new", "2026-11-18T13:00:00.000Z")))
        assert "tools/call new forwarded 5.0 ms" in next_line()
        file.rename(file.with_name("aside"))
        file.write_bytes(line_of(entry("newer", "2026-11-18T14:00:00.000Z")))
        assert "newer" in next_line()
        part = file.with_name("audit.jsonl.pid4711")
        part.write_bytes(line_of(entry("other", "2026-11-18T13:00:00.000Z")))
        assert "tools/call other" in next_line()


@pytest.mark.parametrize("change", ["none", "cut", "changed"])
def test_a_hash_kept_elsewhere_reveals_a_change_of_the_last_line(
    change: str, file: Path, typed: Typed
) -> None:
    text = typed("audit", "verify", file).out
    assert "Not checked: whether the last line was changed" in text
    last = text.split("the last hash is ")[1][:64]
    lines = file.read_bytes().splitlines(keepends=True)
    if change == "cut":
        del lines[-1]
    elif change == "changed":
        lines[-1] = lines[-1].replace(b'"count":3', b'"count":0')
    file.write_bytes(b"".join(lines))
    out = typed("audit", "verify", file, "--last", last, status=int(change != "none")).out
    assert (f"No line has the hash {last}" in out) is (change != "none")


def test_files_can_be_named_in_any_order(file: Path, tmp_path: Path, typed: Typed) -> None:
    """A shell sorts the file in use before those that were put aside."""
    lines = file.read_bytes().splitlines(keepends=True)
    names = ["20261118T100000Z", "20261118T100000Z-1", "20261118T100000Z-10.gz"]
    for name, part in zip(names, (lines[:1], lines[1:2], lines[2:3]), strict=True):
        raw = b"".join(part)
        aside = tmp_path / f"audit.jsonl.{name}"
        aside.write_bytes(gzip.compress(raw) if name.endswith(".gz") else raw)
    file.write_bytes(b"".join(lines[3:]))
    argv = ["verify", *map(str, sorted(tmp_path.glob("audit.jsonl*")))]
    assert "5 lines, none changed" in typed("audit", *argv).out
    told = f"The first line follows the last line of {tmp_path}/audit.jsonl.{names[-1]}"
    assert told in typed("audit", "verify", file).out


def test_text_of_a_log_is_escaped_for_the_terminal(tmp_path: Path, typed: Typed) -> None:
    file = tmp_path / "audit.jsonl"
    bad = entry("a\x1b[2J\nb", "2026-11-18T09:00:00.000Z\x1b[2J")
    file.write_bytes(line_of(bad) + line_of(bad | {"verdict": "refused"}))
    for argv in ([file], ["suggest", file], ["suggest", file, "--policy"]):
        assert "\x1b" not in typed("audit", *argv).out


async def test_a_refused_tool_is_not_reported_as_unused(file: Path, ran: Typed) -> None:
    """What is suggested hides it all the same: nothing that is hidden comes back."""
    refused = entry("rm", "2026-11-18T09:00:00.000Z") | {"verdict": "refused"}
    with file.open("ab") as out:
        out.write(line_of(refused))
    async with mcp_upstream(tools=[tool("rm"), tool("read"), tool("unused")]) as upstream:
        words = ("audit", "suggest", file, "--upstream", upstream.url)
        text, _ = await asyncio.to_thread(ran, *words)
        found = json.loads((await asyncio.to_thread(ran, *words, "--json")).out)
    assert "Never called: 1 of 3 tools" in text
    assert "Hide them (and those below, which are already refused)" in text
    assert "Called and always refused: 1 tool" in text
    assert "rm" in text.partition("--deny ")[2].partition("\n")[0]
    assert (found["never_called"], found["only_refused"]) == (["unused"], ["rm"])


def test_a_log_with_one_cut_line_is_still_a_log(tmp_path: Path, typed: Typed) -> None:
    cut = tmp_path / "audit.jsonl"
    cut.write_bytes(line_of(entry("a", "2026-11-18T09:00:00.000Z"))[:60])
    told = typed("audit", "verify", cut, status=1).out
    assert "line 1: it was cut off while it was written" in told


def test_a_summary_counts_as_people_write(file: Path, tmp_path: Path, typed: Typed) -> None:
    text = typed("audit", file).out
    assert text.startswith("4 entries from 2026-11-18T")
    assert "\nslowest calls\n  " in text
    assert "  3  s1: read 2, slow 1\n" in text
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    assert typed("audit", empty).out == "0 entries\n0 sessions, 0 calls without an answer\n"
    assert "0 lines, none changed" in typed("audit", "verify", empty).out
    one = tmp_path / "one.jsonl"
    one.write_bytes(file.read_bytes().splitlines(keepends=True)[0])
    assert typed("audit", one).out.startswith("1 entry from ")
    assert "\n1 session, " in typed("audit", one).out


def test_the_parts_of_other_processes_are_read_together(file: Path, typed: Typed) -> None:
    part = file.with_name("audit.jsonl.pid4711")
    part.write_bytes(line_of(entry("other", "2026-11-18T13:00:00.000Z")))
    summary = json.loads(typed("audit", file, "--json").out)
    assert summary["calls"] == {"read": 2, "slow": 1, "other": 1}
    text = typed("audit", "verify", file).out
    assert "5 lines, none changed" in text
    assert "audit.jsonl.pid4711: 1 lines, none changed" in text
    assert typed("audit", "verify", *map(str, sorted(file.parent.iterdir()))).out == text
    last = text.split("pid4711: 1 lines, none changed; the last hash is ")[1][:64]
    assert "is there" in typed("audit", "verify", file, "--last", last).out
    part.write_bytes(part.read_bytes().replace(b'"prev":"0', b'"prev":"1'))
    told = typed("audit", "verify", file, status=1).out
    assert "audit.jsonl.pid4711: line 1: the line before it is missing" in told


def test_several_processes_are_read_in_the_order_of_time(tmp_path: Path, typed: Typed) -> None:
    """Two sessions write the same log at the same time; one is killed, its part is used again."""
    log = tmp_path / "audit.jsonl"
    flags = ("--audit-log", str(log), "--", *upstream())

    def numbers() -> list[str]:
        """The numbers of the calls that can be read, in the order in which they are."""
        paths = paths_of([str(log)])
        return [str(one["tool"]) for one in _entries(paths, "") if "tool" in one]

    with filtered(*flags, home=tmp_path) as one, filtered(*flags, home=tmp_path) as two:
        for at in range(6):
            (one, two)[at % 2].calls(f"t{at}")
            eventually(lambda at=at: len(numbers()) > at)  # type: ignore[misc]
            time.sleep(0.002)  # within one millisecond, entries do not say which came first
        assert numbers() == [f"t{at}" for at in range(6)]
        two.process.kill()
        two.ends()
        with filtered(*flags, home=tmp_path) as three:
            three.calls("t6")
            eventually(lambda: len(numbers()) == 7)
    assert numbers() == [f"t{at}" for at in range(7)]
    assert len(list(tmp_path.glob("audit.jsonl*"))) == 2
    with followed(log, "--json") as next_line:
        read = [json.loads(next_line()) for _ in range(7)]
    assert [one.get("tool") for one in read] == [f"t{at}" for at in range(7)]
    typed("audit", "verify", log)


def test_files_are_checked_in_the_order_of_their_links(
    file: Path, tmp_path: Path, typed: Typed
) -> None:
    """The clock was set back between two rotations; one file was not removed after its copy."""
    lines = file.read_bytes().splitlines(keepends=True)
    for name, part in (("20261118T120000Z", lines[:2]), ("20261118T110000Z", lines[2:4])):
        (tmp_path / f"audit.jsonl.{name}").write_bytes(b"".join(part))
    (tmp_path / "audit.jsonl.20261118T120000Z.gz").write_bytes(gzip.compress(b"".join(lines[:2])))
    file.write_bytes(lines[4])
    named = sorted(map(str, tmp_path.iterdir()))
    assert "5 lines, none changed" in typed("audit", "verify", *named).out
    assert json.loads(typed("audit", *named, "--json").out)["entries"] == 4


@pytest.mark.parametrize("damage", ["cut", "changed", "no gzip", "empty"])
def test_a_damaged_file_hides_no_other(
    damage: str, file: Path, tmp_path: Path, typed: Typed
) -> None:
    lines = file.read_bytes().splitlines(keepends=True)
    packed = bytearray(gzip.compress(lines[0] * 500))
    aside = tmp_path / "audit.jsonl.20261118T100000Z.gz"
    if damage == "changed":
        packed[len(packed) // 2] ^= 0xFF
    raw = {"cut": bytes(packed[: len(packed) // 2]), "no gzip": b"hello", "empty": b""}
    aside.write_bytes(raw.get(damage, bytes(packed)))
    file.write_bytes(b"".join(lines[1:]))
    for files, is_whole in (([file], False), ([aside, file], False), ([aside], damage == "empty")):
        typed("audit", "verify", *files, status=int(not is_whole))
    out, err = typed("audit", aside, file, "--json")
    assert json.loads(out)["calls"]["slow"] == 1
    assert (f"{aside} cannot be read to its end" in err) or damage == "empty"
    typed("audit", "suggest", aside, file)


def test_clients_have_names_and_servers_a_column(tmp_path: Path, typed: Typed) -> None:
    log = tmp_path / "audit.jsonl"
    info = '{"name":"agent-x","version":"1"}'
    params = f'{{"protocolVersion":"2025-11-25","capabilities":{{}},"clientInfo":{info}}}'
    with filtered("--audit-log", str(log), "--", *upstream(), home=tmp_path) as client:
        client.asks("initialize", params=params)
        client.calls("read_file")
        client.leaves()
    [line] = [one for one in map(json.loads, log.read_bytes().splitlines()) if "tool" in one]
    assert line["client_name"] == "agent-x"
    text = typed("audit", log).out
    assert f"agent-x ({line['session'][:8]}): read_file 1" in text
    assert line["session"] not in text
    before = log.read_bytes().splitlines()[-1]
    more = entry("read_file", "2026-11-18T09:00:00.000Z", server="files", client_name="agent-y")
    log.write_bytes(log.read_bytes() + line_of(more, hash_of(before)))
    text = typed("audit", log).out
    assert "        1         read_file\n" in text
    assert "        1  files  read_file\n" in text
    said = json.loads(typed("audit", log, "--json").out)
    assert said["calls"] == {"read_file": 2}
    assert said["calls_by_server"] == {"files": {"read_file": 1}}
    assert said["clients"] == {line["session"]: "agent-x", "s1": "agent-y"}
    with followed(log) as next_line:
        assert "agent-x tools/call read_file" in next_line()
        assert "agent-y files tools/call read_file" in next_line()
