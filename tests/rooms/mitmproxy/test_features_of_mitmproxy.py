"""What users of mitmproxy know works behind the filter, and is judged again."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from mitmproxy.http import HTTPFlow, Response
from mitmproxy.io import FlowReader, FlowWriter

from tests.filtered import DELETE, LIST, READ, Filtered, Hook, call, filtered, not_found
from tests.mcp_upstream import RESULT, mcp_upstream, saying, tool_list
from tests.proxy import SCRIPT, tool
from tests.raw_client import get, post, raw_client
from tests.raw_upstream import TIMEOUT, streaming, until

BOTH = tool_list([READ, DELETE], id="5")


def hosted(home: Path, *scripts: object, **options: Any) -> AbstractAsyncContextManager[Filtered]:
    """Run all of mitmdump's addons and ours."""
    given = {"fail_fast": ["false"], "new_tools": ["judge"], **options}
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
    file = str(tmp_path / "all.flow")
    async with hosted(tmp_path, proxyauth="me:secret", save_stream_file=file) as it:
        assert (await it.ask(call("read_file"), basic("me:wrong"))).status == 401
        listed = await it.ask(LIST)
        assert (listed.status, b"read_file" in listed.body) == (401, False)
        assert (await it.ask(call("read_file"), basic("me:secret"))).body == RESULT
        assert not got(it, b"uthorization")
    assert b"secret" not in Path(file).read_bytes()


async def test_stickyauth_repeats_the_credentials(tmp_path: Path) -> None:
    file = str(tmp_path / "all.flow")
    async with hosted(tmp_path, stickyauth=".", save_stream_file=file) as it:
        await it.ask(call("read_file"), b"Authorization: Bearer real\r\n")
        await it.ask(call("read_file"))
        heads = [one.head for one in it.upstream.asked if b"tools/call" in one.body]
        assert [b"Bearer real" in head for head in heads] == [True, True]
    assert b"Bearer real" not in Path(file).read_bytes()


async def test_upstream_auth_is_sent_and_not_shown(tmp_path: Path) -> None:
    file = str(tmp_path / "all.flow")
    async with hosted(tmp_path, upstream_auth="me:secret", save_stream_file=file) as it:
        await it.ask(call("read_file"))
        assert got(it, basic("me:secret"))
    assert basic("me:secret").split()[-1] not in Path(file).read_bytes()


async def test_the_operators_headers_do_not_follow_map_remote(tmp_path: Path) -> None:
    ours = {"upstream_headers": ["X-Team: ours"]}
    async with mcp_upstream(tools=[READ]) as other, hosted(tmp_path, **ours) as it:
        it.set(map_remote=[f"|.*/mcp|{other.url}/mcp"])
        assert (await it.ask(call("read_file"))).body == RESULT
        (elsewhere,) = other.asked
        assert b"ours" not in elsewhere.head
        assert elsewhere.all("host") == [other.url.removeprefix("http://")]
        assert (await it.ask(call("delete_file"))).body != RESULT
        assert len(other.asked) == 1
        it.set(map_remote=[])
        assert (await it.ask(call("read_file"))).body == RESULT
        assert got(it, b"ours")


async def test_headers_and_bodies_are_modified_and_judged_again(tmp_path: Path) -> None:
    given = {
        "modify_headers": ["|~q|X-Asked|a", "|~s|X-Said|b"],
        "modify_body": ["|~q|allowed_name|delete_file", "|~q|mine|yours", "|~s|hello|bye"],
    }
    hello = RESULT.replace(b'"content":[]', b'"content":["hello"]')
    async with hosted(tmp_path, respond=saying(hello), **given) as it:
        said = await it.ask(call("read_file", '{"is":"mine"}'))
        assert said.all("x-said") == ["b"]
        assert said.body == hello.replace(b"hello", b"bye")
        assert got(it, b"X-Asked: a")
        assert got(it, call("read_file", '{"is":"yours"}'))
        refused = await it.ask(call("allowed_name"))
        assert b"Tool not found: delete_file" in refused.body
        assert refused.all("x-said") == ["b"]
        assert not got(it, b"delete_file")


async def test_a_list_from_a_file_is_filtered(tmp_path: Path) -> None:
    file = tmp_path / "list.json"
    file.write_bytes(BOTH)
    async with hosted(tmp_path, map_local=[f"|/mcp|{file}"]) as it:
        assert await it.names() == ["read_file"]


async def test_an_upstream_is_connected_when_a_request_needs_it(tmp_path: Path) -> None:
    """With ``eager``, mitmproxy would do so past the filter, which closed each connection."""
    async with hosted(tmp_path, connection_strategy="eager") as it:
        assert (await it.ask(call("read_file"))).body == RESULT
        it.set(connection_strategy="eager")
        await asyncio.sleep(0)
        async with raw_client(it.port) as other:
            assert (await other.ask(post(call("read_file")))).body == RESULT


async def test_a_block_list_blocks_lists_and_calls(tmp_path: Path) -> None:
    async with hosted(tmp_path, block_list=[":~u /mcp:418"]) as it:
        assert (await it.ask(LIST)).status == 418
        assert (await it.ask(call("read_file"))).status == 418
        assert not got(it, b"read_file")


async def test_server_replay_answers_and_is_filtered(tmp_path: Path) -> None:
    dump = tmp_path / "dump.flow"
    async with hosted(tmp_path, save_stream_file=str(dump)) as it:
        assert (await it.ask(call("read_file"))).body == RESULT
    given: dict[str, Any] = {"server_replay": [str(dump)], "server_replay_extra": "404"}
    async with hosted(tmp_path, **given, server_replay_ignore_port=True) as it:
        assert (await it.ask(call("read_file"))).body == RESULT
        assert not got(it, b"tools/call")


def answered(body: bytes, kind: str = "application/json") -> Callable[[HTTPFlow], None]:
    def change(flow: HTTPFlow) -> None:
        flow.response = Response.make(200, body, {"content-type": kind})

    return change


@pytest.mark.parametrize("hook", ["requestheaders", "request", "responseheaders", "response"])
@pytest.mark.parametrize("end", ["kill", "resume", "edit"])
async def test_an_intercepted_flow_ends_or_is_judged(tmp_path: Path, hook: str, end: str) -> None:
    def stop(flow: HTTPFlow) -> None:
        flow.intercept()
        stopped.put_nowait(flow)

    stopped = asyncio.Queue[HTTPFlow]()
    async with hosted(tmp_path, Hook(hook, stop)) as it:
        asking = asyncio.create_task(it.ask(call("read_file")))
        flow = await asyncio.wait_for(stopped.get(), TIMEOUT)
        if end == "kill":
            flow.kill()
            with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
                await asking
            return
        if end == "edit":
            flow.request.content = call("delete_file")
        flow.resume()
        is_late = end == "edit" and hook == "request"
        assert (b"Tool not found" in (await asking).body) is is_late
        assert not got(it, b"delete_file")


async def test_a_waiting_hook_of_another_addon_holds_only_its_exchange(tmp_path: Path) -> None:
    async def wait(flow: HTTPFlow) -> None:
        if b"slowly" in (flow.request.content or b""):
            await go.wait()

    go = asyncio.Event()
    async with hosted(tmp_path, Hook("request", wait)) as it, raw_client(it.proxy.port) as other:
        asking = asyncio.create_task(it.ask(call("read_file", '{"a":"slowly"}')))
        assert (await other.ask(post(call("read_file")))).body == RESULT
        assert not asking.done()
        go.set()
        assert (await asking).body == RESULT


async def test_a_dump_has_what_the_client_saw(tmp_path: Path) -> None:
    """Not what a script tried to make of it."""
    dump, lists = tmp_path / "dump.flow", Hook("response", answered(BOTH))
    async with hosted(tmp_path, lists, save_stream_file=str(dump)) as it:
        said = await it.ask(call("read_file"))
    (flow,) = read_dump(dump)
    assert flow.response
    assert flow.response.content == said.body
    assert b"gone" not in said.body
    assert flow.request.timestamp_end
    assert flow.request.timestamp_start <= (flow.response.timestamp_end or 0)
    assert flow.server_conn.address


async def test_a_replayed_call_of_a_denied_tool_is_refused(tmp_path: Path) -> None:
    seen: list[HTTPFlow] = []
    sees = Hook("response", seen.append)
    async with hosted(tmp_path, sees, upstream_headers=["X-Team: ours"]) as it:
        await it.ask(call("read_file"))
        again, other = seen[0].copy(), seen[0].copy()
        other.request.content = call("delete_file")
        it.proxy.master.commands.call("replay.client", [again, other])
        await until(lambda: len(seen) == 3)
        said = [one.response and one.response.content for one in seen[1:]]
        assert said == [RESULT, not_found("delete_file")]
        assert not got(it, b"delete_file")
        asked = [one for one in it.upstream.asked if b"tools/call" in one.body]
        assert [b"ours" in one.head for one in asked] == [True, True]
        assert all(b"ours" not in value for one in seen for _, value in one.request.headers.fields)


async def test_a_replay_that_begins_at_the_start_waits_for_the_tools(tmp_path: Path) -> None:
    dump = tmp_path / "calls.flow"
    flows: list[HTTPFlow] = []
    async with hosted(tmp_path, Hook("response", flows.append)) as it:
        await it.ask(call("read_file"))
        denied = flows[0].copy()
        denied.request.content = call("delete_file")
        with dump.open("wb") as file:
            for one in (denied, flows[0]):
                FlowWriter(file).add(one)
        sets = ("--set=endpoint=/mcp", "--set=deny=^delete_")
        mode = f"--mode=reverse:{it.upstream.url}"
        before = len(it.upstream.asked)
        words = ("-s", SCRIPT, mode, *sets, "--client-replay", str(dump))
        async with tool("mitmdump", *words, home=tmp_path):
            await until(lambda: any(b"tools/call" in x.body for x in it.upstream.asked[before:]))
        assert not got(it, b"delete_file")


# What another script changes after us is judged again, and passes only if it may.


async def test_an_answer_that_becomes_an_event_stream_is_not_shown(tmp_path: Path) -> None:
    """It is there as a whole, too late to be judged event by event."""
    stream = answered(b"data: " + BOTH + b"\n\n", "text/event-stream")
    async with hosted(tmp_path, Hook("response", stream)) as it:
        got = await it.ask(LIST)
        assert b"delete_file" not in got.head + got.body
        assert b'"error"' in got.body


async def test_an_answer_to_head_stays_without_a_body(tmp_path: Path) -> None:
    async with hosted(tmp_path, Hook("response", answered(BOTH))) as it:
        assert (await it.client.ask(get().replace(b"GET", b"HEAD"))).status == 200
        assert (await it.ask(LIST)).body == tool_list([READ], id="5")


@pytest.mark.parametrize(("name", "value", "passes", "is_shown"), [
    ("x-tools", "harmless", True, True),
    ("x-tools", '{"name":"delete_file","inputSchema":{}}', False, True),
    # A client would read it in another way than we have judged it.
    ("content-type", "application/json", True, False),
])  # fmt: skip
async def test_which_headers_a_script_may_give_a_stream(
    name: str, value: str, passes: bool, is_shown: bool, tmp_path: Path
) -> None:
    def change(flow: HTTPFlow) -> None:
        assert flow.response
        flow.response.headers[name] = value

    respond = streaming(b"data: " + RESULT + b"\n\n")
    async with hosted(tmp_path, Hook("responseheaders", change), respond=respond) as it:
        got = await it.ask(call("read_file"))
    assert (value in got.all(name)) is passes
    assert (RESULT in got.body) is is_shown
    assert (b"The server sent an invalid response" in got.body) is not is_shown
