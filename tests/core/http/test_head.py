"""What a request's head may say, and whether its body agrees."""

from __future__ import annotations

import base64
import json
from contextlib import nullcontext

import pytest

from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.core.http import head as heads
from mcp_tool_filter.core.http.asked import Passed
from mcp_tool_filter.core.http.head import Head, headers_after, problem_in_fields
from mcp_tool_filter.core.messages.limits import Limits
from mcp_tool_filter.core.messages.messages import parse_message
from tests.core.http.listening import listener
from tests.make import answering, asking, calling, definition, head, raw_head
from tests.rows import each_row

JSON = "application/json"
FORM = "application/x-www-form-urlencoded"


@each_row("honest", [
    head("GET", "/authorize?response_type=code&code_challenge_method=S256&resource=http://h/mcp"),
    head("OPTIONS", "/mcp?"),
    head("POST", "/mcp", content_type='application/json; charset="utf-8"'),
    head("POST", "/mcp", transfer_encoding="chunked"),
    raw_head("POST", "/mcp", ("cookie", "a"), ("cookie", "b"), ("accept", "x"), ("accept", "y")),
    head("POST", "/mcp", x_method="tools/call", mcp_param_region="eu"),
])  # fmt: skip
def test_an_honest_head_is_not_refused(honest: Head) -> None:
    assert problem_in_fields(honest) is None


@each_row("dubious", [
    head("TRACE"),
    raw_head("POST", "/mcp", ("a", "b\rTransfer-Encoding: chunked")),
    raw_head("POST", "/mcp", ("a\0", "b")),
    raw_head("POST", "/mcp", ("Mcp-Method", "ping"), ("mcp-method", "tools/call")),
    raw_head("POST", "/mcp", ("content-encoding", "gzip"), ("content-encoding", "gzip")),
    raw_head("GET", "/mcp", ("last-event-id", "1"), ("last-event-id", "2")),
    raw_head("POST", "/mcp", ("Mcp_Method", "a")),
    raw_head("POST", "/mcp", ("mcp--name", "a")),
    raw_head("POST", "/mcp", ("transfer_encoding", "chunked")),
    head(transfer_encoding="gzip, chunked"),
    head(transfer_encoding="identity"),
    head(content_transfer_encoding="quoted-printable"),
    head(content_type="application/json; charset*=utf-16''x"),
    head("GET", "/mcp?jsonrpc=2.0&method=x"),
    head("GET", "/mcp?method=tools/call&params=x"),
    head("GET", "/mcp?Method=tools%2Fcall"),
])  # fmt: skip
def test_a_head_that_could_be_read_in_two_ways_is_refused(dubious: Head) -> None:
    assert problem_in_fields(dubious) is not None


@pytest.mark.parametrize("honest", [
    head("POST", "/mcp", authorization="Bearer " + "a" * 16_000),
    raw_head("POST", "/mcp", ("cookie", "a=" + "b" * 30_000), ("x", "y" * 30_000)),
    head("GET", "/authorize?request=" + "a" * 16_000),
    raw_head("GET", "/mcp", *((f"x-{number}", "1") for number in range(400))),
    raw_head("GET", "/mcp", ("a", "b" * 32_767), ("c", "d" * 32_767)),
])  # fmt: skip
def test_long_tokens_and_cookies_are_accepted(honest: Head) -> None:
    assert heads.problem_in_size(honest) is None
    assert problem_in_fields(honest) is None


@pytest.mark.parametrize(("long", "why"), [
    (head("POST", "/mcp", content_type="a" * 33_000), "a header longer than 32768 bytes"),
    (raw_head("POST", "/mcp", ("a" * 33_000, "b")), "a header longer than 32768 bytes"),
    (head("GET", "/" + "a" * 33_000), "a URL longer than 32768 bytes"),
    (raw_head("GET", "/", *[("a", "b")] * 501), "more than 500 headers"),
    (raw_head("GET", "/", *[("a", "b" * 22_000)] * 3), "headers longer than 65536 bytes"),
])  # fmt: skip
def test_a_head_that_takes_long_to_read_is_refused(long: Head, why: str) -> None:
    assert heads.problem_in_size(long) == why


def test_a_query_of_more_than_a_thousand_fields_is_refused() -> None:
    assert problem_in_fields(head("GET", "/x?" + "a=1&" * 999)) is None
    assert problem_in_fields(head("GET", "/x?" + "a=1&" * 1000)) == "a message in the URL"
    assert problem_in_fields(head("GET", "/x?" + "a=1%26" * 1000)) == "a message in the URL"


def test_a_form_may_be_as_long_as_a_login_needs() -> None:
    form = head("POST", "/token", content_type=FORM)
    longest = b"assertion=".ljust(256 * 1024, b"a")
    assert refusal_of(form, longest) is None
    assert refusal_of(form, longest + b"a") is not None


def refusal_of(asked: Head, body: bytes, *, is_endpoint: bool = False) -> str | None:
    return heads.problem_in_body(asked, body, is_endpoint=is_endpoint, limits=Limits())


@each_row(("asked", "body"), [
    (head("GET", "/sse"), b""),
    (head("DELETE", "/mcp"), b""),
    (head("POST", "/logout"), b""),
    (
        head("POST", "/token", content_type=FORM),
        b"grant_type=authorization_code&code=a.b-c_d~&redirect_uri=http%3A%2F%2F127.0.0.1%3A1%2Fcb"
        b"&client_id=x&code_verifier=y&resource=https%3A%2F%2Fh%2Fmcp",
    ),
    (
        head("POST", "/register", content_type=JSON),
        b'{"client_name":"x","redirect_uris":["http://localhost/cb"],"token_endpoint_auth_method":'
        b'"none","grant_types":["authorization_code"],"contacts":[]}',
    ),
    (head("POST", "/upload", content_type=JSON), b"[1,2,3]"),
])  # fmt: skip
def test_oauth_requests_are_not_refused(asked: Head, body: bytes) -> None:
    assert refusal_of(asked, body) is None


@each_row(("asked", "body"), [
    (head("GET", "/mcp"), calling("rm")),
    (head("HEAD", "/any"), b"x"),
    (head("POST", "/mcp", mcp_method="tools/call"), b""),
    (head("POST", "/mcp", mcp_name="rm"), b""),
    (head("POST", "/any", mcp_method="tools/call"), b"{}"),
    (head("POST", "/any", content_type=FORM), b"m%65thod=tools/call&params%5Bname%5D=rm"),
    (head("POST", "/any", content_type=FORM), b"message=%7B%22jsonrpc%22%3A%222.0%22%7D"),
    (head("POST", "/any", content_type=FORM), b"method: tools/call"),
    (head("POST", "/any", content_type="text/plain"), b"method: tools/call"),
    (head("POST", "/any", content_type=JSON), b'{"a":{"METHOD":"tools/call"}}'),
    (head("POST", "/any", content_type=JSON), b'{"body":"{\\"jsonrpc\\":\\"2.0\\"}"}'),
    (head("POST", "/any", content_type=JSON), b'{"method":"tools/call",}'),
    (head("POST", "/any", content_type=JSON), '{"a":1}'.encode("utf-16")),
])  # fmt: skip
def test_a_body_that_some_server_takes_for_a_message_is_refused(asked: Head, body: bytes) -> None:
    assert refusal_of(asked, body) is not None


@pytest.mark.parametrize("body", [b"grant_type=x", b'{"client_name":"x"}', b"hello"])
def test_at_the_endpoint_every_body_is_a_message(body: bytes) -> None:
    assert refusal_of(head(content_type=FORM), body, is_endpoint=True) is not None


def encoded(name: str) -> str:
    return f"=?base64?{base64.b64encode(name.encode()).decode()}?="


@each_row(("asked", "raw"), [
    (head(), calling("read")),
    (head(mcp_method="tools/call", mcp_name=encoded("l\u00f6sch")), calling("l\u00f6sch")),
    (head(mcp_method="prompts/get", mcp_name="p"), asking("prompts/get", params='{"name":"p"}')),
    (head(mcp_name="u"), asking("resources/read", params='{"uri":"u"}')),
    (head(mcp_name="t"), asking("tasks/get", params='{"taskId":"t"}')),
    (head(), b"[" + calling("read") + b"]"),
])  # fmt: skip
def test_headers_that_match_the_body_are_accepted(asked: Head, raw: bytes) -> None:
    assert heads.problem_in_mirrored(asked, parse_message(raw)) is None


@each_row(("asked", "raw"), [
    (head(mcp_method="tools/call"), asking("ping")),
    (head(mcp_method=""), calling("read")),
    (head(mcp_method="tools/call", mcp_name="rm"), calling("read")),
    (head(mcp_name="rm"), calling("read")),
    (head(mcp_name="=?base64?cmVhZA==?= x"), calling("read")),
    (head(mcp_name="=?base64?!!!!?="), calling("read")),
    (head(mcp_name="=?utf-8?q?read?="), calling("read")),
    (head(mcp_name="rm"), asking("ping")),
    (head(mcp_method="tools/call"), b"[" + calling("read") + b"]"),
    (head(mcp_method="tools/call"), b'{"jsonrpc":"2.0","id":1,"result":{}}'),
])  # fmt: skip
def test_headers_that_contradict_the_body_are_refused(asked: Head, raw: bytes) -> None:
    """An upstream may decide by the headers alone."""
    assert heads.problem_in_mirrored(asked, parse_message(raw)) is not None


@each_row(("asked", "raw", "changed"), [
    (head(), calling("read"), ()),
    (head(mcp_method="tools/call", mcp_name="read"), calling("read"), ()),
    (head(mcp_name="read"), calling("r\u00e9ad"), (("mcp-name", encoded("r\u00e9ad")),)),
    (head(mcp_method="tools/call"), asking("ping"), (("mcp-method", "ping"),)),
    (
        head(mcp_method="tools/call", mcp_name="read"),
        b"[" + calling("read") + b"]",
        (("mcp-method", None), ("mcp-name", None)),
    ),
    (head(mcp_name="read"), answering("{}"), (("mcp-method", None), ("mcp-name", None))),
])  # fmt: skip
def test_headers_follow_a_rewritten_body(asked: Head, raw: bytes, changed: object) -> None:
    assert headers_after(asked, parse_message(raw), {}) == changed


def test_a_header_that_changes_is_sent_once() -> None:
    """Of two, the upstream could read the client's."""
    asked = head(mcp_method="ping", mcp_name="rm", content_encoding="br", host="us", x="y")
    changes = (("mcp-name", "read"), ("mcp-method", None))
    passed = Passed(listener().unasked(), body=b"{}", headers=changes)
    added = ((b"X", b"ours"),)
    sent = heads.fields_for_upstream(asked, passed, host=b"them", added=added)
    usual = (b"host", b"them"), (b"accept-encoding", b"identity")
    assert sent == (*usual, (b"mcp-name", b"read"), *added)


AWAY = (b"Location", b"https://other.example/")


@each_row(("status", "fields", "kept", "stays"), [
    (200, [(b"X", b"y"), (b"Alt-Svc", b"h3")], [(b"X", b"y")], True),
    (200, [(b"A", b'{"inputSCHEMA":{}}'), (b"B", b"input")], [(b"B", b"input")], True),
    *((status, [AWAY], [AWAY], False) for status in (300, 399)),
    *((status, [AWAY], [AWAY], True) for status in (299, 400)),
    (302, [(b"Location", b"http://127.0.0.1:3000/a")], [(b"Location", b"/a")], True),
    (200, [(b"a", b"b")] * 500, [(b"a", b"b")] * 500, True),
    (200, [(b"a", b"b")] * 501, None, True),
    (200, [(b"a", b"b" * 32_769)], None, True),
    (200, [(b"a", b"b\0")], None, True),
])  # fmt: skip
def test_the_head_of_an_answer_passes_shortened_or_not_at_all(
    status: int, fields: list[tuple[bytes, bytes]], kept: object, stays: bool
) -> None:
    notes = heads.AnswerNotes()
    with nullcontext() if kept else pytest.raises(ProtocolError):
        notes.judge(status, b"reason", tuple(fields), listener())
        assert (list(notes.fields), notes.reason, notes.stays) == (kept, b"reason", stays)
    notes.judge(200, b"inputSchema", (), listener())
    assert notes.reason == b""


@each_row(
    "header", ["Authorization", "Cookie", "X-API-Key", "X-Api_Key", "apikey", "X-Auth", "My-Token"]
)
def test_credential_headers_are_recognised_by_name(header: str) -> None:
    assert raw_head("POST", "/mcp", (header, "x")).credentials == {header.lower().encode()}

    assert not head(accept="x", mcp_session_id="1", user_agent="x", origin="x").credentials


def test_values_are_not_cached_with_the_names() -> None:
    """Two users of one program send the same names."""
    one, other = (raw_head("POST", "/mcp", ("Mcp-Session-Id", id)) for id in ("ann", "bob"))
    assert one.names is other.names
    assert (one.said.session_id, other.said.session_id) == ("ann", "bob")


def test_names_of_a_long_head_are_not_cached() -> None:
    """A client chooses them, and could send others each time."""
    before = heads.read_names.cache_info().currsize
    for number in range(10):
        headers = [(f"{number}-{at}-{'x' * 100}", "") for at in range(100)]
        assert problem_in_fields(raw_head("POST", "/mcp", *headers)) is None
        assert problem_in_fields(raw_head("POST", "/mcp", *headers, ("Mcp_Name", "a"))) is not None
    assert heads.read_names.cache_info().currsize == before


@pytest.mark.parametrize("name", ["Host", "Content-Type", "Mcp-Session-Id"])
def test_a_header_twice_is_found_in_any_case(name: str) -> None:
    """Of those that may be sent twice, the last counts."""
    twice = raw_head("POST", "/mcp", (name, "a"), ("X", ""), (name.upper(), "a"))
    assert problem_in_fields(twice) == "a header twice"
    assert raw_head("POST", "/mcp", ("Accept", "a"), ("accept", "b")).get(b"accept") == "b"


# Headers that repeat arguments of a call, after a rule has rewritten it


META = {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}
PROPERTIES = {
    "any": True,
    "region": {"type": "string", "x-mcp-header": "Region"},
    "is": {"properties": {"far": {"type": "boolean", "x-mcp-header": "Far"}}},
    "odd": {"type": "string", "x-mcp-header": 1},
}
READ = {"name": "read", "inputSchema": {"properties": PROPERTIES}}
DEFINITIONS = {"read": json.dumps(READ).encode(), "plain": definition("plain")}
EU = {"mcp-param-region": "eu"}


def after(sent: dict[str, str], name: str, arguments: object, meta: object = META) -> object:
    params = {"name": name, "arguments": arguments, "_meta": meta}
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    asked = raw_head("POST", "/mcp", *sent.items())
    return [*headers_after(asked, parse_message(json.dumps(call).encode()), DEFINITIONS)]


@each_row(("sent", "name", "arguments", "expected"), [
    (EU, "read", {"region": "eu", "other": 1}, []),
    (EU, "read", {"region": "us"}, [("mcp-param-region", "us")]),
    (EU, "read", {"region": "ü"}, [("mcp-param-region", "=?base64?w7w=?=")]),
    (EU, "read", {}, [("mcp-param-region", None)]),
    ({}, "read", {"is": {"far": True}}, [("mcp-param-far", "true")]),
    ({}, "read", {"region": "us"}, [("mcp-param-region", "us")]),
    (EU, "plain", {"region": "eu"}, [("mcp-param-region", None)]),
    (EU, "no tool that we know", {"region": "us"}, []),
])  # fmt: skip
def test_headers_follow_the_arguments_of_a_rewritten_call(
    sent: dict[str, str], name: str, arguments: object, expected: object
) -> None:
    assert after(sent, name, arguments) == expected
    assert after({}, "read", {"region": "us"}, meta={}) == []  # earlier revisions have none


def test_a_message_that_states_no_revision_is_mirrored_in_no_header() -> None:
    assert heads.mirrored_headers(parse_message(asking("ping")), {}) == []
