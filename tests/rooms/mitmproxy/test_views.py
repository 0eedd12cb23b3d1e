"""What a user sees of a flow and what a recording keeps of it, however the flow ends."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mitmproxy import contentviews, hooks
from mitmproxy.addons.save import Save
from mitmproxy.http import HTTPFlow
from mitmproxy.test import taddons

from mcp_tool_filter.rooms.mitmproxy.addon import ToolFilter
from mcp_tool_filter.rooms.recordings import flow_dump
from mcp_tool_filter.rooms.recordings.flow_dump import RecordedFlow, read_flows, read_recording
from tests.end_to_end.web_pages import Web, mitmweb, running_demo
from tests.filtered import DELETE, LIST, READ, Filtered, call, filtered, not_found
from tests.mcp_upstream import RESULT, saying, tool_list
from tests.proxy import REPOSITORY
from tests.raw_client import get, post, raw_client
from tests.raw_upstream import SSE_HEAD, Peer, RawRequest, answer, chunk, streaming, until

EVENT = b"data: " + RESULT + b"\n\n"

NOT_JSON = b"data: nothing\n\n"

ENDPOINT = b"event: endpoint\ndata: /messages?s=1\n\n"


class View:
    """Stands where mitmweb and the console keep their flows."""

    def __init__(self) -> None:
        self.flows: list[HTTPFlow] = []
        self.updates: list[bytes | None] = []
        """What the response held at each update."""

    def request(self, flow: HTTPFlow) -> None:
        self.flows.append(flow)

    def update(self, flows: list[HTTPFlow]) -> None:
        self.updates += [one.response.data.content for one in flows if one.response]


@dataclass
class Watched(Filtered):
    file: Path
    view: View

    def recorded(self) -> list[RecordedFlow]:
        """Close the file, as mitmproxy does when it ends, and read it."""
        self.proxy.master.addons.trigger(hooks.DoneHook())
        return list(read_recording(self.file).flows)

    def only(self) -> tuple[RecordedFlow, flow_dump.Said]:
        [flow] = self.recorded()
        assert flow.said
        return flow, flow.said


@asynccontextmanager
async def watched(home: Path, *, records: bool = True, **options: Any) -> AsyncIterator[Watched]:
    """A filter that is looked at, and records, before an upstream with two tools."""
    file, view = home / "session.flow", View()
    addons: list[object] = [view, Save()] if records else [view]
    if records:
        options["save_stream_file"] = str(file)
    async with filtered(home, *addons, **options) as it:
        yield Watched(it.upstream, it.client, it.proxy, file, view)


stream_of_two = streaming(EVENT, NOT_JSON)


async def test_a_list_is_kept_before_and_after(tmp_path: Path) -> None:
    async with watched(tmp_path, new_tools=["judge"]) as it:
        heard = (await it.ask(LIST)).body
        flow, said = it.only()
    assert (flow.body, said.body) == (LIST, tool_list([READ, DELETE], id="5"))
    assert flow.heard == heard == tool_list([READ], id="5")


async def test_the_request_is_kept_as_its_client_sent_it(tmp_path: Path) -> None:
    """What goes upstream has other headers, and another host: no flow has the user's own. Our
    own answer is not recorded as the upstream's."""
    async with watched(tmp_path, upstream_headers=["X-Api-Key: ours"]) as it:
        await it.ask(call("read_file"))
        await it.ask(call("delete_file"))
        passed, refused = it.recorded()
    assert passed.host == "localhost"
    assert b"X-Api-Key" not in dict(passed.head.headers)
    assert not any("x-api-key" in one.request.headers for one in read_flows(it.file))
    assert (refused.said, refused.heard) == (None, not_found("delete_file"))


async def test_a_stream_is_kept_before_and_after_with_its_cuts(tmp_path: Path) -> None:
    async with watched(tmp_path, respond=stream_of_two) as it:
        await it.ask(call("read_file"))
        flow, said = it.only()
    assert (said.body, flow.heard) == (EVENT + NOT_JSON, EVENT)
    assert said.ended


@pytest.mark.parametrize("end", ["process", "client", "upstream"])
async def test_a_stream_that_is_cut_off_is_kept(end: str, tmp_path: Path) -> None:
    async def respond(_request: RawRequest, peer: Peer) -> None:
        await peer.say(SSE_HEAD + chunk(EVENT) + chunk(NOT_JSON) + chunk(b"data: unfin"))
        peers.append(peer)

    peers: list[Peer] = []
    async with watched(tmp_path, respond=respond, fail_fast=["false"]) as it:
        await it.client.say(post(call("read_file")))
        await it.client.until(EVENT)
        await until(lambda: EVENT in it.view.updates)
        if end == "client":
            it.client.abort()
        elif end == "upstream":
            peers[0].close()
        await until(lambda: end == "process" or it.view.flows[0].error is not None)
        flow, said = it.only()
    assert said.body == EVENT + NOT_JSON + b"data: unfin"
    assert flow.heard.startswith(EVENT)
    if end != "upstream":  # its clients hear of that
        assert (said.ended, flow.heard) == (None, EVENT)


async def test_injected_events_are_not_recorded_as_the_upstreams(tmp_path: Path) -> None:
    async def legacy(request: RawRequest, peer: Peer) -> None:
        if request.line.startswith("GET"):
            await peer.say(SSE_HEAD + chunk(ENDPOINT))
        else:
            await peer.say(answer(b"", status="202 Accepted"))

    async with watched(tmp_path, respond=legacy) as it:
        await it.client.say(get(path="/sse"))
        await it.client.until(ENDPOINT)
        async with raw_client(it.port) as other:
            await other.ask(post(call("delete_file"), path="/messages?s=1"))
        await it.client.until(b"delete_file")
        stream, _ = it.recorded()
    assert stream.said
    assert stream.said.body == ENDPOINT
    assert stream.heard == ENDPOINT + b"data: " + not_found("delete_file") + b"\n\n"


async def test_an_endless_stream_is_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_dump, "MOST_KEPT", len(EVENT) + 3)

    async with watched(tmp_path, respond=stream_of_two) as it:
        await it.ask(call("read_file"))
        _, said = it.only()
    assert (said.body, said.left_out) == (EVENT, len(NOT_JSON))


async def test_messages_are_counted_and_not_kept_without_a_viewer(tmp_path: Path) -> None:
    async with watched(tmp_path, records=False) as it:
        it.proxy.master.addons.lookup.pop("view")
        it.set(fail_fast=["false"])
        for name in ("read_file", "delete_file"):
            await it.ask(call(name))
        for flow in it.view.flows:
            assert (flow.metadata, flow.comment, flow.marked) == ({}, "", "")
        said = "\n".join(it.proxy.master.commands.execute("mcp.stats"))
    assert "messages: 3, of which 0 invalid" in said
    assert "calls: 1, refused: 1" in said


async def test_a_recording_may_begin_while_the_filter_runs(tmp_path: Path) -> None:
    """Until then nothing is kept or hidden; from then on everything is."""
    secret = b"Authorization: Bearer s3cr3t\r\n"
    async with watched(tmp_path, records=False) as it:
        it.proxy.master.addons.lookup.pop("view")
        it.proxy.master.addons.add(Save())
        it.set(fail_fast=["false"])
        await it.ask(call("read_file"), secret)
        it.set(save_stream_file=str(it.file))
        await it.ask(call("read_file"), secret)
        flow, said = it.only()
        before, recorded = it.view.flows
    assert (before.comment, before.request.headers["authorization"]) == ("", "Bearer s3cr3t")
    assert recorded.comment == "tools/call read_file: forwarded"
    assert recorded.request.headers["authorization"].startswith("Bearer masked-")
    assert b"s3cr3t" not in it.file.read_bytes()
    assert (said.body, flow.heard) == (RESULT, RESULT)


DENIED = "not found: delete_file (denied by ^delete_)"
UNKNOWN = "not found: nothing (the upstream has no such tool)"
PASSED, REFUSED = "tools/call read_file: forwarded", ":no_entry_sign:"
SECRET = "ghp_0123456789abcdefABCD"
CONTENT = f'[{{"type":"text","text":"No {SECRET}\\nat line 7"}}]'
ERROR = f'{{"jsonrpc":"2.0","id":1,"result":{{"isError":true,"content":{CONTENT}}}}}'.encode()
READING = call("read_file")
FAILED = f"{PASSED}\n\nthe call failed: "
INVALID = f"{PASSED}\n\ninvalid message from the upstream: not valid JSON"


def failing(text: str) -> bytes:
    return f'{{"jsonrpc":"2.0","id":1,"error":{{"code":-32603,"message":"{text}"}}}}'.encode()


BOTH = b"[%b,%b]" % (READING, call("read_file", id="2"))
ONE_FAILED = b"[%b,%b]" % (failing("No"), RESULT.replace(b'"id":1', b'"id":2'))


@pytest.mark.parametrize(("asked", "said", "mark", "comment"), [
    (READING, RESULT, "", PASSED),
    (call("delete_file"), RESULT, REFUSED, DENIED),
    (call("nothing"), RESULT, REFUSED, UNKNOWN),
    (LIST, RESULT, ":see_no_evil:", "hidden 1 tool\n  ^delete_: delete_file"),
    (b"{", RESULT, REFUSED, "refused (malformed): not valid JSON"),
    (BOTH, ONE_FAILED, "", "the call of read_file failed: No"),
    (READING, ERROR, "", f"{FAILED}No [secret]"),
    (READING, failing("Out of tokens"), "", f"{FAILED}Out of tokens"),
    (READING, failing(""), "", f"{FAILED}an error without a text"),
    (READING, b"{", ":warning:", INVALID),
])  # fmt: skip
async def test_a_flow_is_marked_and_commented(
    tmp_path: Path, asked: bytes, said: bytes, mark: str, comment: str
) -> None:
    """A call that failed does not look like a success."""
    async with watched(tmp_path, respond=saying(said)) as it:
        await it.ask(asked)
        [flow] = it.view.flows
        assert (flow.marked, flow.comment) == (mark, comment)


async def test_what_is_only_reported_is_marked_and_commented(tmp_path: Path) -> None:
    async with watched(tmp_path, shadow=["true"]) as it:
        await it.ask(call("delete_file"))
        await it.ask(LIST)
        called, listed = it.view.flows
        assert f"would be refused: {DENIED}" in called.comment
        assert "would be changed: hidden 1 tool\n  ^delete_: delete_file" in listed.comment
        assert called.marked == listed.marked == ":eyes:"


# The page over the HTTP API of a real mitmweb; end_to_end/test_mitmweb.py has the browser


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Web]:
    with running_demo() as port, mitmweb(tmp_path, port) as running:
        running.client.begin()
        yield running


def test_the_page_needs_the_password(web: Web) -> None:
    for path in ("/mcp", "/mcp/state", "/mcp/page.js"):
        assert web.api("GET", path, password="wrong")[0] == 403
        assert web.api("GET", path)[0] == 200


@pytest.mark.rest(but=1)
@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b"[1", b'{"deny":[1]}', b"[" * 200_000])
def test_requests_that_the_page_never_sends_are_refused(body: bytes, web: Web) -> None:
    assert web.api("POST", "/mcp/apply", body)[0] == 400


def test_the_commands_have_names_that_mitmweb_takes(web: Web) -> None:
    web.client.call("file_delete")
    assert any("file_delete: hidden" in line for line in web.command("mcp.tools"))
    assert any("refused: 1" in line for line in web.command("mcp.stats"))
    assert web.command("mcp.sessions")[0].endswith("0 sessions")


# The content view MCP


@pytest.fixture
def views() -> Iterator[None]:
    """Load the addon, which adds our views to mitmproxy."""
    with taddons.context(ToolFilter()):
        yield


VIEWS = pytest.mark.usefixtures("views")


def shown(recording: str, number: int, part: str = "response") -> str:
    flows = read_flows(REPOSITORY / "recordings" / f"{recording}.flow")
    flow = sorted(flows, key=lambda one: one.request.timestamp_start)[number]
    result = contentviews.prettify_message(getattr(flow, part), flow)
    assert (result.view_name, result.syntax_highlight) == ("MCP", "yaml")
    return result.text


@VIEWS
def test_a_call_is_readable() -> None:
    assert "request tools/call\n  id: 2\n  tool: read_file\n  arguments:\n    path: /ä/b.txt" in (
        shown("mcp1-streamable-json", 4, "request")
    )


@VIEWS
def test_a_list_shows_what_was_removed_and_why() -> None:
    text = shown("ts1-batch", 2)
    assert text.startswith(
        "# hidden 2 tools\n#   ^(delete|drop)_: delete_file, drop_database\n"
        "# removed: delete_file, drop_database\n# before: "
    )
    assert "- read_file(path, lines?) [read-only]: Reads a text file." in text
    assert "- delete_file" not in text


@VIEWS
def test_the_events_of_a_stream_are_messages() -> None:
    text = shown("mcp1-sse", 0)
    assert "event 1: endpoint\n  /messages/?session_id=" in text
    assert "notification notifications/progress" in text
    assert "request sampling/createMessage" in text
    assert 'message: "Tool not found: delete_file"' in text


@VIEWS
def test_the_message_before_filtering_can_be_shown() -> None:
    flows = read_flows(REPOSITORY / "recordings" / "ts1-batch.flow")
    [flow] = [one for one in flows if "hidden" in one.comment]
    assert flow.response
    result = contentviews.prettify_message(flow.response, flow, "mcp-before")
    assert "- delete_file(path)" in result.text


@VIEWS
def test_other_content_is_left_to_other_views() -> None:
    view = contentviews.registry["mcp"]
    for content_type, data in [
        ("text/html", b"<p>"),
        ("application/json", b'{"a":1}'),
        ("application/json", b""),
    ]:
        assert view.render_priority(data, contentviews.Metadata(content_type=content_type)) < 0
