"""Running filters are found through a private folder of sockets."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mcp_tool_filter.adapters.watch import running
from mcp_tool_filter.adapters.watch.running import announce, own_folder, running_filters
from tests.cli.launched import launched
from tests.raw_client import post, raw_client
from tests.raw_upstream import TIMEOUT
from tests.session_upstream import session_upstream
from tests.stdio_client import filtered, upstream

CALL = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"%s"}}'


@pytest.fixture
def base(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A short path: a socket's has at most about 100 bytes."""
    folder = tempfile.mkdtemp(prefix="run-", dir="/tmp")
    monkeypatch.setenv("XDG_RUNTIME_DIR", folder)
    yield Path(folder)
    shutil.rmtree(folder, ignore_errors=True)


def eventually[Found](look: Callable[[], Found]) -> Found:
    """Look until something is found."""
    end = time.monotonic() + TIMEOUT
    while not (found := look()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return found


def found(number: int) -> list[dict[str, Any]]:
    filters = running_filters()
    return filters if len(filters) == number else []


def _as_link(base: Path) -> None:
    (base / "elsewhere").mkdir(mode=0o700)
    (base / "mcp-tool-filter").symlink_to(base / "elsewhere")


def _of_another_user(base: Path) -> None:
    (base / "mcp-tool-filter").mkdir(mode=0o700)
    if os.geteuid():
        pytest.skip("only root can give a folder away")
    os.chown(base / "mcp-tool-filter", 12345, -1)


def _base_of_another_user(base: Path) -> None:
    if os.geteuid():
        pytest.skip("only root can give a folder away")
    os.chown(base, 12345, -1)


TRICKS: dict[str, Callable[[Path], object]] = {
    "a link": _as_link,
    "a folder of another user": _of_another_user,
    "a base of another user": _base_of_another_user,
    "a folder that others may read": lambda base: (base / "mcp-tool-filter").mkdir(mode=0o755),
    "a base that others may write": lambda base: base.chmod(0o770),
    "a file": lambda base: (base / "mcp-tool-filter").write_text(""),
    "no base": lambda base: base.rmdir(),
}


@pytest.mark.parametrize("trick", TRICKS.values(), ids=TRICKS)
def test_a_folder_that_is_not_ours_alone_is_not_used(
    base: Path, trick: Callable[[Path], object]
) -> None:
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


def test_a_path_that_is_too_long_leaves_nothing_behind(
    base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = base / ("x" * 100)
    deep.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    assert (announce(dict), running_filters()) == (None, [])
    assert list((deep / "mcp-tool-filter").iterdir()) == []


def test_a_filter_that_cannot_answer_does_not_hide_the_others(base: Path) -> None:
    """Sockets of dead filters are removed; what is something else stays, and is not asked."""
    good = announce(lambda: {"pid": 1, "servers": []})
    bad = announce(lambda: {"pid": 2, "servers": ["x"]})
    odd = announce(lambda: {"pid": 3, "servers": [{"target": ["x"]}]})
    older = announce(lambda: {"pid": 4, "servers": [{"name": "a", "exposed": 3}]})
    raising = announce(lambda: 1 / 0)  # type: ignore[arg-type, return-value]
    assert good
    assert bad
    assert odd
    assert older
    assert raising
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
    for one in (good, bad, odd, older, raising):
        one.close()
    assert {one.name for one in folder.iterdir()} == {"note.sock", "link.sock", "88-silent.sock"}


async def test_filters_of_every_kind_are_found_with_what_they_have_counted(
    base: Path, tmp_path: Path
) -> None:
    """Over HTTP and stdio at once; no secret of a command, a URL or the page is in an answer."""
    environment = {"XDG_RUNTIME_DIR": str(base)}
    command = upstream("--tools", "read_file,delete_file")
    flags = ["--deny", "^delete_"]
    audit = tmp_path / "audit.jsonl"
    with session_upstream() as server:
        url = server.url
        more = ["--dashboard", "0", "--audit-log", str(audit), "-H", "X-Key: s3cr3t"]
        with (
            filtered(*flags, "--", *command, home=tmp_path, environment=environment) as relay,
            filtered("--stdio", *flags, "-u", url, home=tmp_path, environment=environment) as pipe,
        ):
            async with launched(
                "-u", url, *flags, *more, home=tmp_path, environment=environment
            ) as it:
                port = await it.serving()
                page = (await it.says(r"Dashboard: (\S+)"))[1]
                relay.opens()
                pipe.opens()
                relay.asks("tools/list")
                relay.calls("read_file")
                relay.calls("delete_file")
                async with raw_client(port) as client:
                    await client.ask(post(CALL % b"read_file"))
                    await client.ask(post(CALL % b"delete_file"))
                filters = eventually(lambda: found(3))
                by_pid = {one["pid"]: one for one in filters}
                assert by_pid.keys() == {relay.process.pid, pipe.process.pid, it.process.pid}
                of_command = by_pid[relay.process.pid]["servers"][0]
                assert of_command["exposed_tools"] == ["read_file"]
                assert of_command["hidden_tools"] == ["delete_file"]
                assert (of_command["calls"], of_command["refused"]) == (1, 1)
                assert of_command["refused_by_tool"] == {"delete_file": 1}
                assert of_command["listens_at"] == "stdio"
                over_http = by_pid[it.process.pid]
                assert over_http["dashboard"] == page.partition("?")[0]
                assert over_http["audit_log"] == str(audit)
                [of_url] = over_http["servers"]
                assert of_url["listens_at"] == f"http://127.0.0.1:{port}"
                assert (of_url["calls"], of_url["refused"]) == (1, 1)
                [piped] = by_pid[pipe.process.pid]["servers"]
                assert (piped["exposed"], piped["hidden"], piped["calls"]) == (8, 1, 0)
                token = page.partition("=")[2]
                assert token
                assert token not in json.dumps(filters)
                assert "s3cr3t" not in json.dumps(filters)
                it.process.send_signal(signal.SIGKILL)
                assert relay.leaves() == 0
                assert len(eventually(lambda: found(1))) == 1
                assert len(list((base / "mcp-tool-filter").iterdir())) == 1
            assert pipe.leaves() == 0
    assert list((base / "mcp-tool-filter").iterdir()) == []


def test_a_session_works_where_no_socket_is_possible(base: Path, tmp_path: Path) -> None:
    (base / "mcp-tool-filter").mkdir(mode=0o755)
    environment = {"XDG_RUNTIME_DIR": str(base)}
    with filtered("--", *upstream(), home=tmp_path, environment=environment) as client:
        client.opens()
        assert client.asks("tools/list")["result"]["tools"]
        time.sleep(0.5)
        assert client.leaves() == 0
        assert client.stderr().count("Warning") == 1, "that nothing is denied"
