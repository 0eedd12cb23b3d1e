"""Running filters are found through a private folder of sockets."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from mcp_tool_filter.rooms.status import running
from mcp_tool_filter.rooms.status.running import announce, ask_filter, own_folder, running_filters
from tests.cli.launched import launched
from tests.make import calling
from tests.raw_client import post, raw_client
from tests.session_upstream import session_upstream
from tests.stdio_client import filtered, upstream
from tests.waiting import eventually


@pytest.fixture
def base(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A short path: a socket's has at most about 100 bytes."""
    with TemporaryDirectory(prefix="run-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
        monkeypatch.setenv("XDG_STATE_HOME", f"{folder}/state")
        yield Path(folder)


def found(number: int) -> list[dict[str, Any]]:
    filters = running_filters()
    return filters if len(filters) == number else []


def _as_link(base: Path) -> None:
    (base / "elsewhere").mkdir(mode=0o700)
    (base / "mcp-tool-filter").symlink_to(base / "elsewhere")


def _of_another_user(folder: Path) -> None:
    folder.mkdir(mode=0o700, exist_ok=True)
    if os.geteuid():
        pytest.skip("only root can give a folder away")
    os.chown(folder, 12345, -1)


TRICKS: dict[str, Callable[[Path], object]] = {
    "a link": _as_link,
    "a folder of another user": lambda base: _of_another_user(base / "mcp-tool-filter"),
    "a base of another user": _of_another_user,
    "a folder that others may read": lambda base: (base / "mcp-tool-filter").mkdir(mode=0o755),
    "a base that others may write": lambda base: base.chmod(0o770),
    "a file": lambda base: (base / "mcp-tool-filter").write_text(""),
    "no base": lambda base: base.rmdir(),
}  # fmt: skip


@pytest.mark.parametrize("trick", TRICKS.values(), ids=TRICKS)
def test_a_folder_not_ours_alone_is_not_used(base: Path, trick: Callable[[Path], object]) -> None:
    trick(base)
    before = sorted(base.rglob("*")) if base.exists() else []
    assert (own_folder(creates=True), announce(dict), running_filters()) == (None, None, [])
    assert (sorted(base.rglob("*")) if base.exists() else []) == before


@pytest.mark.parametrize("value", ["", "run", "x" * 10, "/" + "x" * 120, "/nul\0"])
def test_without_a_usable_place_there_is_no_socket(
    value: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(running.os, "environ", {"XDG_RUNTIME_DIR": value})  # type: ignore[attr-defined]
    monkeypatch.chdir(tmp_path)
    assert (announce(dict), running_filters(), list(tmp_path.iterdir())) == (None, [], [])


def test_a_path_too_long_leaves_nothing_behind(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deep = base / ("x" * 100)
    deep.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    assert (announce(dict), running_filters()) == (None, [])
    assert list((deep / "mcp-tool-filter").iterdir()) == []


def test_a_filter_that_cannot_answer_does_not_hide_the_others(base: Path) -> None:
    """Sockets of dead filters are removed; what is something else stays, and is not asked."""
    listed: list[Any] = [[], ["x"], [{"target": ["x"]}], [{"name": "a", "exposed": 3}]]
    saying = [{"pid": pid, "servers": servers} for pid, servers in enumerate(listed, 1)]
    announced = [announce(partial(dict, one)) for one in saying]
    announced.append(announce(lambda: 1 / 0))  # type: ignore[arg-type, return-value]
    folder = base / "mcp-tool-filter"
    (folder / "note.sock").write_text("not a socket")
    (folder / "link.sock").symlink_to(next(folder.glob("*-*")))
    with socket.socket(socket.AF_UNIX) as dead, socket.socket(socket.AF_UNIX) as silent:
        dead.bind(str(folder / "77-dead.sock"))
        silent.bind(str(folder / "88-silent.sock"))
        silent.listen()
        found = sorted(running_filters(), key=lambda one: int(one["pid"]))
        (said,) = found.pop(1)["servers"]
        assert (said["name"], said["exposed"], said["hidden"]) == ("a", 3, None)
        assert found == [{"pid": 1, "servers": []}, {"pid": 88, "problem": "It does not answer"}]
    for one in filter(None, announced):
        one.close()
    assert {one.name for one in folder.iterdir()} == {"note.sock", "link.sock", "88-silent.sock"}


async def test_filters_of_every_kind_are_found_with_their_counts(
    base: Path, tmp_path: Path
) -> None:
    """Over HTTP and stdio at once; no secret of a command, a URL or the page is in an answer."""
    how: dict[str, Any] = {"home": tmp_path, "environment": {"XDG_RUNTIME_DIR": str(base)}}
    audit, flags = str(tmp_path / "audit.jsonl"), ["--deny", "^delete_"]
    more = ["--dashboard", "0", "--audit-log", audit, "-H", "X-Key: s3cr3t"]
    tools = upstream("--tools", "read_file,delete_file")
    async with AsyncExitStack() as stack:
        url = stack.enter_context(session_upstream()).url
        relay = stack.enter_context(filtered(*flags, "--", *tools, **how))
        pipe = stack.enter_context(filtered("--stdio", *flags, "-u", url, **how))
        it = await stack.enter_async_context(launched("-u", url, *flags, *more, **how))
        port, page = await it.serving(), (await it.says(r"Dashboard: (\S+)"))[1]
        relay.opens()
        pipe.opens()
        relay.asks("tools/list")
        async with raw_client(port) as client:
            for name in ("read_file", "delete_file"):
                relay.calls(name)
                await client.ask(post(calling(name)))
        filters = eventually(lambda: found(3))
        by_pid = {one["pid"]: one for one in filters}
        said = [by_pid.pop(one.process.pid) for one in (relay, it, pipe)]
        [of_command], [of_url], [piped] = (one["servers"] for one in said)
        assert of_command == of_command | {
            "exposed_tools": ["read_file"], "hidden_tools": ["delete_file"], "calls": 1,
            "refused": 1, "refused_by_tool": {"delete_file": 1}, "listens_at": "stdio",
        }  # fmt: skip
        address, _, token = page.partition("?token=")
        assert (said[1]["dashboard"], said[1]["audit_log"]) == (address, audit)
        assert of_url["listens_at"] == f"http://127.0.0.1:{port}"
        assert (of_url["calls"], of_url["refused"]) == (1, 1)
        assert (piped["exposed"], piped["hidden"], piped["calls"]) == (8, 1, 0)
        assert token
        assert not [secret for secret in (token, "s3cr3t") if secret in json.dumps(filters)]
        it.process.send_signal(signal.SIGKILL)
        assert relay.leaves() == 0
        assert len(eventually(lambda: found(1))) == 1
        assert len(list((base / "mcp-tool-filter").iterdir())) == 1
        assert pipe.leaves() == 0
        assert list((base / "mcp-tool-filter").iterdir()) == []


@pytest.mark.parametrize("deep", ["", "x" * 100], ids=["a short home", "a deep home"])
def test_without_the_variable_sockets_are_below_the_folder_for_state(
    base: Path, deep: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on macOS, in containers and in cron jobs. A reader with the variable finds them, too."""
    home = base / "home" / deep
    (home / ".local").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.delenv("XDG_STATE_HOME")
    environment = {"XDG_RUNTIME_DIR": "", "XDG_STATE_HOME": ""}
    with filtered("--", *upstream(), home=home, environment=environment) as client:
        client.opens()
        client.asks("tools/list")
        [said] = eventually(lambda: found(1))
        assert said["pid"] == client.process.pid
        monkeypatch.delenv("XDG_RUNTIME_DIR")
        assert [one["pid"] for one in running_filters()] == [client.process.pid]
        folder = home / ".local" / "state" / "mcp-tool-filter" / "run"
        assert own_folder() == folder
        assert {one.stat().st_mode & 0o777 for one in (folder, folder.parent)} == {0o700}
        assert client.leaves() == 0
        assert list(folder.iterdir()) == []


def test_a_page_asks_a_session_for_messages_and_switches_its_tools(
    base: Path, tmp_path: Path
) -> None:
    tools = upstream("--tools", "read_file,write_file")
    environment = {"XDG_RUNTIME_DIR": str(base)}
    with filtered("--", *tools, home=tmp_path, environment=environment) as client:
        client.opens()
        client.asks("tools/list")
        client.calls("read_file")
        [said] = eventually(lambda: found(1))
        pid = said["pid"]
        state = ask_filter(pid, {"after": 0})["state"]
        assert [one["method"] for one in state["recent"]] == ["tools/call", "tools/list"]
        client.calls("write_file")
        state = ask_filter(pid, {"after": state["recent"][0]["number"]})["state"]
        [last] = state["recent"]
        [shown] = state["listeners"]
        assert (last["tool"], shown["transport"], shown["exposed"]) == ("write_file", "stdio", 2)
        assert shown["entry"] == {"command": "mcp-tool-filter", "args": ["--", *tools]}
        details = ask_filter(pid, {"do": ["details", {"number": last["number"]}]})["done"]
        assert json.loads(details["arguments"])["name"] == "write_file"
        deny = {"deny": ["^write_"]}
        assert ask_filter(pid, {"do": ["apply", deny]})["done"] == {"problem": ""}
        assert [one["name"] for one in client.asks("tools/list")["result"]["tools"]] == [
            "read_file"
        ]
        assert "error" in client.calls("write_file")
        assert (
            "Unsafe" in ask_filter(pid, {"do": ["apply", {"deny": ["(a+)+"]}]})["done"]["problem"]
        )
        assert ask_filter(pid, {"do": ["undo", {}]})["done"] == {"problem": ""}
        assert len(client.asks("tools/list")["result"]["tools"]) == 2
        for odd in ({"do": ["nothing", {}]}, {"do": ["apply", {"deny": 1}]}):
            assert ask_filter(pid, odd)["done"]["problem"]
        others: list[dict[str, Any]] = [{"do": []}, {"x": 1}, {"after": "1"}]
        for other in others:
            assert ask_filter(pid, other)["pid"] == pid
        assert ask_filter(1, {"after": 0}) == {"problem": "This filter has ended"}
        [path] = (base / "mcp-tool-filter").iterdir()
        for text in (b"", b"[1", b"[]\n", b"\n"):  # an older reader says nothing
            with socket.socket(socket.AF_UNIX) as asker:
                asker.connect(str(path))
                asker.sendall(text)
                asker.settimeout(5)
                assert bool(asker.recv(10)) is (text != b"[1")
        assert client.leaves() == 0


def test_a_session_works_where_no_socket_is_possible(base: Path, tmp_path: Path) -> None:
    (base / "mcp-tool-filter").mkdir(mode=0o755)
    environment = {"XDG_RUNTIME_DIR": str(base)}
    with filtered("--", *upstream(), home=tmp_path, environment=environment) as client:
        client.opens()
        assert client.asks("tools/list")["result"]["tools"]
        time.sleep(0.5)
        assert client.leaves() == 0
        assert client.stderr().count("Warning") == 1, "that nothing is denied"
