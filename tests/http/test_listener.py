"""One listener: what becomes of the HTTP that comes by, without a host."""

from __future__ import annotations

import gzip
import json
import random
import zlib
from base64 import b64encode
from collections.abc import Callable

import brotli
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_tool_filter.conversation.conversation import Conversation
from mcp_tool_filter.conversation.fetched import Fetched
from mcp_tool_filter.conversation.judged import Judged
from mcp_tool_filter.errors import FetchFailed
from mcp_tool_filter.http.exchange import Answered, HttpExchange, Passed
from mcp_tool_filter.http.head import Head
from mcp_tool_filter.http.listener import Listener, open_listener
from mcp_tool_filter.policy.config import parse_config
from mcp_tool_filter.policy.verdict import Drop, Forward, Reply, Rewrite, Verdict
from mcp_tool_filter.protocol.messages import ids_in
from mcp_tool_filter.protocol.revisions import R2025_06_18, R2026_07_28, Transport
from tests.make import (
    answering,
    asking,
    at_once,
    calling,
    definition,
    event,
    head,
    listing,
    text_of,
)

JSON, SSE = "application/json", "text/event-stream"
BOTH = {"accept": f"{JSON}, {SSE}", "content_type": JSON}
RM = definition("rm").decode()
INITIALIZE = asking("initialize", id="0")
INITIALIZED = answering(f'{{"protocolVersion":"{R2025_06_18}","capabilities":{{}}}}', id="0")
MODERN = asking(
    "tools/list",
    params=f'{{"_meta":{{"io.modelcontextprotocol/protocolVersion":"{R2026_07_28}"}}}}',
)


def fetched(*pages: bytes, revision: str = R2025_06_18, sessions: bool = True) -> Fetched:
    return Fetched(
        transport=Transport.STREAMABLE,
        revision=revision,
        endpoint="/mcp",
        server_name="server",
        server_version="1",
        sessions=sessions,
        pages=pages or (listing("read", "rm"),),
    )


def listener(
    *pages: bytes, revision: str = R2025_06_18, sessions: bool = True, message_limit: str = "10MB"
) -> Listener:
    """Open a listener before an upstream that has ``read`` and the denied ``rm``."""
    return open_listener(
        upstream="http://127.0.0.1:3000",
        config=parse_config(deny=["^rm"], message_limit=message_limit),
        fetched=fetched(*pages, revision=revision, sessions=sessions),
        clock=lambda: 0.0,
    )


def ask(raw: bytes, to: Listener | None = None, **headers: str) -> Passed | Answered:
    return send(to or listener(), head(**{**BOTH, **headers}), raw)


def ask_at(target: str, raw: bytes, to: Listener | None = None) -> Passed | Answered:
    return send(to or listener(), head("POST", target, **BOTH), raw)


def send(door: Listener, asking_so: Head, raw: bytes) -> Passed | Answered:
    """Let a request come in; nothing that is decided here has to wait."""
    outcome: Passed | Answered = at_once(door.judge_request(asking_so, raw))
    return outcome


def answer(
    door: Listener, exchange: HttpExchange, status: int, kind: str, coding: str, raw: bytes
) -> Answered | None:
    """Let the upstream answer it."""
    answered: Answered | None = at_once(door.judge_answer(exchange, status, kind, coding, raw))
    return answered


def waiting_for(door: Listener, *asked: bytes) -> HttpExchange:
    """Begin an exchange in which these requests wait."""
    exchange = door.unasked()
    for raw in asked:
        exchange.conversation.from_client(raw)
    return exchange


def say(socket: Conversation, raw: bytes, from_client: bool) -> Verdict:
    """Say something on a WebSocket."""
    judge = socket.from_client if from_client else socket.judge_from_upstream
    judged: Judged = at_once(judge(raw))
    return judged.verdict


def asked(raw: bytes, to: Listener, **headers: str) -> HttpExchange:
    outcome = ask(raw, to, **headers)
    assert isinstance(outcome, Passed)
    return outcome.exchange


def hear(
    raw: bytes,
    to: bytes = asking("ping"),
    door: Listener | None = None,
    *,
    status: int = 200,
    kind: str = JSON,
    coding: str = "",
) -> Answered | None:
    """Let the upstream answer a request with these bytes."""
    door = door or listener()
    return answer(door, asked(to, door), status, kind, coding, raw)


def message_of(outcome: Passed | Answered | None) -> tuple[int, object, int]:
    """Return the status of an answer of ours, the id it is for, and its error code."""
    assert isinstance(outcome, Answered)
    body = json.loads(outcome.body)
    return outcome.status, body["id"], body["error"]["code"]


# Requests


@pytest.mark.parametrize(
    "raw",
    [
        calling("read"),
        calling(
            "read", id='"a"', arguments='{"name":"rm","NAME":1,"name":2,"n":' + "9" * 5000 + "}"
        ),
        calling("read", arguments='{"x":"\\ud800","__proto__":{"name":"rm"},"y":1.00,"z":-0}'),
        calling("read", arguments="[" * 125 + "]" * 125),
        b' {"params" :{"name":"\\u0072ead"}, "method":"tools\\/call","id":1.0,"jsonrpc":"2.0"}\n',
        '{"jsonrpc":"2.0","id":"\u2028","method":"prompts/get","params":{"name":"rm"}}'.encode(),
        b'{"jsonrpc":"2.0","method":"notifications/initialized"}',
        answering('{"role":"assistant","content":{"type":"text","text":"x"}}', id="9"),
        b"[" + asking("ping") + b"," + calling("read", id="2") + b"]",
        asking("tools/list", params='{"cursor":"x"}'),
    ],
)
def test_an_honest_request_goes_on_as_it_came(raw: bytes) -> None:
    outcome = ask(raw)
    assert isinstance(outcome, Passed)
    assert outcome.body is None


@pytest.mark.parametrize("target", ["/mcp", "/mcp/", "/MCP", "//mcp", "/mcp?x", "/any", "/", "*"])
@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH"])
def test_a_denied_call_is_not_found_on_any_path(target: str, method: str) -> None:
    """An older endpoint may stand beside the new one."""
    outcome = send(listener(), head(method, target, content_type=JSON), calling("rm"))
    assert message_of(outcome) == (200, 1, -32601)


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "", "text/html"]
)
def test_a_denied_call_is_not_found_under_any_label(kind: str) -> None:
    assert message_of(ask(calling("rm"), content_type=kind)) == (200, 1, -32601)


def test_a_denied_call_nobody_waits_for_is_swallowed() -> None:
    raw = b'{"jsonrpc":"2.0","method":"tools/call","params":{"name":"rm"}}'
    assert ask(raw) == Answered(202)


ATTACKS = [
    b"",
    b"\xef\xbb\xbf" + calling("rm"),
    calling("rm").decode().encode("utf-16"),
    calling("rm").decode().encode("utf-16-le"),
    calling("rm").decode().encode("utf-32"),
    calling("rm").decode().encode("utf-7") + b"+-",
    calling("rm") + calling("rm"),
    asking("ping") + b"\n" + calling("rm"),
    asking("ping") + b"\0" + calling("rm"),
    b"[" + asking("ping") + b",[" + calling("rm") + b"]]",
    b'{"0":' + calling("rm") + b"}",
    calling("rm")[:-1] + b',"method":"ping"}',
    calling("rm")[:-1] + b',"x":NaN}',
    calling("rm")[:-1] + b",}",
    calling("rm") + b"//",
    b"/**/" + calling("rm"),
    calling("rm").replace(b'"', b"'"),
    calling("rm").replace(b"tools/call", b"Tools/Call"),
    calling("rm").replace(b'"name"', b'"Name"'),
    calling("rm").replace(b'"name":"rm"', b'"name":["rm"]'),
    calling("rm").replace(b'"name":"rm"', b'"name":"read","name":"rm"'),
    calling("rm").replace(b'"name":"rm"', b'"name":"rm\\ud800"'),
    calling("rm").replace(b'"params"', b'"Params"'),
    calling("rm").replace(b'"params"', b'"params":{"name":"read"},"param\xc5\xbf"'),
    calling("rm").replace(b'"method"', b'"method":"ping","method\\u0000"'),
    calling("rm").replace(b'"2.0"', b"2.0"),
    calling("rm").replace(b'"jsonrpc":"2.0",', b""),
    b"jsonrpc=2.0&method=tools/call",
    b"--x\r\ncontent-type: application/json\r\n\r\n" + calling("rm") + b"\r\n--x--",
    b"data: " + calling("rm") + b"\n\n",
    b"Content-Length: 99\r\n\r\n" + calling("rm"),
    b"<methodCall><methodName>tools/call</methodName></methodCall>",
    b"jsonrpc: '2.0'\nmethod: tools/call\n",
    b'"' + calling("rm").replace(b'"', b'\\"') + b'"',
    b"\x82\xa6method\xaatools/call",
]


@pytest.mark.parametrize("raw", ATTACKS, ids=ascii)
@pytest.mark.parametrize("target", ["/mcp", "/other"])
def test_what_some_server_takes_for_a_call_is_refused(raw: bytes, target: str) -> None:
    outcome = ask_at(target, raw)
    refused = isinstance(outcome, Answered) and (outcome.status, ids_in(outcome.body)) != (200, [])
    assert refused or not raw


@pytest.mark.parametrize(
    "headers",
    [
        {"mcp_method": "tools/call"},
        {"mcp_name": "rm"},
        {"mcp_method": "ping", "mcp_name": "rm"},
        {"mcp_method": "tools/call", "mcp_name": "=?base64?cm0=?="},
    ],
)
def test_headers_that_say_something_else_are_refused_by_their_own_code(
    headers: dict[str, str],
) -> None:
    assert message_of(ask(asking("ping"), None, **headers)) == (400, 1, -32020)


@pytest.mark.parametrize("raw", [b"", b"{}"])
def test_headers_without_a_message_are_refused(raw: bytes) -> None:
    assert message_of(ask(raw, mcp_method="tools/call", mcp_name="rm")) == (400, None, -32600)


def test_a_refusal_goes_to_the_id_if_there_is_no_doubt_about_it() -> None:
    assert message_of(ask(asking("Tools/Call", id='"a"'))) == (400, "a", -32600)


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS", "DELETE"])
@pytest.mark.parametrize("raw", [calling("read"), b"x", gzip.compress(b"", mtime=0)])
def test_no_body_goes_where_none_belongs(method: str, raw: bytes) -> None:
    """An upstream may take it for the next request."""
    asking_so = head(method, content_encoding="gzip" if raw.startswith(b"\x1f") else "identity")
    outcome = send(listener(), asking_so, raw)
    assert message_of(outcome)[0] == 400


@pytest.mark.parametrize(
    ("coding", "code"),
    [("gzip", gzip.compress), ("deflate", zlib.compress), ("br", brotli.compress)],
)
def test_a_coded_request_is_judged_by_what_it_says(
    coding: str, code: Callable[[bytes], bytes]
) -> None:
    assert message_of(ask(code(calling("rm")), content_encoding=coding)) == (200, 1, -32601)
    outcome = ask(code(calling("read")), content_encoding=coding)
    assert isinstance(outcome, Passed)
    assert outcome.body is None


@pytest.mark.parametrize("coding", ["utf-7", "quopri", "gzip, gzip", "compress", "rot13"])
def test_a_request_in_another_coding_is_refused(coding: str) -> None:
    assert message_of(ask(calling("read"), content_encoding=coding))[0] == 400


def test_a_coded_request_that_could_pass_for_json_goes_on_decoded() -> None:
    """An upstream that does not undo codings would read another message."""
    text = b64encode(random.Random(1).randbytes(100_000)).decode()
    raw = calling("read", arguments=f'{{"x":"{text}"}}')
    coded = brotli.compress(raw)
    assert coded[:1] == b"["  # as of every stream of this size
    outcome = ask(coded, content_encoding="br")
    assert isinstance(outcome, Passed)
    assert outcome.body == raw


def test_a_body_that_decodes_to_nothing_is_refused() -> None:
    """A gzip head has room for a message, and who does not undo codings may find it."""
    assert message_of(ask(gzip.compress(b""), content_encoding="gzip"))[0] == 400


def test_too_large_a_request_is_told_so_where_its_id_can_be_read() -> None:
    """A 4xx ends the session of some clients."""
    door = listener(message_limit="1KB")
    raw = calling("read", id='"a"', arguments='{"id":5,"x":"' + "x" * 12_000 + '"}')
    assert message_of(ask(raw, door)) == (200, "a", -32600)
    assert message_of(ask(b"x" * 2000, door)) == (413, None, -32600)
    assert message_of(ask(b'{"id":1,"id":2' + b" " * 2000, door)) == (413, None, -32600)


def test_too_deep_a_request_is_told_so_too() -> None:
    raw = calling("rm", id="7", arguments="[" * 200 + "]" * 200)
    assert message_of(ask(raw)) == (200, 7, -32600)
    assert message_of(ask(b"[" * 1_000_000)) == (413, None, -32600)


def test_a_bomb_is_too_large() -> None:
    bomb = gzip.compress(bytes(20_000_000))
    assert message_of(ask(bomb, content_encoding="gzip"))[0] == 413


@pytest.mark.parametrize(
    ("asking_so", "body"),
    [
        (head("GET", "/sse", accept=SSE), b""),
        (head("GET", "/.well-known/oauth-authorization-server"), b""),
        (head("DELETE", "/mcp", mcp_session_id="1"), b""),
        (head("OPTIONS", "/mcp", origin="http://localhost"), b""),
        (head("POST", "/register", content_type=JSON), b'{"client_name":"x"}'),
        (head("POST", "/token", content_type="application/x-www-form-urlencoded"), b"code=x"),
    ],
)
def test_what_carries_no_message_goes_on(asking_so: Head, body: bytes) -> None:
    outcome = send(listener(), asking_so, body)
    assert isinstance(outcome, Passed)
    assert outcome.body is None


@given(raw=st.sampled_from(ATTACKS) | st.binary(max_size=60), at=st.integers(0, 100))
@settings(max_examples=150, deadline=None)
def test_whatever_comes_is_passed_or_answered(raw: bytes, at: int) -> None:
    """Nothing is raised, and what is passed has no tool's name that is denied."""
    outcome = ask(raw[:at] + raw[at + 1 :])
    passed = isinstance(outcome, Passed)
    assert not (passed and b'"rm"' in raw and b"tools/call" in raw and at > 90)


# Lists


def session_with(door: Listener, **headers: str) -> dict[str, str]:
    """Shake hands through the door; return the headers of the session."""
    hello = asked(INITIALIZE, door, **headers)
    door.note_answer_head(hello, 200, "s1")
    assert answer(door, hello, 200, JSON, "", INITIALIZED) is None
    return {"mcp_session_id": "s1", "mcp_protocol_version": R2025_06_18, **headers}


def test_a_list_is_answered_at_once_in_a_session_that_was_opened_here() -> None:
    door = listener()
    assert ask(asking("tools/list", id="5"), door, **session_with(door)) == Answered(
        200, listing("read", id="5")
    )


@pytest.mark.parametrize(
    "headers",
    [
        {"mcp_session_id": "another"},
        {"authorization": "Bearer x"},
        {"cookie": "a=b"},
        {"x_api_key": "x"},
        {"cf_access_jwt_assertion": "x"},
        {"x_forwarded_user": "ann"},
        {"x_forwarded_for": "10.0.0.1"},
        {"x_tenant": "a"},
        {"x_anything": "a"},
        {"forwarded": "for=x"},
        {"from": "a@b"},
        {"baggage": "user=ann"},
        {"accept_language": "de"},
        {"origin": "http://localhost:6274"},
        {"referer": "http://localhost:6274/a"},
        {"mcp_protocol_version": "2025-03-26"},
        {"accept": JSON},
    ],
)
def test_a_list_is_asked_of_the_upstream_where_its_answer_may_differ(
    headers: dict[str, str],
) -> None:
    door = listener()
    outcome = ask(asking("tools/list"), door, **{**session_with(door), **headers})
    assert isinstance(outcome, Passed)


def test_a_client_with_credentials_of_its_own_gets_its_own_list() -> None:
    door = listener()
    door.policy.config = parse_config(deny=["^rm"], upstream_headers=["Authorization: Bearer ours"])
    headers = {**session_with(door), "authorization": "Bearer theirs"}
    assert isinstance(ask(asking("tools/list"), door, **headers), Passed)


def test_credentials_that_are_replaced_make_no_difference() -> None:
    door = listener()
    headers = ["Authorization: Bearer ours"]
    door.policy.config = parse_config(
        deny=["^rm"], upstream_headers=headers, header_override="true"
    )
    named = {**session_with(door, authorization="x"), "authorization": "Bearer theirs"}
    assert isinstance(ask(asking("tools/list"), door, **named), Answered)


def test_a_session_stays_its_users() -> None:
    """Some clients send their token with the first request only."""
    door = listener()
    headers = session_with(door, authorization="Bearer x")
    del headers["authorization"]
    assert isinstance(ask(asking("tools/list"), door, **headers), Passed)


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_session_is_a_users_from_the_first_request_that_says_so(method: str) -> None:
    door = listener()
    headers = session_with(door)
    with_token = {**BOTH, **headers, "authorization": "Bearer x"}
    send(door, head(method, **with_token), b"" if method == "GET" else asking("ping"))
    assert isinstance(ask(asking("tools/list"), door, **headers), Passed)


@pytest.mark.parametrize("ended", [404, "DELETE"])
def test_a_session_that_ended_is_forgotten(ended: int | str) -> None:
    door = listener()
    headers = session_with(door)
    door.note_answer_head(asked(asking("ping"), door, **headers), 404, None)
    assert isinstance(ask(asking("tools/list"), door, **headers), Passed)


def test_a_deleted_session_is_forgotten() -> None:
    door = listener()
    headers = session_with(door)
    send(door, head("DELETE", mcp_session_id="s1"), b"")
    assert isinstance(ask(asking("tools/list"), door, **headers), Passed)


def test_a_stateless_list_is_answered_at_once() -> None:
    page = answering('{"resultType":"complete","tools":[' + RM + '],"ttlMs":7}')
    door = listener(page, revision=R2026_07_28, sessions=False)
    modern = {"mcp_protocol_version": R2026_07_28, "mcp_method": "tools/list"}
    assert ask(MODERN, door, **modern) == Answered(
        200, answering('{"resultType":"complete","tools":[],"ttlMs":7}')
    )


def test_a_revisions_first_list_gives_its_frame() -> None:
    door = listener(revision=R2026_07_28, sessions=False)
    headers = {"mcp_protocol_version": "2025-11-25", "mcp_session_id": ""}
    first = asked(asking("tools/list"), door, **headers)
    raw = listing("read", "rm", more=',"_meta":{"a":1}')
    judged = answer(door, first, 200, JSON, "", raw)
    assert judged == Answered(200, listing("read", more=',"_meta":{"a":1}'))
    again = ask(asking("tools/list", id="2"), door, **headers)
    assert again == Answered(200, listing("read", id="2", more=',"_meta":{"a":1}'))


@pytest.mark.parametrize(
    "page", [b"{}", answering("{}"), answering('{"tools":{}}'), b"[1]", answering('{"Tools":[]}')]
)
def test_a_fetched_list_that_cannot_be_read_stops_the_start(page: bytes) -> None:
    with pytest.raises(FetchFailed):
        listener(page)


def test_other_patterns_can_be_applied_to_what_was_fetched() -> None:
    door = listener()
    door.policy.adopt(parse_config(deny=["read"]))
    assert list(door.snapshot.allowed) == ["rm"]


def test_the_same_patterns_give_the_same_snapshot() -> None:
    door = listener()
    again = parse_config(deny=["^rm"], message_limit="1MB")
    before = door.snapshot
    door.policy.adopt(again)
    assert door.snapshot is before


def test_a_long_list_is_read_from_its_first_tool_to_its_last() -> None:
    names = [f"{'rm' if number % 7 == 0 else 'read'}_{number}" for number in range(1000)]
    door = listener(listing(*names[:900], more=',"nextCursor":"2"'), listing(*names[900:]))
    kept = [name for name in names if name.startswith("read")]
    assert list(door.snapshot.allowed) == kept
    assert door.snapshot.tools == b"[" + b",".join(map(definition, kept)) + b"]"
    assert len(door.snapshot.denied) == len(names) - len(kept)


# Answers


@pytest.mark.parametrize(
    ("raw", "status", "kind"),
    [
        (answering('{ "b":1.00,"a":"\\u00e9" ,"n":' + "9" * 400 + "}"), 200, JSON),
        (answering('{"content":[],"structuredContent":{"tools":[' + RM + "]}}"), 200, JSON),
        (answering('{"content":[{"type":"text","text":"rm inputSchema \\u0041"}]}'), 200, JSON),
        (
            answering('{"capabilities":{"tools":{"listChanged":true}}}'),
            200,
            "application/json; charset=utf-8",
        ),
        (b'{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"Unknown"}}', 200, JSON),
        (b'{"jsonrpc":"2.0","id":null,"error":{"code":-32000,"message":"x"}}', 400, JSON),
        (b'{"error":"invalid_token","error_description":"x"}', 401, JSON),
        (b"<html><body>Not Found</body></html>", 404, "text/html"),
        (b"<!DOCTYPE html><script>x={'inputSchema':1}</script>", 500, "text/html"),
        (b"Method Not Allowed", 405, "text/plain"),
        (b"Accepted", 202, "text/plain"),
        (b"", 202, ""),
        (b"", 204, ""),
        (b"", 404, ""),
        (b"null", 202, JSON),
    ],
)
def test_an_honest_answer_goes_on_as_it_came(raw: bytes, status: int, kind: str) -> None:
    assert hear(raw, status=status, kind=kind) is None


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        (b'{"issuer":"http://h","scopes_supported":["rm"]}', JSON),
        (b"body { color: red }", "text/css"),
        (b"\x89PNG\r\n\x1a\n", "image/png"),
        (b"hello", "text/plain"),
        (b'{"name":"rm","description":"a page about it"}', JSON),
    ],
)
def test_a_document_nobody_asked_a_message_for_goes_on(raw: bytes, kind: str) -> None:
    door = listener()
    outcome = send(door, head("GET", "/any"), b"")
    assert isinstance(outcome, Passed)
    assert answer(door, outcome.exchange, 200, kind, "", raw) is None


@pytest.mark.parametrize("to", [asking("tools/list"), asking("ping"), asking("initialize", id="9")])
@pytest.mark.parametrize("status", [200, 202, 400, 404, 500])
def test_a_list_is_filtered_whatever_it_answers(to: bytes, status: int) -> None:
    outcome = hear(listing("read", "rm"), to, status=status)
    assert outcome == Answered(status, listing("read"))


BOTH_TOOLS = listing("read", "rm")


@pytest.mark.parametrize(
    "raw",
    [
        BOTH_TOOLS + BOTH_TOOLS,
        BOTH_TOOLS + b"\n" + asking("ping"),
        b"\xef\xbb\xbf" + BOTH_TOOLS,
        BOTH_TOOLS.decode().encode("utf-16"),
        BOTH_TOOLS[:-1],
        BOTH_TOOLS[:-1] + b",}",
        b"while(1);" + BOTH_TOOLS,
        b")]}'\n" + BOTH_TOOLS,
        b"callback(" + BOTH_TOOLS + b")",
        b"data: " + BOTH_TOOLS + b"\n\n",
        b"data: " + BOTH_TOOLS.replace(b"inputSchema", b"input\\u0053chema") + b"\n\n",
        BOTH_TOOLS.replace(b"tools", b"Tools"),
        BOTH_TOOLS.replace(b'"jsonrpc":"2.0",', b""),
        BOTH_TOOLS.replace(b'"id":1', b'"id":1,"id":2'),
        answering('{"_meta":{"x":' + RM + "}}"),
        b'{"tools":[%s]}' % RM.encode(),
        b"[%s]" % RM.encode(),
        b'{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"","data":%s}}' % RM.encode(),
    ],
    ids=ascii,
)
@pytest.mark.parametrize("status", [200, 202, 404, 500])
@pytest.mark.parametrize("kind", [JSON, "text/plain", "text/html", "", "application/octet-stream"])
def test_what_some_client_takes_for_a_list_is_not_shown(raw: bytes, status: int, kind: str) -> None:
    outcome = hear(raw, asking("tools/list"), status=status, kind=kind)
    assert message_of(outcome) == (200, 1, -32603)


@pytest.mark.parametrize(
    ("status", "kind", "coding"),
    [
        (206, JSON, ""),
        (200, "application/json; charset=utf-7", ""),
        (200, "application/json;charset='utf-16le'", ""),
        (200, JSON, "compress"),
        (200, JSON, "gzip, gzip"),
        (200, JSON, "gzip"),
        (200, JSON, "utf-7"),
    ],
)
def test_an_answer_in_parts_or_letters_that_we_do_not_read_is_not_shown(
    status: int, kind: str, coding: str
) -> None:
    outcome = hear(listing("read"), status=status, kind=kind, coding=coding)
    assert message_of(outcome) == (200, 1, -32603)


def test_what_some_clients_read_as_a_stream_is_not_shown() -> None:
    """The TypeScript SDK looks for the words anywhere in the content type."""
    door = listener()
    outcome = send(door, head("GET", "/mcp"), b"")
    assert isinstance(outcome, Passed)
    kind = "text/plain; x=text/event-stream"
    judged = answer(door, outcome.exchange, 200, kind, "", b"data: hidden\n\n")
    assert message_of(judged) == (502, None, -32603)


def test_a_coded_answer_goes_on_decoded() -> None:
    """The client did not ask us for it, and may not undo it."""
    coded = gzip.compress(b"<html></html>")
    assert hear(coded, status=404, kind="text/html", coding="gzip") == Answered(
        404, b"<html></html>", content_type="text/html"
    )
    assert hear(gzip.compress(BOTH_TOOLS), coding="gzip") == Answered(200, listing("read"))


@pytest.mark.parametrize("raw", [b"", b"{}", b"Accepted", b"<html>", b"null"])
def test_who_waits_for_what_is_no_answer_gets_an_error(raw: bytes) -> None:
    assert message_of(hear(raw)) == (200, 1, -32603)


LISTS = [
    listing("read", "rm"),
    listing("read"),
    listing("rm", "new", more=',"nextCursor":"2"'),
    b' {"result": {"tools" :[' + definition("rm") + b', 1]}, "jsonrpc":"2.0", "id": 1 }\n',
    answering('{"id":1,"_meta":{"id":1},"tools":[' + definition("read", ',"x":1').decode() + "]}"),
    answering('{"tools":[],"_meta":{"input\\nSchema":1,"name":"rm"}}'),
    answering('{"tools":[1]}'),
    answering("{}"),
]
IDS = [
    "1",
    "2",
    "77",
    '"a"',
    '"7-f"',
    "1.0",
    "01",
    "-1",
    "null",
    '"\\u0061"',
    '"a\\"b"',
    '"schema"',
]
IDS += ['"tools"', '1,"id":2', '"a"b"', '{"id":1}', "1 ", "", '"' + "x" * 70 + '"']


def is_id(text: str) -> bool:
    return ids_in(asking("ping", id=text)) == [text]


def judgements(*said: tuple[str, bytes, str]) -> object:
    """Let the upstream answer these requests; return what becomes of the last answer."""
    told: list[object] = []
    door = listener()
    door.policy.observe = lambda one: told.append((getattr(one.message, "id", None), one.verdict))
    for method, raw, kind in said:
        for_them = waiting_for(door, *[asking(method, id=id) for id in filter(is_id, IDS)])
        told.clear()
        if kind == SSE:
            stream = door.open_stream(for_them, "/mcp", None)
            left: object = stream.feed(event(raw)) + stream.finish()
        else:
            left = answer(door, for_them, 200, kind, "", raw)
    return left, told, list(for_them.conversation.exchanges.methods)


@settings(max_examples=300)
@given(
    before=st.lists(st.sampled_from(LISTS), min_size=1, max_size=3),
    at=st.integers(0, 10_000),
    cut=st.integers(0, 3),
    insert=st.sampled_from([b"", b"", b" ", b"1", b'"', b"\\", b'"id":3,', b"]", b"}", b"\xff"]),
    id=st.sampled_from(IDS),
    method=st.sampled_from(["tools/list", "tools/list", "tools/list", "ping", "initialize"]),
    kind=st.sampled_from([JSON, SSE]),
    is_batch=st.integers(0, 9).map(lambda number: number == 0),
)
def test_what_is_remembered_makes_no_difference(
    before: list[bytes],
    at: int,
    cut: int,
    insert: bytes,
    id: str,
    method: str,
    kind: str,
    is_batch: bool,
) -> None:
    """The same bytes, the same verdict, the same watchers' news, as if it were the first list."""
    raw = before[0].replace(b'"id":1', b'"id":' + id.encode(), 1)
    raw = raw.replace(b'"id": 1 }', b'"id": ' + id.encode() + b" }", 1)
    at %= len(raw) + 1
    raw = raw[:at] + insert + raw[at + cut * bool(insert) :]
    raw = b"[" + raw + b"]" if is_batch else raw
    warm = [("tools/list", one, JSON) for one in before]
    assert judgements(*warm, (method, raw, kind)) == judgements((method, raw, kind))


def test_a_list_that_has_been_judged_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    door = listener()
    hear(LISTS[0], asking("tools/list"), door)
    for_it = waiting_for(door, asking("tools/list", id="2"))
    monkeypatch.delattr("mcp_tool_filter.conversation.from_client.parse_message")
    again = listing("read", "rm", id="2")
    assert answer(door, for_it, 200, JSON, "", again) == Answered(200, listing("read", id="2"))


def test_a_list_is_judged_anew_when_the_patterns_change() -> None:
    door = listener()
    hear(LISTS[0], asking("tools/list"), door)
    other_patterns(door, "^read")
    assert hear(LISTS[0], asking("tools/list"), door) == Answered(200, listing("rm"))


def other_patterns(door: Listener, deny: str) -> None:
    """Edit the patterns, as mitmweb does."""
    config = parse_config(deny=[deny])
    door.policy.adopt(config)


@pytest.mark.parametrize("target", ["/mcp", "/sse"])
def test_an_open_stream_follows_the_patterns_in_force(target: str) -> None:
    """A stream may stay open for days; a tool that is denied meanwhile must not show on it."""
    door = listener()
    waiting = asked(asking("tools/list"), door)
    stream = door.open_stream(waiting, target, None)
    assert stream.feed(event(listing("read", "rm"))) == event(listing("read"))
    other_patterns(door, "^read")
    assert stream.feed(event(listing("read", "rm"))) == event(listing("rm"))
    named = b'event: other\ndata: {"x":' + definition("read") + b"}\n\n"
    assert stream.feed(named) == b""


def test_an_open_socket_and_a_waiting_request_follow_the_patterns_in_force() -> None:
    door = listener()
    socket, waiting = Conversation(door.policy), asked(asking("tools/list"), door)
    say(socket, asking("tools/list"), True)
    other_patterns(door, "^read")
    assert isinstance(say(socket, calling("read"), True), Reply)
    assert text_of(say(socket, listing("read", "rm"), False)) == listing("rm")
    judged = answer(door, waiting, 200, JSON, "", listing("read", "rm"))
    assert judged == Answered(200, listing("rm"))


def test_too_large_an_answer_is_an_error() -> None:
    door = listener(message_limit="1KB")
    waiting = asked(asking("ping"), door)
    judged = answer(door, waiting, 200, JSON, "", answering('"' + "x" * 12_000 + '"'))
    assert message_of(judged) == (200, 1, -32603)


def test_a_batch_that_lost_members_gets_their_answers_back() -> None:
    door = listener()
    outcome = ask(b"[" + asking("ping", id="1") + b"," + calling("rm", id="2") + b"]", door)
    assert isinstance(outcome, Passed)
    assert outcome.body == b"[" + asking("ping", id="1") + b"]"
    judged = answer(door, outcome.exchange, 200, JSON, "", b"[ " + answering("{}") + b" ]")
    assert isinstance(judged, Answered)
    assert [answer["id"] for answer in json.loads(judged.body)] == [1, 2]


@pytest.mark.parametrize(
    ("status", "raw"), [(202, b""), (200, answering("{}")), (200, b"[]"), (200, b"x"), (502, b"")]
)
def test_what_is_owed_to_a_batch_is_paid_or_it_failed(status: int, raw: bytes) -> None:
    door = listener()
    notification = b'{"jsonrpc":"2.0","method":"notifications/x"}'
    outcome = ask(b"[" + notification + b"," + calling("rm", id="2") + b"]", door)
    assert isinstance(outcome, Passed)
    judged = answer(door, outcome.exchange, status, JSON, "", raw)
    owed = judged is not None and b'"id":2,"error"' in judged.body
    assert owed or status == 502


def test_when_the_upstream_is_lost_who_waits_is_told() -> None:
    door = listener()
    waiting = asked(asking("ping", id='"a"'), door)
    (reply,) = door.lost_replies(waiting)
    assert json.loads(reply) == {
        "jsonrpc": "2.0",
        "id": "a",
        "error": {"code": -32000, "message": "Upstream connection lost"},
    }
    assert door.lost_replies(waiting) == ()


@given(raw=st.binary(max_size=80) | st.sampled_from(ATTACKS), status=st.integers(200, 599))
@settings(max_examples=150, deadline=None)
def test_whatever_the_upstream_answers_nothing_is_raised(raw: bytes, status: int) -> None:
    outcome = hear(raw, status=status)
    assert outcome is None or outcome.status in (200, status)


# The older transport: answers come on a stream of their own


class Client:
    """A client of the older transport, with its GET stream open."""

    def __init__(self, door: Listener, named: bytes = b"/messages?s=1") -> None:
        self.door = door
        self.heard: list[bytes] = []
        outcome = send(door, head("GET", "/sse", accept=SSE), b"")
        assert isinstance(outcome, Passed)
        self.asked = outcome.exchange
        self.stream = door.open_stream(self.asked, "/sse", self._send)
        self.said = self.stream.feed(b"event: endpoint\ndata: " + named + b"\n\n")

    def _send(self, raw: bytes) -> bool:
        self.heard.append(raw)
        return True

    def post(self, raw: bytes, target: str = "/messages?s=1") -> Passed | Answered:
        return send(self.door, head("POST", target, content_type=JSON), raw)


def test_a_denied_call_is_answered_on_the_stream() -> None:
    client = Client(listener())
    outcome = client.post(calling("rm"))
    assert isinstance(outcome, Answered)
    assert outcome.stream is not None
    assert outcome.stream.send(outcome.body)
    assert b"Tool not found: rm" in client.heard[0]


def test_a_list_is_answered_on_the_stream_too() -> None:
    client = Client(listener())
    hello = client.post(INITIALIZE)
    assert isinstance(hello, Passed)
    client.stream.feed(event(INITIALIZED))
    outcome = client.post(asking("tools/list"))
    assert isinstance(outcome, Answered)
    assert outcome.body == listing("read")
    assert outcome.stream is not None


def test_an_allowed_call_goes_on_and_its_answer_comes_on_the_stream() -> None:
    client = Client(listener())
    outcome = client.post(calling("read", id="4"))
    assert isinstance(outcome, Passed)
    assert answer(client.door, outcome.exchange, 202, "text/plain", "", b"Accepted") is None
    said = event(answering('{"tools":{"hammer":1}}', id="4"))
    assert client.stream.feed(said) == said


def test_a_batch_gets_what_we_owe_on_the_stream() -> None:
    client = Client(listener())
    outcome = client.post(b"[" + asking("ping") + b"," + calling("rm", id="2") + b"]")
    assert isinstance(outcome, Passed)
    assert outcome.exchange.owed == ()
    assert b"Tool not found: rm" in client.heard[0]


def test_an_absolute_endpoint_is_made_to_lead_to_us() -> None:
    client = Client(listener(), b"http://127.0.0.1:3000/messages?s=1")
    assert client.said == b"event: endpoint\ndata: /messages?s=1\n\n"
    assert isinstance(client.post(calling("rm")), Answered)


@pytest.mark.parametrize("named", [b"messages?s=1", b"../messages?s=1", b"/messages?s=1#x"])
def test_an_endpoint_is_resolved_as_clients_do(named: bytes) -> None:
    outcome = Client(listener(), named).post(calling("rm"))
    assert isinstance(outcome, Answered)
    assert outcome.stream is not None


@pytest.mark.parametrize("named", [b"http://evil.example/", b"//evil.example", b"///evil.example"])
def test_an_endpoint_that_leads_elsewhere_is_not_shown(named: bytes) -> None:
    client = Client(listener(), named)
    assert client.said == b""
    assert len(client.door.legacy) == 0


def test_a_stream_that_ends_is_forgotten() -> None:
    client = Client(listener())
    client.door.close_stream(client.asked)
    assert len(client.door.legacy) == 0


def test_a_stream_has_one_endpoint_at_a_time() -> None:
    """Else an upstream could make us remember without end."""
    client = Client(listener())
    for number in range(100):
        client.stream.feed(b"event: endpoint\ndata: /messages?s=%d\n\n" % number)
    assert [one.target for one in client.door.legacy] == ["/messages?s=99"]


def test_clients_with_the_same_endpoint_never_get_each_other_s_answers() -> None:
    """Nobody can tell whose a request is; so our answer goes to the one who asks, on its POST."""
    door = listener()
    one, other = Client(door), Client(door)
    one.post(INITIALIZE)
    one.stream.feed(event(INITIALIZED))
    for raw in (calling("rm"), b"[" + asking("ping") + b"," + calling("rm", id="2") + b"]"):
        outcome = other.post(raw)
        assert isinstance(outcome, Passed) or outcome.stream is None
        if isinstance(outcome, Answered):
            assert message_of(outcome) == (200, 1, -32601)
        else:
            assert len(outcome.exchange.owed) == 1
    assert isinstance(other.post(asking("tools/list")), Passed)
    door.tell_of_loss("/messages?s=1", asking("ping"))
    assert one.heard == other.heard == []


def test_a_shared_endpoint_stays_shared_until_its_last_stream_ends() -> None:
    """The client whose stream has ended may still post."""
    door = listener()
    one, other = Client(door), Client(door)
    door.close_stream(one.asked)
    outcome = one.post(calling("rm"))
    assert isinstance(outcome, Answered)
    assert outcome.stream is None
    door.close_stream(other.asked)
    assert len(door.legacy) == 0
    assert isinstance(Client(door).post(calling("rm")), Answered)


def test_an_overlong_endpoint_is_not_remembered() -> None:
    client = Client(listener(), b"/messages?s=" + b"x" * 10_000)
    assert client.said == b""
    assert len(client.door.legacy) == 0


def test_an_overlong_id_is_refused() -> None:
    id = '"' + "\\u0061" * 12_000 + '"'
    assert message_of(ask(asking("ping", id=id))) == (400, None, -32600)


def test_an_upstream_may_write_an_id_in_another_way() -> None:
    door = listener()
    client = Client(door)
    client.post(calling("read", id='"\\u0061"'))
    assert len(client.asked.conversation.exchanges) == 1
    client.stream.feed(event(answering("{}", id='"a"')))
    assert len(client.asked.conversation.exchanges) == 0


def test_no_endpoint_is_taken_from_the_answer_to_a_post() -> None:
    door = listener()
    stream = door.open_stream(asked(asking("ping"), door), "/mcp", None)
    assert stream.feed(b"event: endpoint\ndata: /messages\n\n") == b""


# Streams and sockets


def test_a_handshake_on_a_stream_opens_a_session_too() -> None:
    door = listener()
    hello = asked(INITIALIZE, door)
    door.note_answer_head(hello, 200, "s1")
    door.open_stream(hello, "/mcp", None).feed(event(INITIALIZED))
    headers = {"mcp_session_id": "s1"}
    assert isinstance(ask(asking("tools/list"), door, **headers), Answered)


def test_on_a_socket_both_sides_are_judged() -> None:
    door = listener()
    socket = Conversation(door.policy)
    assert isinstance(say(socket, calling("rm"), True), Reply)
    assert say(socket, calling("read", id="2"), True) == Forward()
    assert say(socket, answering("{}", id="2"), False) == Forward()
    verdict = say(socket, BOTH_TOOLS, False)
    assert text_of(verdict) == listing("read")


def test_on_a_socket_what_cannot_be_read_is_answered_or_dropped() -> None:
    door = listener()
    socket = Conversation(door.policy)
    assert isinstance(say(socket, b"\xff", True), Reply)
    assert isinstance(say(socket, b"\xff", False), Drop)
    say(socket, asking("ping", id="7"), True)
    verdict = say(socket, b'{"jsonrpc":"2.0","id":7,"result":{},"x', False)
    assert isinstance(verdict, Rewrite)
    assert json.loads(verdict.text)["id"] == 7


def test_a_list_on_a_socket_is_asked_of_the_upstream() -> None:
    door = listener()
    assert say(Conversation(door.policy), asking("tools/list"), True) == Forward()


def test_a_head_that_is_too_long_is_answered_clearly() -> None:
    said = head("POST", "/mcp", content_type="charset" * 9000)
    outcome = send(listener(), said, asking("ping"))
    text = "Request too large: a header longer than 32768 bytes"
    assert message_of(outcome) == (431, None, -32600)
    assert isinstance(outcome, Answered)
    assert json.loads(outcome.body)["error"]["message"] == text


def test_a_batch_that_is_too_long_is_answered_clearly() -> None:
    batch = b"[" + b",".join(calling("read", id=str(id)) for id in range(1001)) + b"]"
    outcome = ask(batch)
    assert message_of(outcome) == (413, None, -32600)
    assert isinstance(outcome, Answered)
    text = "Request too large: more than 1000 messages in one batch"
    assert json.loads(outcome.body)["error"]["message"] == text


def test_json_that_is_no_message_may_have_any_number_of_elements() -> None:
    telemetry = b"[" + b",".join([b'{"event":"x"}'] * 30_000) + b"]"
    head_elsewhere = head("POST", "/events", content_type="application/json")
    assert isinstance(send(listener(), head_elsewhere, telemetry), Passed)
    wide = b"{" + b",".join(b'"%d":0' % number for number in range(30_000)) + b"}"
    assert isinstance(send(listener(), head_elsewhere, wide), Passed)
