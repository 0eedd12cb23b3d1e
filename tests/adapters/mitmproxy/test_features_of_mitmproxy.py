"""What users of mitmproxy know works behind the filter, and is judged again."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from mitmproxy.http import HTTPFlow, Response
from mitmproxy.io import FlowReader

from tests.adapters.mitmproxy.filtered import Filtered, call, filtered
from tests.mcp_upstream import RESULT, mcp_upstream, saying, tool, tool_list
from tests.raw_client import get, post, raw_client
from tests.raw_upstream import LAST_CHUNK, SSE_HEAD, TIMEOUT, Peer, RawRequest, answer, chunk
from tests.websocket import accept, connect

READ = tool("read_file")

DELETE = tool("delete_file", ', "description":"seen by nobody"')

LISTED = tool_list([READ, DELETE])

LIST = b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}'


def hosted(home: Path, *scripts: object, **options: Any) -> AbstractAsyncContextManager[Filtered]:
    """Run all of mitmdump's addons and ours."""
    given = {"fail_fast": ["false"], "tools_list": ["upstream"], **options}
    return filtered(home, *scripts, host="dump", **given)


def got(it: Filtered, text: bytes) -> bool:
    """Whether a request with this text has reached the upstream."""
    return any(text in one.head + one.body for one in it.upstream.asked)


def basic(text: str) -> bytes:
    return b"Authorization: Basic " + base64.b64encode(text.encode()) + b"\r\n"


def read_dump(path: Path) -> list[HTTPFlow]:
    with path.open("rb") as file:
        return [one for one in FlowReader(file).stream() if isinstance(one, HTTPFlow)]


async def test_proxyauth_lets_only_valid_logins_in(tmp_path: Path) -> None:
    """Also where flows are written down, with masks for credentials."""
    given: dict[str, Any] = {
        "proxyauth": "me:secret",
        "save_stream_file": str(tmp_path / "all.flow"),
    }
    async with hosted(tmp_path, **given) as it:
        refused = await it.ask(call("read_file"), basic("me:wrong"))
        assert refused.status == 401
        listed = await it.ask(LIST)
        assert (listed.status, b"read_file" in listed.body) == (401, False)
        assert (await it.ask(call("read_file"), basic("me:secret"))).body == RESULT
        assert not got(it, b"uthorization")
    assert b"secret" not in (tmp_path / "all.flow").read_bytes()


async def test_stickyauth_repeats_the_credentials(tmp_path: Path) -> None:
    given: dict[str, Any] = {"stickyauth": ".", "save_stream_file": str(tmp_path / "all.flow")}
    async with hosted(tmp_path, **given) as it:
        await it.ask(call("read_file"), b"Authorization: Bearer real\r\n")
        await it.ask(call("read_file"))
        heads = [one.head for one in it.upstream.asked if b"tools/call" in one.body]
        assert [b"Bearer real" in head for head in heads] == [True, True]
    assert b"Bearer real" not in (tmp_path / "all.flow").read_bytes()


async def test_the_operators_headers_do_not_follow_map_remote(tmp_path: Path) -> None:
    async with (
        mcp_upstream(tools=[READ], respond=saying(RESULT)) as other,
        hosted(tmp_path, upstream_headers=["X-Team: ours"]) as it,
    ):
        it.proxy.master.options.update(map_remote=[f"|.*/mcp|{other.url}/mcp"])
        assert (await it.ask(call("read_file"))).body == RESULT
        (elsewhere,) = other.asked
        assert b"ours" not in elsewhere.head
        assert elsewhere.all("host") == [other.url.removeprefix("http://")]
        assert (await it.ask(call("delete_file"))).body != RESULT
        assert len(other.asked) == 1
        it.proxy.master.options.update(map_remote=[])
        assert (await it.ask(call("read_file"))).body == RESULT
        assert got(it, b"ours")


async def test_headers_and_bodies_are_modified_and_judged_again(tmp_path: Path) -> None:
    given = {
        "modify_headers": ["|~q|X-Asked|a", "|~s|X-Said|b"],
        "modify_body": ["|~q|allowed_name|delete_file", "|~s|hello|bye"],
    }
    hello = RESULT.replace(b'"content":[]', b'"content":["hello"]')
    async with hosted(tmp_path, respond=saying(hello), **given) as it:
        said = await it.ask(call("read_file"))
        assert said.all("x-said") == ["b"]
        assert said.body == hello.replace(b"hello", b"bye")
        assert got(it, b"X-Asked: a")
        refused = await it.ask(call("allowed_name"))
        assert b"Tool not found: delete_file" in refused.body
        assert refused.all("x-said") == ["b"]
        assert not got(it, b"delete_file")


async def test_a_list_from_a_file_is_filtered(tmp_path: Path) -> None:
    file = tmp_path / "list.json"
    file.write_bytes(LISTED)
    async with hosted(tmp_path, map_local=[f"|/mcp|{file}"]) as it:
        said = await it.ask(LIST)
        assert b"read_file" in said.body
        assert b"delete_file" not in said.body


async def test_a_block_list_blocks_lists_and_calls(tmp_path: Path) -> None:
    async with hosted(tmp_path, block_list=[":~u /mcp:418"]) as it:
        assert (await it.ask(LIST)).status == 418
        assert (await it.ask(call("read_file"))).status == 418
        assert not got(it, b"read_file")


async def test_server_replay_answers_and_is_filtered(tmp_path: Path) -> None:
    dump = tmp_path / "dump.flow"
    async with hosted(tmp_path, save_stream_file=str(dump)) as it:
        assert (await it.ask(call("read_file"))).body == RESULT
    given: dict[str, Any] = {"server_replay": [str(dump)], "server_replay_ignore_port": True}
    async with hosted(tmp_path, server_replay_extra="404", **given) as it:
        assert (await it.ask(call("read_file"))).body == RESULT
        assert not got(it, b"tools/call")


class Intercepts:
    """Keeps what a user would see in mitmweb, and stops each call at a hook."""

    def __init__(self, hook: str) -> None:
        self.flows: list[HTTPFlow] = []
        self.stopped = asyncio.Event()
        setattr(self, hook, self._stop)

    def _stop(self, flow: HTTPFlow) -> None:
        flow.intercept()
        self.flows.append(flow)
        self.stopped.set()


@pytest.mark.parametrize("hook", ["requestheaders", "request", "responseheaders", "response"])
@pytest.mark.parametrize("end", ["kill", "resume"])
async def test_an_intercepted_flow_goes_on_or_ends(tmp_path: Path, hook: str, end: str) -> None:
    user = Intercepts(hook)
    async with hosted(tmp_path, user) as it:
        asking = asyncio.create_task(it.ask(call("read_file")))
        async with asyncio.timeout(TIMEOUT):
            await user.stopped.wait()
        (flow,) = user.flows
        getattr(flow, end)()
        if end == "resume":
            assert (await asking).body == RESULT
        else:
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await asking


async def test_an_edit_by_hand_is_judged(tmp_path: Path) -> None:
    user = Intercepts("request")
    async with hosted(tmp_path, user) as it:
        asking = asyncio.create_task(it.ask(call("read_file")))
        async with asyncio.timeout(TIMEOUT):
            await user.stopped.wait()
        user.flows[0].request.content = call("delete_file")
        user.flows[0].resume()
        assert b"Tool not found" in (await asking).body
        assert not got(it, b"delete_file")


async def test_a_waiting_hook_of_another_addon_holds_only_its_exchange(tmp_path: Path) -> None:
    class Waits:
        async def request(self, flow: HTTPFlow) -> None:
            if b"slowly" in (flow.request.content or b""):
                await go.wait()

    go = asyncio.Event()
    async with hosted(tmp_path, Waits()) as it, raw_client(it.proxy.port) as other:
        asking = asyncio.create_task(it.ask(call("read_file", '{"a":"slowly"}')))
        assert (await other.ask(post(call("read_file")))).body == RESULT
        assert not asking.done()
        go.set()
        assert (await asking).body == RESULT


async def test_a_dump_has_what_the_client_saw(tmp_path: Path) -> None:
    """Not what a script tried to make of it."""

    class Lists:
        def response(self, flow: HTTPFlow) -> None:
            if flow.response:
                flow.response = Response.make(200, LISTED, {"content-type": "application/json"})

    dump = tmp_path / "dump.flow"
    async with hosted(tmp_path, Lists(), save_stream_file=str(dump)) as it:
        said = await it.ask(call("read_file"))
    (flow,) = read_dump(dump)
    assert flow.response
    assert flow.response.content == said.body
    assert b"seen by nobody" not in said.body
    assert flow.request.timestamp_end
    assert flow.response.timestamp_end
    assert flow.request.timestamp_start <= flow.response.timestamp_end
    assert flow.server_conn.address


async def test_a_replayed_call_of_a_denied_tool_is_refused(tmp_path: Path) -> None:
    seen: list[HTTPFlow] = []

    class Sees:
        def response(self, flow: HTTPFlow) -> None:
            seen.append(flow)

    async with hosted(tmp_path, Sees(), upstream_headers=["X-Team: ours"]) as it:
        await it.ask(call("read_file"))
        again, other = seen[0].copy(), seen[0].copy()
        other.request.content = call("delete_file")
        it.proxy.master.commands.call("replay.client", [again, other])
        async with asyncio.timeout(TIMEOUT):
            while len(seen) < 3:
                await asyncio.sleep(0.01)
        assert seen[1].response
        assert seen[1].response.content == RESULT
        assert seen[2].response
        assert b"Tool not found" in (seen[2].response.content or b"")
        assert not got(it, b"delete_file")
        asked = [one for one in it.upstream.asked if b"tools/call" in one.body]
        assert [b"ours" in one.head for one in asked] == [True, True]
        assert all(b"ours" not in value for one in seen for _, value in one.request.headers.fields)


class Watches:
    def __init__(self) -> None:
        self.flow: HTTPFlow | None = None

    def websocket_start(self, flow: HTTPFlow) -> None:
        self.flow = flow


async def echoing(request: RawRequest, peer: Peer, heard: list[bytes]) -> None:
    end = await accept(peer.reader, peer.writer, request.head)
    with suppress(ConnectionError):
        while (message := await end.hear()) is not None:
            heard.append(message)
            await end.say(RESULT)


type Heard = list[bytes]


@asynccontextmanager
async def talking(
    home: Path, watches: Watches, **options: Any
) -> AsyncIterator[tuple[Filtered, Any, Heard]]:
    heard: Heard = []

    async def respond(request: RawRequest, peer: Peer) -> None:
        if b"websocket" in request.head.lower():
            await echoing(request, peer, heard)
        else:
            await peer.say(answer(RESULT))

    async with hosted(home, watches, respond=respond, **options) as it:
        end = await connect(it.client.reader, it.client.writer)
        yield it, end, heard


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(TIMEOUT):
        while not true():
            await asyncio.sleep(0.01)


async def test_injected_websocket_messages_are_judged(tmp_path: Path) -> None:
    watches = Watches()
    async with talking(tmp_path, watches) as (it, end, heard):
        await end.say(call("read_file"))
        assert await end.hear() == RESULT
        commands = it.proxy.master.commands
        commands.call("inject.websocket", watches.flow, False, call("delete_file"), True)
        assert b"Tool not found" in (await end.hear() or b"")
        commands.call("inject.websocket", watches.flow, True, LISTED, True)
        listed = await end.hear() or b""
        assert b"read_file" in listed
        assert b"delete_file" not in listed
        commands.call("inject.websocket", watches.flow, False, call("read_file"), True)
        assert await end.hear() == RESULT
        assert not any(b"delete_file" in one for one in heard)


async def test_a_websockets_dump_has_all_messages(tmp_path: Path) -> None:
    """What passed is there as it passed; what did not is marked as dropped."""
    watches, dump = Watches(), tmp_path / "dump.flow"
    async with talking(tmp_path, watches, save_stream_file=str(dump)) as (_, end, heard):
        for name in ("read_file", "delete_file", "read_file"):
            await end.say(call(name))
            assert await end.hear()
        await end.leave()
        flow = watches.flow
        await until(lambda: flow and flow.websocket and flow.websocket.timestamp_end)
        await until(lambda: len(heard) == 2)
    (kept,) = read_dump(dump)
    assert kept.websocket
    said = [
        (one.from_client, b"delete_file" in one.content, one.dropped)
        for one in kept.websocket.messages
    ]
    assert said == [
        (True, False, False),
        (False, False, False),
        (True, True, True),
        (False, True, False),
        (True, False, False),
        (False, False, False),
    ]
    assert kept.websocket.close_code == 1000


# What another script changes after us is judged again, and passes only if it may.

type Change = Callable[[HTTPFlow], None]

BOTH = tool_list([READ, DELETE], id="5")


class Script:
    """A script behind the filter."""

    def __init__(self, hook: str, change: Change) -> None:
        setattr(self, hook, change)


def answered(body: bytes, kind: str = "application/json") -> Change:
    def change(flow: HTTPFlow) -> None:
        flow.response = Response.make(200, body, {"content-type": kind})

    return change


def asked(body: bytes) -> Change:
    def change(flow: HTTPFlow) -> None:
        flow.request.content = body

    return change


async def test_a_request_that_becomes_another_allowed_call_passes(tmp_path: Path) -> None:
    other = call("read_file", '{"changed":true}')
    async with hosted(tmp_path, Script("request", asked(other))) as it:
        assert (await it.ask(call("read_file"))).body == RESULT
        assert [one.body for one in it.upstream.of("tools/call")] == [other]


async def test_an_answer_that_a_script_changes_passes_if_it_may(tmp_path: Path) -> None:
    other = RESULT.replace(b"[]", b'[{"type":"text","text":"changed"}]')
    async with hosted(tmp_path, Script("response", answered(other))) as it:
        assert (await it.ask(call("read_file"))).body == other


async def test_an_answer_that_becomes_an_event_stream_is_not_shown(tmp_path: Path) -> None:
    """It is there as a whole, too late to be judged event by event."""
    stream = answered(b"data: " + BOTH + b"\n\n", "text/event-stream")
    async with hosted(tmp_path, Script("response", stream)) as it:
        got = await it.ask(LIST)
        assert b"delete_file" not in got.head + got.body
        assert b'"error"' in got.body


async def test_an_answer_to_head_stays_without_a_body(tmp_path: Path) -> None:
    async with hosted(tmp_path, Script("response", answered(BOTH))) as it:
        got = await it.client.ask(get().replace(b"GET", b"HEAD"))
        assert got.status == 200
        assert (await it.ask(LIST)).body == tool_list([READ], id="5")


async def streaming(_request: RawRequest, peer: Peer) -> None:
    await peer.say(SSE_HEAD + chunk(b"data: " + RESULT + b"\n\n") + LAST_CHUNK)


def with_header(name: str, value: str) -> Change:
    def change(flow: HTTPFlow) -> None:
        assert flow.response
        flow.response.headers[name] = value

    return change


async def test_a_header_that_a_script_gives_a_stream_passes_unless_it_carries_a_tool(
    tmp_path: Path,
) -> None:
    for value, passes in (("harmless", True), ('{"name":"delete_file","inputSchema":{}}', False)):
        change = with_header("x-tools", value)
        async with hosted(tmp_path, Script("responseheaders", change), respond=streaming) as it:
            got = await it.ask(call("read_file"))
            assert bool(got.all("x-tools")) is passes
            assert RESULT in got.body


async def test_a_stream_that_a_script_calls_something_else_is_not_shown(tmp_path: Path) -> None:
    """A client would read it in another way than we have judged it."""
    change = with_header("content-type", "application/json")
    async with hosted(tmp_path, Script("responseheaders", change), respond=streaming) as it:
        got = await it.ask(call("read_file"))
        assert b"The server sent an invalid response" in got.body
        assert RESULT not in got.body
