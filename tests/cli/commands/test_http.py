"""The proxy as a person starts it: real processes, real sockets."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import socket
import ssl
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from mitmproxy.io import FlowReader

from mcp_tool_filter.cli.commands.demo import demo_upstream
from mcp_tool_filter.rooms.recordings.flow_dump import read_recording
from tests.cli.commands.proxying import (
    CALL,
    LIST,
    LOST,
    NOT_FOUND,
    TOOLS,
    ask,
    names_in,
    proxied,
    silent,
)
from tests.cli.launched import RunningLauncher, Typed, ended, launched
from tests.mcp_upstream import McpUpstream, mcp_upstream
from tests.proxy import certified
from tests.raw_client import RawClient, post, raw_client
from tests.raw_upstream import Peer, free_port, raw_upstream


@pytest.mark.parametrize("more", [[], ["--record", "all.flow"]], ids=["sockets", "mitmproxy"])
async def test_an_exception_is_listed_and_called_as_if_no_pattern_matched(
    more: list[str], tmp_path: Path
) -> None:
    flags = ["--deny", "^r", "--except", "^read_file$,^none$", *more[:1]]
    flags += [str(tmp_path / one) for one in more[1:]]
    async with proxied(tmp_path, *flags) as (it, upstream):
        assert names_in(await ask(it.port, LIST)) == ["read_file"]
        assert (await ask(it.port, CALL % (1, b"rm_rf"))).body == NOT_FOUND
        assert (await ask(it.port, CALL % (1, b"read_file"))).status == 200
        assert len(upstream.of("tools/call")) == 1
        assert 'Warning: the pattern "^none$" matches no tool' in it.stderr
        assert '"^rm_": rm_rf' in it.stderr
        assert it.stdout == ""


@asynccontextmanager
async def waiting(
    home: Path,
) -> AsyncIterator[tuple[RunningLauncher, McpUpstream, RawClient]]:
    """A client waits for the answer to a call."""
    async with proxied(home, respond=silent) as (it, upstream), raw_client(it.port) as client:
        await client.say(post(CALL % (1, b"read_file")))
        while not upstream.of("tools/call"):
            await asyncio.sleep(0.01)
        yield it, upstream, client


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_ends_the_process_with_0(number: signal.Signals, tmp_path: Path) -> None:
    async with waiting(tmp_path) as (it, _, _):
        said = it.stderr
        it.interrupt(number)
        assert await it.exit_code() == 0
        after = it.stderr.removeprefix(said).splitlines()
        assert after[0].endswith("tools/call read_file: no answer, 78 B")
        assert after[1].startswith("Ran 0 min ")
        assert after[2].split() == ["1", "read_file"]
        assert len(after) == 3


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_during_the_fetch_ends_the_process_with_0(
    number: signal.Signals, tmp_path: Path
) -> None:
    reached = asyncio.Event()

    async def script(peer: Peer) -> None:
        reached.set()
        await peer.left()

    async with (
        raw_upstream(script) as upstream,
        launched("--upstream", upstream.url, "--dashboard", "0", home=tmp_path) as it,
    ):
        await reached.wait()
        it.interrupt(number)
        assert await it.exit_code() == 0
        assert re.fullmatch(r"Dashboard: \S+\n", it.stderr)


async def test_a_lost_upstream_ends_the_process_with_1_after_all_waiting_clients_are_answered(
    tmp_path: Path,
) -> None:
    async with waiting(tmp_path) as (it, upstream, client):
        await upstream.raw.stop()
        assert (await client.answer()).body == LOST
        assert await it.exit_code() == 1
        text = "Error: Lost connection to upstream MCP\nShutting down proxy\n"
        assert it.stderr.endswith(f"upstream is lost: --keep-running\n{text}")


async def test_a_taken_port_is_an_error_before_the_upstream_is_asked(tmp_path: Path) -> None:
    async with mcp_upstream(tools=TOOLS) as upstream:
        port = str(upstream.raw.port)
        status, _, err = await ended("-u", upstream.url, "-p", port, home=tmp_path)
        why = "Address already in use; --port 0 picks a free port\n"
        assert (status, err) == (1, f"Error: Cannot listen on 127.0.0.1:{port}\n{why}")
        assert upstream.raw.requests == []


async def test_quiet_prints_nothing_for_a_working_filter(tmp_path: Path) -> None:
    port = free_port()
    async with (
        mcp_upstream(tools=TOOLS) as upstream,
        launched("-qu", f"{upstream.url}/mcp", "--allow=e", "-p", str(port), home=tmp_path) as it,
    ):
        it.port = port
        await it.listening()
        assert names_in(await ask(port, LIST)) == ["read_file"]
        it.interrupt()
        assert await it.exit_code() == 0
        assert (it.stderr, it.stdout) == ("", "")


async def test_the_upstream_is_asked_once(tmp_path: Path) -> None:
    """By the launcher, while mitmproxy is being imported; the addon takes its answer."""

    async with proxied(tmp_path) as (_, upstream):
        lists = [one for one in upstream.raw.requests if b'"tools/list"' in one.body]
        assert len(lists) == 1


async def test_header_values_are_sent_and_never_printed(tmp_path: Path) -> None:
    async with mcp_upstream(tools=TOOLS) as upstream:
        header = "Authorization: Bearer $TOKEN"
        words = ("-u", f"{upstream.url}/mcp?key=hunter3", "-H", header, "-vv")
        secret = {"TOKEN": "hunter2"}
        async with launched(*words, home=tmp_path, environment=secret) as it:
            await it.serving()
            await ask(it.port, CALL % (1, b"read_file"))
            async with raw_client(it.port) as client:
                await client.ask(post(b"{", path="/mcp?key=hunter3"))
            sent = [request.all("authorization") for request in upstream.raw.requests]
            assert all(values == ["Bearer hunter2"] for values in sent)
            it.interrupt()
            await it.exit_code()
            assert "hunter2" not in it.stdout + it.stderr
            assert "hunter3" not in it.stdout + it.stderr


async def test_a_wrong_path_is_answered_with_the_right_one(tmp_path: Path) -> None:
    async with demo_upstream() as upstream:
        wrong = upstream.url.replace("/mcp", "/wrong")
        status, _, err = await ended("-u", wrong, "-d", "^file", home=tmp_path)
        said = "Error: Failed to fetch tool list from upstream MCP"
        assert (status, err.splitlines()[0]) == (1, said)
        assert err.endswith(f"\nHint: MCP is at {upstream.url}\n")


async def test_the_list_timeout_can_be_set(tmp_path: Path) -> None:
    async with mcp_upstream(lists=lambda _request, _id: b"") as upstream:
        words = ("-u", f"{upstream.url}/mcp", "-d", "^rm", "--tool-list-timeout", "200")
        status, _, err = await ended(*words, home=tmp_path)
    assert (status, err.endswith("Request timeout after 200ms\n")) == (1, True)


async def test_a_recording_holds_the_traffic_and_only_its_user_can_read_it(tmp_path: Path) -> None:
    file = tmp_path / "all.flow"

    async with proxied(tmp_path, "--record", str(file)) as (it, _):
        await ask(it.port, CALL % (1, b"read_file"))
        it.interrupt()
        assert await it.exit_code() == 0
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with file.open("rb") as recording:
        [flow] = FlowReader(recording).stream()
    assert b"read_file" in flow.get_state()["request"]["content"]


async def test_an_option_of_a_default_addon_loads_that_addon(tmp_path: Path) -> None:
    async with proxied(tmp_path, "--set", "modify_headers=/~q/X-Mine/1") as (it, upstream):
        await ask(it.port, CALL % (1, b"read_file"))
        assert names_in(await ask(it.port, LIST)) == ["read_file"]
        assert upstream.of("tools/call")[0].all("x-mine") == ["1"]


@pytest.mark.parametrize(("option", "status"), [("ignore_hosts=x", 1), ("http2=perhaps", 2)])
async def test_an_option_that_cannot_be_set_ends_the_start(
    option: str, status: int, tmp_path: Path
) -> None:
    """mitmproxy itself would go on without it, or without us."""
    async with mcp_upstream(tools=TOOLS) as upstream:
        found = await ended("-u", upstream.url, "--set", option, home=tmp_path)
    assert (found[0], option.partition("=")[0] in found[2]) == (status, True)
    assert "Traceback" not in found[2]


@pytest.mark.parametrize(("words", "with_what"), [
    (["--host", "0.0.0.0", "-H", "X-Key: a", "--allow-remote"], "your --header"),
    (["--host", "::", "--client-cert", "none.pem", "--allow-remote"], "your --client-cert"),
    (["--host", "0.0.0.0", "-H", "X-Key: a", "--allowed-hosts", "a.example"], "your --header"),
    (["--host", "0.0.0.0"], ""), (["-H", "X-Key: a"], ""),
    (["-H", "X: a", "--host", "localhost"], ""),
])  # fmt: skip
def test_strangers_get_the_users_rights_only_with_leave(
    words: list[str], with_what: str, ran: Typed
) -> None:
    said = ran("-u", "http://127.0.0.1:1/mcp", "--port", "0", *words, status=1).err
    assert [line for line in said.splitlines() if "everybody" in line] == [
        f"Warning: everybody who reaches {words[1]} acts with {with_what}"
    ] * bool(with_what)


async def test_inspect_is_mitmweb_with_the_filter_and_can_record(tmp_path: Path) -> None:
    file = tmp_path / "session.flow"
    flags = ("--inspect", "--no-browser", "--record", str(file))
    async with proxied(tmp_path, *flags) as (it, _):
        found = await it.says(r"mitmweb: http://127\.0\.0\.1:(\d+)/\?token=(\w+)")
        assert names_in(await ask(it.port, LIST)) == ["read_file"]
        async with raw_client(int(found[1])) as web:
            head = f"GET /flows?token={found[2]} HTTP/1.1\r\nHost: localhost\r\n\r\n"
            flows = json.loads((await web.ask(head.encode())).body)
        assert [flow["request"]["path"] for flow in flows] == ["/mcp"]
        it.interrupt()
        assert await it.exit_code() == 0
    assert [flow.head.target for flow in read_recording(file).flows] == ["/mcp"]


def test_a_taken_web_port_gives_one_sentence(ran: Typed) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        words = ["-u", "http://127.0.0.1:1", "-p", "0", "--inspect", "--no-browser"]
        said = ran(*words, "--set", f"web_port={port}", status=1).err
    what, why = said.splitlines()[-2:]
    assert what == f"Error: Cannot show mitmweb at 127.0.0.1:{port}"
    assert why == "Address already in use; leave web_port out to use a free port"


async def test_a_certificate_is_made_for_the_first_client_with_tls(tmp_path: Path) -> None:
    async with proxied(tmp_path) as (it, _):
        await ask(it.port, LIST)
        assert not (tmp_path / ".mitmproxy").exists()
        await asyncio.to_thread(ssl.get_server_certificate, ("127.0.0.1", it.port))
        assert (tmp_path / ".mitmproxy" / "mitmproxy-ca.pem").exists()


async def test_a_client_with_tls_gets_the_configured_certificate(tmp_path: Path) -> None:
    certified(tmp_path)
    pem = tmp_path / "upstream-server.pem"
    async with proxied(tmp_path, "--cert", str(pem)) as (it, _):
        address = ("127.0.0.1", it.port)
        found = await asyncio.to_thread(ssl.get_server_certificate, address)
    assert found.strip() in pem.read_text()


async def test_an_upstream_with_tls_is_reachable_with_its_ca(tmp_path: Path) -> None:
    tls = certified(tmp_path)
    ca = str(tmp_path / "upstream-ca-cert.pem")

    async with demo_upstream(tls=tls) as upstream:
        url = upstream.url.replace("http:", "https:")
        async with launched("-u", url, "--ca", ca, "-d", "^file_", home=tmp_path) as it:
            await it.serving()
            assert "file_read" not in names_in(await ask(it.port, LIST))
            called = await ask(it.port, CALL % (1, b"web_search"))
            assert b"web_search was called" in called.body


async def test_an_unknown_certificate_is_answered_with_the_flag_for_it(tmp_path: Path) -> None:
    async def script(peer: Peer) -> None:
        await peer.left()

    async with raw_upstream(script, tls=certified(tmp_path)) as upstream:
        status, _, err = await ended("-u", upstream.url, "-d", "^rm", home=tmp_path)
    *_, why, hint = err.splitlines()
    assert (status, why[:27]) == (1, "certificate verify failed: ")
    assert hint.startswith("Hint: --ca FILE trusts its certificate")
