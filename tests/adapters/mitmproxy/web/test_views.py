"""What a user sees of a flow and what a recording keeps of it, however the flow ends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from mitmproxy import hooks
from mitmproxy.addons.save import Save
from mitmproxy.http import HTTPFlow

from mcp_tool_filter.adapters.recordings import flow_dump
from mcp_tool_filter.adapters.recordings.flow_dump import RecordedFlow, read_flows, read_recording
from tests.adapters.mitmproxy.filtered import ANSWERING, DELETE, READ, call, filtered, not_found
from tests.mcp_upstream import RESULT, Respond, saying, tool_list
from tests.proxy import RunningProxy
from tests.raw_client import MCP_HEADERS, RawClient, get, post, raw_client
from tests.raw_upstream import LAST_CHUNK, SSE_HEAD, Peer, RawRequest, answer, chunk, until

LIST = b'{"jsonrpc":"2.0","id":5,"method":"tools/list"}'

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
class Watched:
    client: RawClient
    proxy: RunningProxy
    file: Path
    view: View = field(default_factory=View)

    async def ask(self, body: bytes) -> bytes:
        return (await self.client.ask(post(body, headers=MCP_HEADERS))).body

    def close_file(self) -> None:
        """As mitmproxy does when it ends."""
        self.proxy.master.addons.trigger(hooks.DoneHook())

    def recorded(self) -> list[RecordedFlow]:
        return list(read_recording(self.file).flows)


@asynccontextmanager
async def watched(
    home: Path, *, respond: Respond = ANSWERING, records: bool = True, **options: Any
) -> AsyncIterator[Watched]:
    """A filter that is looked at, and records, before an upstream with two tools."""
    file, view = home / "session.flow", View()
    addons: list[object] = [view, Save()] if records else [view]
    if records:
        options["save_stream_file"] = str(file)
    async with filtered(home, *addons, respond=respond, **options) as it:
        yield Watched(it.client, it.proxy, file, view)


async def stream_of_two(_request: RawRequest, peer: Peer) -> None:
    await peer.say(SSE_HEAD + chunk(EVENT) + chunk(NOT_JSON) + LAST_CHUNK)


class TestRecordings:
    async def test_a_list_is_kept_before_and_after(self, tmp_path: Path) -> None:
        async with watched(tmp_path, tools_list=["upstream"]) as it:
            heard = await it.ask(LIST)
            it.close_file()
        [flow] = it.recorded()
        assert flow.body == LIST
        assert flow.heard == heard == tool_list([READ], id="5")
        assert flow.said
        assert flow.said.body == tool_list([READ, DELETE], id="5")

    async def test_the_request_is_kept_as_its_client_sent_it(self, tmp_path: Path) -> None:
        """What goes upstream has other headers, and another host: no flow has the user's own. Our
        own answer is not recorded as the upstream's."""
        async with watched(tmp_path, upstream_headers=["X-Api-Key: ours"]) as it:
            await it.ask(call("read_file"))
            await it.ask(call("delete_file"))
            it.close_file()
        passed, refused = it.recorded()
        assert passed.host == "localhost"
        assert b"X-Api-Key" not in dict(passed.head.headers)
        assert not any("x-api-key" in one.request.headers for one in read_flows(it.file))
        assert (refused.said, refused.heard) == (None, not_found("delete_file"))

    async def test_a_stream_is_kept_before_and_after_with_its_cuts(self, tmp_path: Path) -> None:
        async with watched(tmp_path, respond=stream_of_two) as it:
            await it.client.ask(post(call("read_file"), headers=MCP_HEADERS))
            it.close_file()
        [flow] = it.recorded()
        assert flow.said
        assert flow.said.body == EVENT + NOT_JSON
        assert flow.said.ended
        assert flow.heard == EVENT

    @pytest.mark.parametrize("end", ["process", "client", "upstream"])
    async def test_a_stream_that_is_cut_off_is_kept(self, end: str, tmp_path: Path) -> None:
        async def respond(_request: RawRequest, peer: Peer) -> None:
            await peer.say(SSE_HEAD + chunk(EVENT) + chunk(NOT_JSON) + chunk(b"data: unfin"))
            peers.append(peer)

        peers: list[Peer] = []
        async with watched(tmp_path, respond=respond, fail_fast=["false"]) as it:
            await it.client.say(post(call("read_file"), headers=MCP_HEADERS))
            await it.client.until(EVENT)
            await until(lambda: EVENT in it.view.updates)
            if end == "client":
                it.client.abort()
            elif end == "upstream":
                peers[0].close()
            await until(lambda: end == "process" or it.view.flows[0].error is not None)
            it.close_file()
        [flow] = it.recorded()
        assert flow.said
        assert flow.said.body == EVENT + NOT_JSON + b"data: unfin"
        assert flow.heard.startswith(EVENT)
        if end != "upstream":  # its clients hear of that
            assert (flow.said.ended, flow.heard) == (None, EVENT)

    async def test_injected_events_are_not_recorded_as_the_upstreams(self, tmp_path: Path) -> None:
        async def legacy(request: RawRequest, peer: Peer) -> None:
            if request.line.startswith("GET"):
                await peer.say(SSE_HEAD + chunk(ENDPOINT))
            else:
                await peer.say(answer(b"", status="202 Accepted"))

        async with watched(tmp_path, respond=legacy) as it:
            await it.client.say(get(path="/sse"))
            await it.client.until(ENDPOINT)
            async with raw_client(it.proxy.port) as other:
                await other.ask(post(call("delete_file"), path="/messages?s=1"))
            await it.client.until(b"delete_file")
            it.close_file()
        stream, _ = it.recorded()
        assert stream.said
        assert stream.said.body == ENDPOINT
        assert stream.heard == ENDPOINT + b"data: " + not_found("delete_file") + b"\n\n"

    async def test_an_endless_stream_is_kept_up_to_a_bound(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(flow_dump, "MOST_KEPT", len(EVENT) + 3)

        async with watched(tmp_path, respond=stream_of_two) as it:
            await it.client.ask(post(call("read_file"), headers=MCP_HEADERS))
            it.close_file()
        [flow] = it.recorded()
        assert flow.said
        assert (flow.said.body, flow.said.left_out) == (EVENT, len(NOT_JSON))

    async def test_messages_are_counted_and_not_kept_without_a_viewer(self, tmp_path: Path) -> None:
        async with watched(tmp_path, records=False) as it:
            it.proxy.master.addons.lookup.pop("view")
            it.proxy.master.options.update(fail_fast=["false"])
            for name in ("read_file", "delete_file"):
                await it.ask(call(name))
            for flow in it.view.flows:
                assert (flow.metadata, flow.comment, flow.marked) == ({}, "", "")
            said = "\n".join(it.proxy.master.commands.execute("mcp.stats"))
        assert "messages: 3, of which 0 invalid" in said
        assert "calls: 1, refused: 1" in said

    async def test_a_recording_may_begin_while_the_filter_runs(self, tmp_path: Path) -> None:
        """Until then nothing is kept or hidden; from then on everything is."""
        secret = b"Authorization: Bearer s3cr3t\r\n"
        async with watched(tmp_path, records=False) as it:
            it.proxy.master.addons.lookup.pop("view")
            it.proxy.master.addons.add(Save())
            it.proxy.master.options.update(fail_fast=["false"])
            await it.client.ask(post(call("read_file"), headers=MCP_HEADERS + secret))
            it.proxy.master.options.update(save_stream_file=str(it.file))
            await it.client.ask(post(call("read_file"), headers=MCP_HEADERS + secret))
            it.close_file()
            before, recorded = it.view.flows
        assert (before.comment, before.request.headers["authorization"]) == ("", "Bearer s3cr3t")
        assert recorded.comment == "tools/call read_file: forwarded"
        assert recorded.request.headers["authorization"].startswith("Bearer masked-")
        assert b"s3cr3t" not in it.file.read_bytes()
        [flow] = it.recorded()
        assert flow.said
        assert (flow.said.body, flow.heard) == (RESULT, RESULT)


DENIED = "not found: delete_file (denied by ^delete_)"
UNKNOWN = "not found: nothing (the upstream has no such tool)"
PASSED, REFUSED = "tools/call read_file: forwarded", ":no_entry_sign:"
SECRET = "ghp_0123456789abcdefABCD"
CONTENT = f'[{{"type":"text","text":"No {SECRET}\\nat line 7"}}]'
ERROR = f'{{"jsonrpc":"2.0","id":1,"result":{{"isError":true,"content":{CONTENT}}}}}'.encode()
BOTH = b"[%b,%b]" % (call("read_file"), call("read_file", id="2"))
ONE_FAILED = b'[{"jsonrpc":"2.0","id":1,"error":{"code":-1,"message":"No"}},%b]' % RESULT.replace(
    b'"id":1', b'"id":2'
)


READING = call("read_file")
FAILED = f"{PASSED}\n\nthe call failed: "
INVALID = f"{PASSED}\n\ninvalid message from the upstream: not valid JSON"


def failing(text: str) -> bytes:
    return f'{{"jsonrpc":"2.0","id":1,"error":{{"code":-32603,"message":"{text}"}}}}'.encode()


class TestFlows:
    @pytest.mark.parametrize(
        ("asked", "said", "mark", "comment"),
        [
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
        ],
    )
    async def test_a_flow_is_marked_and_commented(
        self, tmp_path: Path, asked: bytes, said: bytes, mark: str, comment: str
    ) -> None:
        """A call that failed does not look like a success."""
        async with watched(tmp_path, respond=saying(said)) as it:
            await it.ask(asked)
            [flow] = it.view.flows
            assert (flow.marked, flow.comment) == (mark, comment)

    async def test_what_is_only_reported_is_marked_and_commented(self, tmp_path: Path) -> None:
        async with watched(tmp_path, shadow=["true"]) as it:
            await it.ask(call("delete_file"))
            await it.ask(LIST)
            called, listed = it.view.flows
            assert f"would be refused: {DENIED}" in called.comment
            assert "would be changed: hidden 1 tool\n  ^delete_: delete_file" in listed.comment
            assert called.marked == listed.marked == ":eyes:"
