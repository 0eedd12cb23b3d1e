"""Flags that bring in more of mitmproxy: recordings, its options, its web pages, its config."""

from __future__ import annotations

import json
import socket
import stat
from pathlib import Path

import pytest
from mitmproxy.io import FlowReader

from mcp_tool_filter.adapters.recordings.flow_dump import read_recording
from tests.cli.commands.proxying import CALL, LIST, TOOLS, ask, names_in, serving
from tests.cli.launched import launched, run
from tests.mcp_upstream import mcp_upstream
from tests.raw_client import raw_client


async def test_a_recording_holds_the_traffic_and_only_its_user_can_read_it(tmp_path: Path) -> None:
    file = tmp_path / "all.flow"

    async with (
        mcp_upstream(tools=TOOLS) as upstream,
        serving(upstream, tmp_path, "--record", str(file)) as it,
    ):
        await ask(it.port, CALL % (1, b"read_file"))
        it.interrupt()
        assert await it.exit_code() == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with file.open("rb") as recording:
        [flow] = FlowReader(recording).stream()
    assert b"read_file" in flow.get_state()["request"]["content"]


async def test_an_option_of_a_default_addon_loads_that_addon(tmp_path: Path) -> None:
    async with (
        mcp_upstream(tools=TOOLS) as upstream,
        serving(upstream, tmp_path, "--set", "modify_headers=/~q/X-Mine/1") as it,
    ):
        await ask(it.port, CALL % (1, b"read_file"))
        assert names_in(await ask(it.port, LIST)) == ["read_file"]
        assert upstream.of("tools/call")[0].all("x-mine") == ["1"]


@pytest.mark.parametrize(
    ("option", "status", "part"),
    [
        ("antcache=true", 2, "There is no option antcache: did you mean anticache?"),
        ("http2=perhaps", 2, "Failed to parse option http2"),
        ("ignore_hosts=x", 1, "ignore_hosts"),
        ("deny=^a", 2, "use --deny instead"),
        ("mode=reverse:http://elsewhere", 2, "use --upstream instead"),
    ],
)
async def test_an_option_that_cannot_be_set_ends_the_start(
    option: str, status: int, part: str, tmp_path: Path
) -> None:
    """mitmproxy itself would go on without it, or without us."""

    async with (
        mcp_upstream(tools=TOOLS) as upstream,
        launched("-u", upstream.url, "--set", option, home=tmp_path) as it,
    ):
        assert await it.exit_code() == status
        assert part in it.stderr
        assert "Traceback" not in it.stderr


@pytest.mark.parametrize(
    ("host", "more", "with_what"),
    [
        ("0.0.0.0", ["-H", "X-Key: a"], "your --header"),
        ("::", ["-H", "X-Key: a", "--inspect", "--no-browser"], "your --header"),
        ("192.0.2.1", ["-u", "http://127.0.0.1:1/mcp?key=a"], "the parameters of your --upstream"),
        ("machine.example", ["--client-cert", "none.pem"], "your --client-cert"),
    ],
)
def test_strangers_do_not_get_the_users_rights_by_accident(
    host: str, more: list[str], with_what: str, tmp_path: Path
) -> None:
    upstream = [] if "-u" in more else ["-u", "http://127.0.0.1:1/mcp"]
    words = [*upstream, "--host", host, "--port", "0", *more]
    ended = run(*words, home=tmp_path)
    assert (ended.returncode, ended.stderr.splitlines()[0]) == (
        2,
        f"Error: With --host {host}, everybody on the network acts with {with_what}",
    )
    assert "--allow-remote" in ended.stderr
    for wanted in (["--allow-remote"], ["--allowed-hosts", "filter.example"]):
        allowed = run(*words, *wanted, home=tmp_path)
        assert f"Warning: everybody who reaches {host} acts with {with_what}" in allowed.stderr
        assert "on the network" not in allowed.stderr


@pytest.mark.parametrize(
    "words", [["--host", "0.0.0.0"], ["-H", "X-Key: a"], ["-H", "X: a", "--host", "localhost"]]
)
def test_a_listener_without_the_users_rights_needs_no_leave(
    words: list[str], tmp_path: Path
) -> None:
    ended = run("-u", "http://127.0.0.1:1/mcp", "--port", "0", *words, home=tmp_path)
    assert "Connection refused" in ended.stderr
    assert "everybody" not in ended.stderr


async def test_inspect_is_mitmweb_with_the_filter_and_can_record(tmp_path: Path) -> None:
    file = tmp_path / "session.flow"
    async with (
        mcp_upstream(tools=TOOLS) as upstream,
        serving(upstream, tmp_path, "--inspect", "--no-browser", "--record", str(file)) as it,
    ):
        found = await it.says(r"mitmweb: http://127\.0\.0\.1:(\d+)/\?token=(\w+)")
        assert names_in(await ask(it.port, LIST)) == ["read_file"]
        async with raw_client(int(found[1])) as web:
            head = f"GET /flows?token={found[2]} HTTP/1.1\r\nHost: localhost\r\n\r\n"
            flows = json.loads((await web.ask(head.encode())).body)
        assert [flow["request"]["path"] for flow in flows] == ["/mcp"]
        it.interrupt()
        assert await it.exit_code() == 0
    assert [flow.head.target for flow in read_recording(file).flows] == ["/mcp"]


def test_a_recording_does_not_create_folders(tmp_path: Path) -> None:
    file = tmp_path / "none" / "session.flow"
    ended = run("-u", "http://127.0.0.1:1", "-w", str(file), "-p", "0", home=tmp_path)
    said = f"Error: Cannot write the recording {file}\nThere is no folder {file.parent}\n"
    assert (ended.returncode, ended.stderr) == (1, said)
    assert not file.parent.exists()


def test_a_taken_web_port_gives_one_sentence(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        words = ["-u", "http://127.0.0.1:1", "-p", "0", "--inspect", "--no-browser"]
        ended = run(*words, "--set", f"web_port={port}", home=tmp_path)
    assert ended.returncode == 1
    assert ended.stderr.endswith(
        f"Error: Cannot show mitmweb at 127.0.0.1:{port}\n"
        "Address already in use; leave web_port out to use a free port\n"
    )
    assert "Traceback" not in ended.stderr
