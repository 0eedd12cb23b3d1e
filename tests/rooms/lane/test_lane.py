"""The lane does what the whole way would do: both get the same, and what comes out is compared."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_tool_filter.core.conversation.policy_in_force import (
    PolicyInForce,
    needs_of,
)
from mcp_tool_filter.core.engine.client_h1 import H1Client
from mcp_tool_filter.core.engine.service import Service
from mcp_tool_filter.core.engine.wire import AnswerHead
from mcp_tool_filter.core.http.listener import Listener
from mcp_tool_filter.core.policy.config import Config
from mcp_tool_filter.rooms.edits.editor import DefinitionEditor
from mcp_tool_filter.rooms.edits.tables import parse_edits
from mcp_tool_filter.rooms.lane import lane as lane_module
from mcp_tool_filter.rooms.lane.lane import Lane, is_plain_result, may_take, plain_call
from tests.attacks.answers import ATTACKS as HOSTILE_ANSWERS
from tests.attacks.hostile_requests import ATTACKS
from tests.core.engine.table import Client, Table
from tests.raw_client import post
from tests.raw_upstream import SSE_HEAD, answer, chunk
from tests.rooms.lane.both_ways import (
    ANSWERS,
    CALL,
    HEAD,
    MEANWHILE,
    META,
    RESULT,
    STYLES,
    TOOLS,
    compared,
    heard,
    ready,
    says,
)
from tests.rows import each_row


def test_a_plain_call_takes_the_lane_both_ways() -> None:
    it = ready(has_lane=True)
    it.client.says(post(CALL, headers=HEAD))
    [lane] = it.table.service.lanes
    assert isinstance(lane, Lane)
    assert not it.table.service.open
    it.table.link.says(answer(RESULT))
    assert it.client.got.endswith(RESULT)
    assert not it.table.service.lanes
    assert (it.counted.messages, it.counted.calls["read"]) == (8, 2)


PLAIN = [
    CALL,
    CALL.replace(b',"arguments":{"a":1}', b""),
    CALL.replace(b":7,", b':"a-1",'),
    CALL.replace(b'{"a":1}', rb'{"a":"\u00e9\n\\u0069"}'),
    CALL.replace(b'{"a":1}}', b'{},"_meta":{"progressToken":3}}'),
    CALL.replace(b'{"a":1}', b'{"n":[{"name":"wipe"},{"a":1,"a":2}],"t":"\xc3\xa9\xe2\x80\xa8"}'),
    json.dumps(json.loads(CALL)).encode(),
    b'{"method":"tools/call","params":{"arguments":{},"name":"read"},"id":7,"jsonrpc":"2.0"}',
]


@pytest.mark.parametrize("body", PLAIN)
def test_plain_calls_take_the_lane(body: bytes) -> None:
    id = json.dumps(json.loads(body)["id"]).encode()
    taken, whole = compared(body, says(answer(RESULT.replace(b":7,", b":" + id + b","))))
    assert taken
    assert whole["upstream"][-1].endswith(b"\r\n\r\n" + body)  # type: ignore[index]


@pytest.mark.parametrize("meta", [
    META,
    META.replace(b"{", b'{"progressToken":1,', 1),
    META[:-1] + b',"progressToken":"a"}',
    META.replace(b'"version":"1"', b'"version":"tools/call"'),
], ids=range(4))  # fmt: skip
def test_a_client_without_a_session_takes_the_lane(meta: bytes) -> None:
    style = replace(STYLES["2026-07-28"], meta=meta)
    taken, whole = compared(CALL, says(answer(RESULT)), style=style)
    assert taken
    assert whole["upstream"][-1].endswith(b"\r\n\r\n" + style.said(CALL))  # type: ignore[index]


@each_row("meta", [
    META[:-1] + b',"progressToken":1,"io.modelcontextprotocol/server-variant":"x"}',
    META[:-1] + b',"io.modelcontextprotocol/server-variant":"x","progressToken":1}',
    META.replace(b'"version":"1"', b'"version":"1","progressToken":1'),
    META.replace(b'"c"', b'"other"'),
    META.replace(b'"form":{}', b""),
    META.replace(b"}", b',"roots":{}}', 1),
    META[:-1] + b',"io.modelcontextprotocol/logLevel":{"method":"tools/call",'
    b'"params":{"name":"wipe"}}}',
    META[:-1] + b',"io.modelcontextprotocol/protocolVersion":"2026-07-28"}',
])  # fmt: skip
def test_another_client_without_a_session_goes_the_whole_way(meta: bytes) -> None:
    """Its list is not known yet, or it may say more than that."""
    style = STYLES["2026-07-28"]
    taken, _ = compared(style.said(CALL).replace(META, meta), says(answer(RESULT)), style=style)
    assert not taken


NOT_PLAIN = [
    CALL.replace(b'"read"', b'"wipe"'),
    CALL.replace(b'"read"', b'"unknown"'),
    CALL.replace(b'"read"', b'"re\\u0061d"'),
    CALL.replace(b'"read"', b'"wipe","name":"read"'),
    CALL.replace(b'"read"', b'"read","name":"wipe"'),
    CALL.replace(b'"name"', b'"n\\u0061me"'),
    CALL.replace(b'"params":{', b'"params":{"name":"wipe"},"params":{'),
    CALL.replace(b'"params":{', b'"Params":{"name":"wipe"},"params":{'),
    CALL.replace(b'"id":7', b'"id":1,"id":7'),
    CALL.replace(b'"id":7,', b""),
    CALL.replace(b'"id":7', b'"id":null'),
    CALL.replace(b'"id":7', b'"id":7.0'),
    CALL.replace(b'"id":7', b'"id":07'),
    CALL.replace(b'"id":7', b'"id":"\xff"'),
    CALL.replace(b"tools/call", b"tools/list"),
    CALL.replace(b"tools/call", b"tools/list").replace(b":1}", b':"tools/call"}'),
    CALL.replace(b"tools/call", b"completion").replace(b":1}", b':"tools/call"}'),
    CALL.replace(b"tools/call", b"tools\\/call"),
    CALL.replace(b'{"a":1}', b"[]"),
    CALL.replace(b'{"a":1}', b"null"),
    CALL.replace(b'{"a":1}', b'{"a":"\\ud800"}'),
    CALL.replace(b'{"a":1}', b'{"a":NaN}'),
    CALL.replace(b'{"a":1}', b'{"a":"\xff"}'),
    CALL.replace(b'{"a":1}', b'{"a":"\x01"}'),
    CALL.replace(b'{"a":1}', b'{"a":%b1%b}' % (b"[" * 200, b"]" * 200)),
    CALL.replace(b'{"a":1}', b'{"a":1},"task":{}'),
    CALL.replace(b'{"a":1}', b'{"a":1},"_meta":{"io.modelcontextprotocol/variant":{}}'),
    *(
        CALL.replace(b'{"a":1}', b'{"a":1},"_meta":' + meta)
        for meta in (
            META.replace(b'"c"', b'"\\u0063"'),
            META.replace(b'"c"', b'"\xc3\xa9"'),
            META.replace(b'"c"', b'"%b"' % (b"c" * 5000)),
            META.replace(b"{", b'{"io.modelcontextprotocol/clientInfo":{},', 1),
            META.replace(b"{", b'{"io.modelcontextprotocol/server-variant":"x",', 1),
            META.replace(b"{", b'{"traceparent":"00-1-2-01",', 1),
            META.replace(b'"form"', b'"method":"tools/call","params":{"name":"wipe"},"form"'),
            META.replace(b"{", b'{"progressToken":1.5,', 1),
            META.replace(b"{", b'{"progressToken":1,"progressToken":2,', 1),
            META.replace(b'"version"', b'"progressToken":1,"version"'),
            META[:-1],
            b"null",
            b"[]",
            b"1",
        )
    ),
    CALL.replace(b'{"a":1}', b'{"a":"%b"}' % (b"x" * 300_000)),
    b"[" + CALL + b"]",
    b"\xef\xbb\xbf" + CALL,
    CALL + b"\n" + CALL,
    CALL[:-1],
    b" " + CALL,
    CALL.replace(b'"2.0"', b'"2.0","jsonrpc":"2.0"'),
    CALL.replace(b'"2.0"', b'"1.0"'),
    CALL.replace(b'"2.0"', b"2.0"),
]


@pytest.mark.parametrize("body", NOT_PLAIN, ids=range(len(NOT_PLAIN)))
def test_all_other_calls_go_the_whole_way(body: bytes) -> None:
    taken, _ = compared(body, says(answer(RESULT)))
    assert not taken


def test_a_name_is_not_compared_as_it_is_written() -> None:
    """One tool's name is written as the call of another one may be."""
    for called in (rb"w\u0069pe", rb"w\\u0069pe"):
        taken, whole = compared(
            CALL.replace(b"read", called), says(answer(RESULT)), more=rb"w\\u0069pe"
        )
        assert not taken
        assert (called in whole["upstream"][-1]) is (called.count(b"\\") == 2)  # type: ignore[index]


@each_row("name", ANSWERS)
def test_whatever_answers_an_edited_call_comes_out_the_same(name: str) -> None:
    editor = DefinitionEditor(parse_edits({"read": {"title": "T", "fix": {"b": 2}}}))
    taken, whole = compared(CALL, says(ANSWERS[name]), editor=editor)
    assert taken
    assert b'{"a":1,"b":2}' in whole["upstream"][0]  # type: ignore[index]


def test_definitions_in_a_result_are_edited() -> None:
    editor = DefinitionEditor(parse_edits({"read": {"title": "T"}}))
    tools = TOOLS[TOOLS.index(b"[") : TOOLS.index(b',{"name":"wipe"')] + b"]"
    for said in (tools, tools.replace(b"name", rb"n\u0061me"), b"[]", b'"tools"'):
        result = RESULT.replace(b"}]", b'}],"structuredContent":{"tools":%b}' % said)
        taken, _ = compared(CALL, says(answer(result)), editor=editor)
        assert taken


@pytest.mark.parametrize("style", STYLES)
@each_row("name", ANSWERS)
def test_whatever_answers_a_plain_call_comes_out_the_same(name: str, style: str) -> None:
    raw = ANSWERS[name]
    for pieces in (1, 3):
        size = -(-len(raw) // pieces)
        acts = [says(raw[at : at + size]) for at in range(0, len(raw), size)]
        taken, _ = compared(CALL, *acts, style=STYLES[style])
        assert taken
        compared(CALL, *acts, lambda table, _client: table.link.ends(), style=STYLES[style])


@pytest.mark.parametrize("answered", ["result", "error", "event", "a list", "cut", "not JSON"])
@pytest.mark.parametrize("name", MEANWHILE)
def test_whatever_happens_to_a_plain_call_comes_out_the_same(name: str, answered: str) -> None:
    def ended(table: Table, _client: Client) -> None:
        if table.link.is_open:
            table.link.says(ANSWERS[answered])

    taken, _ = compared(CALL, MEANWHILE[name], ended, lambda table, client: client.leaves())
    assert taken


EVENT = chunk(b"data: " + RESULT + b"\n\n")


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("begun", [SSE_HEAD, SSE_HEAD + EVENT], ids=["its head", "its event"])
@each_row("name", MEANWHILE)
def test_whatever_happens_within_a_stream_comes_out_the_same(
    name: str, begun: bytes, style: str
) -> None:
    def ended(table: Table, _client: Client) -> None:
        if table.link.is_open:
            rest = EVENT if begun is SSE_HEAD else b""
            table.link.says(rest + b"0\r\n\r\n")

    acts = [says(begun), MEANWHILE[name], ended, lambda _table, client: client.leaves()]
    taken, _ = compared(CALL, *acts, style=STYLES[style])
    assert taken


def test_a_plain_event_takes_the_lane_both_ways() -> None:
    it = ready(has_lane=True)
    it.client.says(post(CALL, headers=HEAD))
    for raw in (SSE_HEAD, EVENT):
        it.table.link.says(raw)
        assert not it.table.service.open
    assert it.client.got.endswith(EVENT)
    it.table.link.says(b"0\r\n\r\n")
    assert it.client.got.endswith(b"0\r\n\r\n")
    assert not it.table.service.lanes


def later(table: Table, _client: Client) -> None:
    while table.connecting:
        table.open_for(table.connecting.pop())


@pytest.mark.parametrize("name", MEANWHILE)
def test_while_it_waits_for_a_connection_the_same_may_happen(name: str) -> None:
    seen = []
    for has_lane in (True, False):
        it = ready(has_lane=has_lane)
        it.table.idle.clear()
        it.table.connects_later = True

        def ended(table: Table, _client: Client) -> None:
            if len(table.links) > 1 and table.link.is_open and table.link.got:
                table.link.says(answer(RESULT))

        acts = [MEANWHILE[name], later]
        if name != "the client reads slowly":  # then the upstream must be slow
            acts.append(ended)
        if name == "the upstream leaves":
            acts = [later, MEANWHILE[name]]
        seen.append(heard(it, CALL, acts, HEAD))
        assert it.lanes == has_lane + (has_lane and name == "more requests come" and it.lanes == 2)
    assert seen[0] == seen[1]


def test_an_unreachable_upstream_is_told_as_usual() -> None:
    for refuses in (True, False):

        def act(table: Table, _client: Client, refuses: bool = refuses) -> None:
            table.refuses = refuses

        it = [ready(has_lane=has_lane) for has_lane in (True, False)]
        for one in it:
            one.table.idle.clear()
            one.table.refuses = refuses
        short, whole = (heard(one, CALL, [], HEAD) for one in it)
        assert short == whole


# At random


NAMES = ["read", "wipe", "unknown", "re ad", "", "READ"]
SPACES = st.sampled_from([b"", b"", b"", b" ", b"\n"])
VALUES = st.sampled_from([
    b"{}", b'{"a":1}', b"[]", b"null", b"1", b'"x"', b'{"name":"wipe"}', b'{"a":{"b":[1,2]}}',
    b'{"a":"\\ud83d\\ude00"}', b'{"a":1,"a":2}', b'{"a":-0}', b'{"a":1e999}', b'{"a":"\\/"}',
    b"{\"a\":'x'}", b"{a:1}", b'{"a":1,}', b'{"a":' + b"9" * 5000 + b"}", b'{"a":"\x7f"}',
    b'{"a":"\xed\xa0\x80"}', b'{"a":"\xf0\x9f\x98\x80"}', b"true", b'{"progressToken":1}',
    b'{"progressToken":"x","a":1}',
])  # fmt: skip
KEYS = st.sampled_from([
    b'"jsonrpc"', b'"id"', b'"method"', b'"params"', b'"name"', b'"arguments"', b'"_meta"',
    b'"Name"', b'"nam\\u0065"', b'"task"', b'"result"', b'""',
])  # fmt: skip


@st.composite
def objects(draw: st.DrawFn, members: Sequence[tuple[bytes, st.SearchStrategy[bytes]]]) -> bytes:
    """An object with these members, mostly each once, sometimes others or in another spelling."""
    chosen = [(key, draw(value)) for key, value in members if draw(st.integers(0, 19))]
    if not draw(st.integers(0, 3)):
        chosen.append((draw(KEYS), draw(VALUES)))
    if draw(st.booleans()):
        chosen = draw(st.permutations(chosen))
    space = draw(SPACES)
    inside = (b"," + space).join(key + space + b":" + space + value for key, value in chosen)
    return b"{" + space + inside + space + b"}"


IDS = st.sampled_from([b"7", b'"7"', b'"a b"', b"1.0", b"null", b"-1", b"99999999999999999", b"7"])
PARAMS = objects([
    (b'"name"', st.sampled_from([json.dumps(name).encode() for name in NAMES[:1] * 5 + NAMES])),
    (b'"arguments"', VALUES),
])  # fmt: skip
CALLS = objects([
    (b'"jsonrpc"', st.sampled_from([b'"2.0"'] * 5 + [b'"1.0"', b"2"])), (b'"id"', IDS),
    (b'"method"', st.sampled_from([b'"tools/call"'] * 7 + [b'"tools/list"', b'"ping"'])),
    (b'"params"', PARAMS),
])  # fmt: skip
RESULTS = objects([
    (b'"content"', st.sampled_from([b"[]", b'[{"type":"text","text":"x"}]', b"{}", b"1"])),
    (b'"isError"', st.sampled_from([b"false", b"true", b"null"])),
])  # fmt: skip
REPLIES = objects([(b'"jsonrpc"', st.just(b'"2.0"')), (b'"id"', IDS), (b'"result"', RESULTS)])


@settings(max_examples=150, deadline=None)
@given(call=CALLS, reply=REPLIES, style=st.sampled_from(list(STYLES)), is_event=st.booleans())
def test_random_calls_and_results_come_out_the_same(
    call: bytes, reply: bytes, style: str, is_event: bool
) -> None:
    said = SSE_HEAD + chunk(b"data: " + reply + b"\n\n") if is_event else answer(reply)
    compared(call, says(said), style=STYLES[style])


@settings(max_examples=150, deadline=None)
@given(
    at=st.integers(0, len(CALL)), gone=st.integers(0, 3), new=st.binary(max_size=3),
    there=st.integers(0, len(RESULT)), lost=st.integers(0, 3), other=st.binary(max_size=3),
)  # fmt: skip
def test_damaged_calls_and_results_come_out_the_same(
    at: int, gone: int, new: bytes, there: int, lost: int, other: bytes
) -> None:
    reply = RESULT[:there] + other + RESULT[there + lost :]
    compared(CALL[:at] + new + CALL[at + gone :], says(answer(reply)))


@settings(max_examples=100, deadline=None)
@given(
    at=st.integers(0, len(META)), gone=st.integers(0, 3), new=st.binary(max_size=3),
    there=st.integers(0, len(RESULT)), lost=st.integers(0, 3), other=st.binary(max_size=3),
)  # fmt: skip
def test_damaged_metas_and_events_come_out_the_same(
    at: int, gone: int, new: bytes, there: int, lost: int, other: bytes
) -> None:
    event = b"event: message\ndata: " + RESULT + b"\n\n"
    event = event[:there] + other + event[there + lost :]
    style = STYLES["2026-07-28"]
    call = style.said(CALL).replace(META, META[:at] + new + META[at + gone :])
    compared(call, says(SSE_HEAD + chunk(event) + b"0\r\n\r\n"), style=style)


def test_no_attack_comes_through_the_lane() -> None:
    """Each body of the attacks, in a session, behind a head that is remembered."""
    bodies = {one.raw.partition(b"\r\n\r\n")[2] for one in ATTACKS}
    renamed = {one.replace(b"wipe_disk", b"wipe").replace(b"read_file", b"read") for one in bodies}
    for body in sorted(renamed, key=len):
        if 0 < len(body) < 20_000 and b"tools/call" in body:
            _, whole = compared(body, says(answer(RESULT)))
            assert not (plain_call(body) and b"wipe" in str(whole["upstream"]).encode())


@pytest.mark.rest
def test_no_hostile_answer_comes_through_the_lane() -> None:
    """What an upstream may say to anything, as its answer to a plain call."""
    said = {(tuple(map(as_to_the_call, one.said)), one.ends) for one in HOSTILE_ANSWERS}
    for pieces, ends in sorted(said):
        if len(pieces) > 3 or sum(map(len, pieces)) > 20_000:
            continue
        acts = [says(piece) for piece in pieces]
        if ends:
            acts.append(ends_the_link)
        taken, whole = compared(CALL, *acts)
        assert taken
        assert b"secret-of-wipe" not in whole["client"]  # type: ignore[operator]


def ends_the_link(table: Table, _client: Client) -> None:
    table.link.ends()


def as_to_the_call(said: bytes) -> bytes:
    said = said.replace(b"wipe_disk", b"wipe").replace(b"read_file", b"read")
    return said.replace(b'"id":1,', b'"id":7,').replace(b'"id": 1,', b'"id": 7,')


# What the lane must know


HARMLESS: dict[type[Any], str] = {
    # It reads them, or they cannot concern a plain call. (Hooks and links declare what they need.)
    Service: "listener authority effects name seats shares_seats limits open lanes "
    "is_draining _told",
    Listener: "upstream policy names keeps_host is_forward called mount sessions _hash_key legacy "
    "cors logins",
    PolicyInForce: "config fetched clock reads_in_steps held kinds judged _whole",
    Config: "choice of_catalog catalog strict shadow judges_new_tools endpoint upstream_headers "
    "uses_login login_through shows_secrets connection_timeout tool_list_timeout limits "
    "allowed_hosts hosts only_mcp fail_fast drain max_clients rules edits edit_tables editor lock "
    "audit metrics otel dashboard takes_news",
}


@pytest.mark.parametrize("kind", HARMLESS)
def test_a_new_hook_is_known_to_the_lane(kind: Any) -> None:
    """Whoever adds one declares what it needs to see; of a value, it is decided here."""
    declared = needs_of(kind).keys()
    assert {one.name for one in dataclasses.fields(kind)} - declared == set(HARMLESS[kind].split())
    hooks = (str(one.type) for one in dataclasses.fields(kind) if one.name not in declared)
    assert not any(hook.startswith("Callable[[") for hook in hooks if "float" not in hook)


CLOSED: dict[str, Callable[[Table], object]] = {
    "observer": lambda table: setattr(table.listener.policy, "observe_plain", None),
    "forward": lambda table: setattr(table.listener, "is_forward", True),
    "host": lambda table: setattr(table.listener, "keeps_host", True),
    "stream": lambda table: table.listener.legacy.endpoints.update({"/m": []}),
    **{
        name: lambda table, name=name: setattr(table.service, name, object())  # type: ignore[misc]
        for name, needs in needs_of(Service).items() if needs
    },
    **{
        name: lambda table, name=name: setattr(  # type: ignore[misc]
            table.listener.policy, name, (object(),)
        )
        for name, needs in needs_of(PolicyInForce).items() if needs
    },
}  # fmt: skip


@pytest.mark.parametrize("name", CLOSED)
def test_whoever_wants_to_see_more_closes_the_lane(name: str) -> None:
    it = ready(has_lane=True)
    assert may_take(it.table.service)
    CLOSED[name](it.table)
    assert not may_take(it.table.service)


@each_row("name", CLOSED)
def test_whoever_comes_meanwhile_sees_the_answer(name: str) -> None:
    it = ready(has_lane=True)
    it.client.says(post(CALL, headers=HEAD))
    [lane] = it.table.service.lanes
    assert isinstance(lane, Lane)
    head = AnswerHead(200, b"OK", ())
    assert lane._is_open_for(head)
    CLOSED[name](it.table)
    assert not lane._is_open_for(head)


def test_another_observer_does_not_hear_of_the_end_alone() -> None:
    it = ready(has_lane=True)
    it.client.says(post(CALL, headers=HEAD))
    [lane] = it.table.service.lanes
    assert isinstance(lane, Lane)
    it.table.listener.policy.observe_plain = Mock()
    assert not lane._is_open_for(AnswerHead(200, b"OK", ()))


def test_these_hooks_close_the_lane() -> None:
    """A declaration that is wrong would open it."""
    assert CLOSED.keys() >= {
        "before_sending", "before_answering", "rewrite_body", "note_over", "connect", "is_ending",
        "learns_logins", "links", "propagate", "keeps_requests",
    }  # fmt: skip


@pytest.mark.parametrize(
    "options", [{"shadow": "true"}, {"paths": "mcp"}, {"message_limit": "100KB"}]
)
def test_options_that_need_the_whole_way_close_the_lane(options: dict[str, Any]) -> None:
    assert not may_take(ready(has_lane=True, **options).table.service)


@pytest.mark.parametrize("head", [
    HEAD.replace(b"s1", b"s2"), HEAD + b"Authorization: Bearer x\r\n",
    HEAD + b"Mcp-Name: wipe\r\n", HEAD + b"Mcp-Method: tools/list\r\n",
    HEAD + b"Mcp-Name: =?base64?cmVhZA==?=\r\n", HEAD + b"Mcp-Name: Read\r\n",
    HEAD + b"X-User: ann\r\n", HEAD + b"Content-Encoding: gzip\r\n", HEAD + b"Origin: null\r\n",
])  # fmt: skip
def test_other_heads_go_the_whole_way(head: bytes) -> None:
    it = ready(has_lane=True)
    for _ in range(3):
        it.client.says(post(CALL, headers=head))
        if it.table.link.got.endswith(CALL):
            it.table.link.says(answer(RESULT))
    assert it.lanes == 0


def test_a_bug_in_the_lane_lets_the_call_go_the_whole_way(monkeypatch: pytest.MonkeyPatch) -> None:
    it = ready(has_lane=True)
    monkeypatch.setattr(lane_module, "plain_call", Mock(side_effect=RuntimeError("a bug")))
    it.client.says(post(CALL, headers=HEAD))
    it.table.link.says(answer(RESULT))
    assert it.client.got.endswith(RESULT)
    assert it.lanes == 0


@pytest.mark.parametrize("where", ["is_plain_result", "fields_of", "respond_plainly"])
def test_a_bug_behind_the_lane_lets_no_answer_pass(
    monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    it = ready(has_lane=True)
    holder = H1Client if hasattr(H1Client, where) else lane_module
    monkeypatch.setattr(holder, where, Mock(side_effect=RuntimeError("a bug")))
    it.client.says(post(CALL, headers=HEAD))
    it.table.link.says(answer(RESULT.replace(b'"x"', b'"secret"')))
    assert b"secret" not in it.client.got
    assert not it.client.is_open
    assert not it.table.service.exchanges


def test_what_is_plain_is_said_in_bytes() -> None:
    assert plain_call(CALL) == (b"7", "read", b"", None, ARGUMENTS)
    assert is_plain_result(RESULT, b"7")
    assert not is_plain_result(RESULT, b"8")
    for key in (rb'"cont\u0065nt"', b'"content":[],"content"', b'"content" ', b'"content":1,"x"'):
        assert not is_plain_result(RESULT.replace(b'"content"', key), b"7")
    spaced = json.dumps(json.loads(RESULT)).encode()
    for raw in (spaced, spaced.replace(b'"text": "x"', b'"text":"x"')):
        assert is_plain_result(raw, b"7")
    assert not is_plain_result(spaced.replace(b'"content": ', b'"content":  '), b"7")
    style = STYLES["2026-07-28"]
    said = style.said(CALL)
    assert plain_call(said) == (
        b"7", "read", META, ('{"elicitation":{"form":{}}}', NAMED), ARGUMENTS,
    )  # fmt: skip
    for name in (b"c" * 5000, rb"\\", b"\xc3\xa9"):  # it is remembered, and most are plain
        assert plain_call(said.replace(b'"c"', b'"%b"' % name)) is None
    for more in (b',"traceparent":"00-1-2-01"}', b"," + META[1:]):
        assert plain_call(style.said(CALL).replace(META, META[:-1] + more)) is None


ARGUMENTS = b'{"a":1}'
NAMED = '{"name":"c","version":"1"}'
