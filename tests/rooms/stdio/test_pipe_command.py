"""``mcp-tool-filter --stdio --upstream URL`` in front of real HTTP servers."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.launched import ADDON
from tests.make import asking, calling
from tests.rooms.stdio.relaying import DENY, names_in, text_in
from tests.rooms.stdio.served_command import META
from tests.session_upstream import SessionUpstream, session_upstream
from tests.stdio_client import StdioClient, filtered
from tests.stdio_client import upstream as command
from tests.waiting import eventually

OF_2026 = META % ""


@contextmanager
def piped(upstream: SessionUpstream, home: Path, *words: str) -> Iterator[StdioClient]:
    """Start the pipe, and let it serve; what it fetched at start is not in the journal."""
    with filtered("--stdio", *DENY, *words, "-u", upstream.url, home=home) as client:
        client.said_on_stderr("Saved:")
        upstream.forget()
        yield client


@pytest.fixture
def upstream() -> Iterator[SessionUpstream]:
    with session_upstream() as started:
        yield started


@pytest.fixture
def client(upstream: SessionUpstream, tmp_path: Path) -> Iterator[StdioClient]:
    """A client that has opened its session."""
    with piped(upstream, tmp_path) as started:
        started.opens()
        yield started


def test_a_session_in_front_of_a_url(tmp_path: Path) -> None:
    with session_upstream() as upstream, piped(upstream, tmp_path) as client:
        assert client.opens()["result"]["serverInfo"]["name"] == "sessions"
        assert "delete_file" not in names_in(client.asks("tools/list", id="2"))
        error = {"code": -32601, "message": "Tool not found: delete_file"}
        assert client.calls("delete_file", id='"x"')["error"] == error
        assert text_in(client.calls("read_file", id="4")) == "read_file"
        assert client.leaves() == 0
        assert [seen.message["params"]["name"] for seen in upstream.calls()] == ["read_file"]


def test_each_request_names_the_session_and_the_end_closes_it(
    client: StdioClient, upstream: SessionUpstream
) -> None:
    client.asks("ping", id="2")
    assert client.leaves() == 0
    first, *others = upstream.journal
    assert "mcp-session-id" not in first.headers
    assert {seen.headers.get("mcp-session-id") for seen in others} == {"session-1"}
    assert {seen.headers.get("mcp-protocol-version") for seen in others} == {"2025-11-25"}
    assert upstream.methods()[-1] == "DELETE"
    assert upstream.methods()[:2] == ["POST initialize", "POST notifications/initialized"]
    assert "GET" in upstream.methods()


def test_each_message_is_sent_as_it_was_written(tmp_path: Path) -> None:
    """In order, too: what was said in one breath arrives one after the other."""
    with session_upstream() as upstream, piped(upstream, tmp_path) as client:
        client.say(
            asking("initialize", params='{"protocolVersion":"2025-11-25"}'),
            b'{"jsonrpc":"2.0","method":"notifications/initialized"}',
            b'{"jsonrpc":"2.0","method":"notifications/one"}',
            b'{"jsonrpc":"2.0","method":"notifications/two"}',
        )
        assert client.leaves() == 0
        said = [name for name in upstream.methods() if name.startswith("POST")]
        assert said == [
            "POST initialize", "POST notifications/initialized", "POST notifications/one",
            "POST notifications/two",
        ]  # fmt: skip


def test_events_become_lines(client: StdioClient) -> None:
    client.say(calling("stream"))
    assert client.hears()["method"] == "notifications/message"
    assert text_in(client.hears()) == "streamed"


def test_a_stream_that_breaks_off_is_resumed(
    client: StdioClient, upstream: SessionUpstream
) -> None:
    assert text_in(client.calls("resume", id="7")) == "resumed"
    [resuming] = [seen for seen in upstream.journal if "last-event-id" in seen.headers]
    assert (resuming.method, resuming.headers["last-event-id"]) == ("GET", "7")
    assert resuming.headers["mcp-session-id"] == "session-1"


def test_unrequested_messages_of_the_upstream_are_heard(client: StdioClient) -> None:
    client.say(calling("push"))
    heard = [client.hears(), client.hears()]
    assert {"notifications/tools/list_changed", None} == {one.get("method") for one in heard}


def test_an_upstream_without_a_get_stream_works(tmp_path: Path) -> None:
    with session_upstream(offers_stream=False) as upstream, piped(upstream, tmp_path) as client:
        client.opens()
        assert text_in(client.calls("read_file")) == "read_file"
        assert client.leaves() == 0
        assert upstream.methods().count("GET") == 1


def test_an_answer_with_line_breaks_becomes_one_line(client: StdioClient) -> None:
    client.say(calling("pretty"))
    line = client.hears_line()
    assert line.count(b"\r") == 0
    assert text_in(json.loads(line)) == "a\nb"


def test_stateless_requests_are_mirrored_in_headers(tmp_path: Path) -> None:
    with session_upstream() as upstream, piped(upstream, tmp_path) as client:
        arguments = '{"region":"europ\\u00e4","deep":{"n":7}}'
        params = f'{{"name":"mirrored","arguments":{arguments},{OF_2026}}}'
        assert text_in(client.asks("tools/call", params=params)) == "mirrored"
        client.asks("ping", params=f"{{{OF_2026}}}")
        call, ping = upstream.journal
        assert {name: value for name, value in call.headers.items() if "mcp" in name} == {
            "mcp-protocol-version": "2026-07-28", "mcp-method": "tools/call",
            "mcp-name": "mirrored", "mcp-param-region": "=?base64?ZXVyb3DDpA==?=",
            "mcp-param-n": "7",
        }  # fmt: skip
        assert ping.headers["mcp-method"] == "ping"
        assert client.leaves() == 0
        assert "DELETE" not in upstream.methods()


def test_a_cancelled_stateless_request_closes_its_connection(tmp_path: Path) -> None:
    with session_upstream() as upstream, piped(upstream, tmp_path) as client:
        client.asks("server/discover", params=f"{{{OF_2026}}}")
        client.say(asking("tools/call", id='"s"', params=f'{{"name":"slow",{OF_2026}}}'))
        eventually(upstream.calls)
        client.say(
            b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"s"}}'
        )
        assert upstream.cancelled.wait(10)
        assert "POST notifications/cancelled" not in upstream.methods()
        assert client.asks("ping", id="9", params=f"{{{OF_2026}}}")["id"] == 9


def test_an_older_upstream_gets_the_cancellation(
    client: StdioClient, upstream: SessionUpstream
) -> None:
    client.say(
        b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}',
        asking("ping", id="2"),
    )
    client.hears()
    assert "POST notifications/cancelled" in upstream.methods()


@pytest.mark.parametrize("name", ["drop", "status"])
def test_a_failure_fails_only_its_own_request(
    client: StdioClient, upstream: SessionUpstream, name: str
) -> None:
    refused = client.calls(name, id="5", code=500)
    assert refused["id"] == 5
    assert refused["error"]["code"] in (-32000, -32603)
    assert len(upstream.calls()) == 1  # never sent again: it may have run
    assert client.asks("ping", id="6")["id"] == 6


def test_an_id_can_be_used_again_at_once(client: StdioClient) -> None:
    """The end of the first answer must not be taken for the end of the second."""
    for _ in range(50):
        assert client.asks("ping")["result"] == {}


def test_a_session_that_the_upstream_has_forgotten_is_replaced(
    client: StdioClient, upstream: SessionUpstream
) -> None:
    client.asks("ping", id="2")
    upstream.sessions += 1
    upstream.forget()
    assert text_in(client.calls("read_file", id="3")) == "read_file"
    assert client.calls("stream", id="4")["method"] == "notifications/message"
    assert client.hears()["id"] == 4
    assert client.leaves() == 0
    posts = [one.removeprefix("POST ") for one in upstream.methods() if one.startswith("POST")]
    opened = ["initialize", "notifications/initialized"]
    assert posts == ["tools/call", *opened, "tools/call", "tools/call"]
    assert len(client.raw) == 5  # the client hears nothing of it
    assert upstream.journal[-1].headers["mcp-session-id"] == "session-2"


def test_a_session_that_cannot_be_replaced_gives_an_error(
    client: StdioClient, upstream: SessionUpstream
) -> None:
    """A message is sent again once only."""
    upstream.forget()
    assert client.calls("status", code=404)["error"]["message"] == "Session terminated"
    assert len(upstream.calls()) == 2


@pytest.mark.parametrize("id", ["1.50", "1e2", "1.0", '"\\u0061"', "-0"])
@pytest.mark.parametrize("tool", ["read_file", "stream", "delete_file", "drop"])
def test_an_answer_has_the_id_as_the_client_wrote_it(
    client: StdioClient, id: str, tool: str
) -> None:
    client.calls(tool, id=id)
    if tool == "stream":
        client.hears()
    assert re.match(rb'\{"jsonrpc": ?"2.0", ?"id": ?%b,' % re.escape(id.encode()), client.raw[-1])


@pytest.mark.parametrize(("body", "type"), [
    ('{"jsonrpc":"2.0","id":1,"result":{},"result":{}}', "application/json"),
    ('{"jsonrpc":"2.0","id":1,"result":{"text":"a\nb"}}', "application/json"),
    ("", "application/json"), ("hello", "text/plain"),
])  # fmt: skip
def test_an_invalid_answer_is_replaced_by_an_error(
    client: StdioClient, body: str, type: str
) -> None:
    refused = client.calls("text", body=body, type=type)
    assert (refused["id"], refused["error"]["code"]) == (1, -32603)
    assert client.asks("ping", id="6")["id"] == 6


def test_an_answer_that_is_too_large_is_replaced_by_an_error(tmp_path: Path) -> None:
    limit = ("--message-limit", "1MB")
    with session_upstream() as upstream, piped(upstream, tmp_path, *limit) as client:
        client.opens()
        refused = client.calls("big", id="7", bytes=1_100_000)
        assert (refused["id"], refused["error"]["code"]) == (7, -32603)
        assert client.asks("ping", id="8")["id"] == 8


def test_a_vanished_upstream_is_lost(client: StdioClient, upstream: SessionUpstream) -> None:
    client.say(calling("slow", id="3"), calling("die", id="4"))
    assert client.ends() == 1
    heard = {json.loads(line)["id"]: json.loads(line) for line in client.raw}
    assert {heard[3]["error"]["code"], heard[4]["error"]["code"]} == {-32000}
    assert client.stderr().endswith(
        "To keep running when the upstream is lost: --keep-running\n"
        "Error: Lost connection to upstream MCP\nShutting down proxy\n"
    )


def test_configured_headers_are_sent(upstream: SessionUpstream, tmp_path: Path) -> None:
    words = ("--stdio", *DENY, "--header", "Authorization: Bearer $TOKEN", "-vv")
    token = {"TOKEN": "s3cret"}
    with filtered(*words, "-u", upstream.url, home=tmp_path, environment=token) as client:
        client.opens()
        client.leaves()
        sent = {seen.headers.get("authorization") for seen in upstream.journal}
        assert sent == {"Bearer s3cret"}
        assert "s3cret" not in client.stderr()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_process_and_closes_the_session(
    client: StdioClient, upstream: SessionUpstream, number: signal.Signals
) -> None:
    client.process.send_signal(number)
    assert client.ends() == 0
    assert "DELETE" in upstream.methods()


REFUSE = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        assert name.partition(".")[0] not in {}, name
if "mcp_tool_filter" in sys.orig_argv:
    sys.meta_path.insert(0, Refuse())
"""


@pytest.mark.parametrize("is_pipe", [True, False])
def test_what_is_slow_is_not_imported(
    is_pipe: bool, upstream: SessionUpstream, tmp_path: Path
) -> None:
    refused = ["mitmproxy"] if is_pipe else ["mitmproxy", "asyncio", "h11", "ssl", "shutil"]
    (tmp_path / "sitecustomize.py").write_text(REFUSE.format(refused))
    words = ("--stdio", "-u", upstream.url) if is_pipe else ("--", *command())
    path = {"PYTHONPATH": f"{tmp_path}:{ADDON}"}
    with filtered(*DENY, *words, home=tmp_path, environment=path) as client:
        client.opens()
        assert text_in(client.calls("read_file")) == "read_file"
        assert client.leaves() == 0
