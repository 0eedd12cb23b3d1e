"""Each parser of foreign bytes, with the inputs that could cost it most."""
# ruff: noqa: E501 - tables

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import brotli
import zstandard

from mcp_tool_filter.core.conversation.conversation import Conversation
from mcp_tool_filter.core.http import bodies, head, urls
from mcp_tool_filter.core.http.asked import Passed
from mcp_tool_filter.core.http.asker import problem_in_source
from mcp_tool_filter.core.http.event_stream import EventStream
from mcp_tool_filter.core.http.head import Head
from mcp_tool_filter.core.messages import large, messages, sse
from mcp_tool_filter.core.messages.limits import MOST_IN_BATCH, Limits
from mcp_tool_filter.core.messages.tools import parse_listing, shows_tool
from mcp_tool_filter.core.policy.config import AllowedHosts
from mcp_tool_filter.core.policy.situation import Client, RpcExchange
from mcp_tool_filter.core.policy.tool_filter import decide_listed
from mcp_tool_filter.core.upstream.replies import messages_in
from mcp_tool_filter.rooms.audit.entries import OpenRequest
from mcp_tool_filter.rooms.audit.open_requests import OpenRequests, key_of
from mcp_tool_filter.rooms.lock.changes import Names, introduced
from mcp_tool_filter.rooms.logins import metadata as login_metadata
from mcp_tool_filter.rooms.mitmproxy.flows import _PARAMETER
from mcp_tool_filter.rooms.recordings.reading import render_body, tools_in
from tests.fuzz.subject import open_listener, settled
from tests.make import asking, calling, message, snapshot

LIMITS = Limits()

NAMES = ("wipe_disk",)

THINGS: dict[str, Any] = {"deny_prompts": ["^p"], "deny_resources": ["^r:"], "deny_skills": ["^s"]}

UPSTREAM = urls.UpstreamNames("http://localhost:3000")

SNAPSHOT = snapshot("read_file", "wipe_disk", deny="^wipe")


@dataclass(frozen=True)
class Parser:
    name: str
    read: Callable[[bytes], object]
    shapes: tuple[bytes | Callable[[int], bytes], ...]
    """What is repeated, or how to write so many bytes."""
    size: int
    """Bytes of the smaller input."""


def writer(shape: bytes | Callable[[int], bytes]) -> Callable[[int], bytes]:
    """Return what writes so many bytes of a shape."""
    return filled(b"", shape) if isinstance(shape, bytes) else shape


def filled(before: bytes, part: bytes, after: bytes = b"") -> Callable[[int], bytes]:
    """Make one that writes a part again and again, between what stands around it."""
    return lambda size: before + part * (max(1, size // len(part))) + after


def numbered(before: bytes, part: str, after: bytes, most: int) -> Callable[[int], bytes]:
    """Make one that writes parts that all differ."""

    def write(size: int) -> bytes:
        count = min(most, max(1, size // len(part)))
        return before + ",".join(part % number for number in range(count)).encode() + after

    return write


def text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def head_of(raw: bytes, name: bytes = b"content-type", target: str = "/mcp") -> Head:
    return Head("POST", target, ((name, raw),))


def parse_stream(raw: bytes, cut: int = 0) -> list[object]:
    parser = sse.EventParser()
    size = cut or len(raw)
    found = [parser.feed(raw[at : at + size]) for at in range(0, len(raw), size)]
    return [*found, parser.finish()]


def filter_stream(raw: bytes) -> bytes:
    stream = EventStream(Conversation(open_listener().policy))
    return stream.feed(raw) + (stream.finish() or b"")


def judge_request(raw: bytes) -> object:
    return open_listener().judge_request(POST, raw)


def judge_elsewhere(raw: bytes) -> object:
    return open_listener().judge_request(head_of(b"application/json", target="/else"), raw)


def judge_answer(raw: bytes, to: bytes = calling("read_file"), **options: Any) -> object:
    listener = open_listener(**options)
    passed = listener.judge_request(POST, to)
    assert isinstance(passed, Passed)
    return settled(listener.judge_answer(passed.exchange, 200, "application/json", "", raw))


def judge_asking(raw: bytes) -> object:
    return settled(open_listener(**THINGS).judge_request(POST, raw))


def judge_other_answer(raw: bytes) -> object:
    listener = open_listener()
    passed = listener.judge_request(Head("GET", "/", ()), b"")
    assert isinstance(passed, Passed)
    return listener.judge_answer(passed.exchange, 200, "text/plain", "", raw)


def learn_login(raw: bytes) -> None:
    paths = login_metadata.LoginPaths(UPSTREAM.url)
    paths.learn_head("GET", "/token", [text(raw)], [text(raw)])
    paths.learn_document(raw)
    login_metadata.is_login_document(text(raw))
    login_metadata.parse_challenges([text(raw)])


def judge_head(raw: bytes) -> None:
    for one in (
        head_of(raw),
        head_of(raw, b"accept"),
        head_of(raw, raw),
        head_of(b"", target="/?" + text(raw)),
    ):
        head.problem_in_size(one)
        head.problem_in_fields(one)
        _ = one.credentials


def read_result(raw: bytes) -> object:
    envelope = large.find_result_envelope(raw)
    return envelope and large.read_tool_result(raw, envelope, LIMITS)


def cancel_audited(raw: bytes) -> None:
    """Cancel as many requests as there are bytes; none of them is open."""
    kept: OpenRequests[OpenRequest] = OpenRequests()
    client = Client()
    for number, _ in enumerate(raw):
        exchange = RpcExchange("tools/call", str(number), "read")
        key = key_of(client, str(number))
        kept.add(OpenRequest(exchange, {"v": 1, "time": ""}, 0.0, None, client, key))
    for _ in raw:
        kept.take_by_id(client, '"none"')


def names_for(raw: bytes) -> list[str]:
    """As many names of hidden tools as there may be in a list of this length."""
    return [f"hidden_{number}" for number in range(len(raw) // 40)]


def list_beside_faults(raw: bytes) -> None:
    if listing := parse_listing(message(raw)):
        snapshot = replace(SNAPSHOT, faults=tuple(names_for(raw)))
        decide_listed(listing, snapshot)


def rewrite_events(raw: bytes) -> None:
    for event in sse.EventParser().feed(raw):
        if isinstance(event, sse.Event) and event.data is not None:
            event.hides_a_line()
            sse.with_data(event, b"x")


POST = head_of(b"application/json")

FORM = head_of(b"application/x-www-form-urlencoded")

CALL = message(calling("a"))
assert isinstance(CALL, messages.Request)

RESULT = b'{"jsonrpc":"2.0","id":1,"result":{"content":[],"structuredContent":'

TOOLS = b'{"jsonrpc":"2.0","id":1,"result":{"tools":['

PARAMS = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"read_file","arguments":'

FOREIGN = b'{"jsonrpc":"2.0","id":1,"method":"x","y":'

ANY = (
    b"a", b"aA", b" ", b"\t", b"\0", b'"', b"\\", b"\\u0061", b"<", b">", b"<a>", b"/", b"//", b":", b"@",
    b"a@", b"a:", b"a=", b"=", b";", b",", b".", b"0", b"0.", b"1.", b"0x", b"-", b"%", b"%25", b"%61",
    b"&", b"a&", b"?", b"#", b"[", b"]", b"[]", b"{", b"{}", b"{[", b"'", b"\xc2\xad", b"\xef\xbb\xbf",
    b"\xcc\x81\xcc\x96", b"\xef\xb7\xba", b"\xe2\x80\x8b", b"\xff", b"a\xcc\x81", b"xn--",
    b"\xe3\x80\x82", b"charset", b"charset=", b"; charset=utf-8", b"charset\t", b'charset="',
    b"http:", b"http://", b"http://a", b"http://localhost:3000", b"<http://localhost:3000>,",
    b"a://", b"tools", b"tools/call", b"tools_", b"method", b"jsonrpc", b"=?base64?", b"url=", b"0;url=",
    b"localhost", b"localhost.", b"a.", b"resource_metadata=", b"resource_metadata ", b"token", b"api-",
)  # fmt: skip

VALUES = (
    *(filled(b"[", part, b"0]") for part in (b"{},", b"[],", b'"",', b"1,", b"1e5,", b'{"":0},',
      b'{"a":[]},', b'[[[[0]]]],', b'"[{",', b'"\\"\\\\",', b'"\\u0061",', b'"\xc3\xa9",',
      b'{"name":"wipe_disk","inputSchema":0},', b'{"method":"\xc3\xa9"},', b'"tools\xc3\xa9",')),
    *(filled(b'"', part, b'"') for part in (b"a", b"\\n", b"\\\\", b'\\"', b"\\u0061", b"\xc3\xa9", b"[",
      b"\\ud83d", b"\xcc\x81\xcc\x96", b"tools/call ", b"%25", b"{\\\"")),
    filled(b"", b"1"), filled(b"1.", b"0"), filled(b"1e", b"0", b"1"), filled(b"-", b"9"),
    filled(b"", b" ", b"{}"), filled(b"{}", b"\n"), filled(b"", b"["), filled(b"", b'{"":'),
    filled(b"", b"[{"), filled(b"", b'"'), filled(b"", b'["\\"'), filled(b'"', b"\\u006"),
    lambda size: b"[" * 100 + b"]" * 99 + b",0" * (size // 2) + b"]",
    lambda size: (b"[" * 100 + b"]" * 100 + b",") * (size // 201),
    numbered(b"{", '"%09d":0', b"}", 10**6), numbered(b"{", '"k\u00e9\ufdfa%09d":0', b"}", 10**6),
    numbered(b"{", '"%09d":{"name":"wipe_disk"}', b"}", 10**6),
)  # fmt: skip


def named(method: str, before: str, after: str) -> tuple[Callable[[int], bytes], ...]:
    """Write names of a thing as they stand in a request or an answer."""
    head = f'{{"jsonrpc":"2.0","id":1,{method}{before}'.encode()
    return tuple(
        filled(head, part.encode(), f"{after}}}}}".encode())
        for part in ("\u0301\u0316", "\u0f73\u0301", "\u200b\u0301\u0316", "e\u0301", "%2e/", "%25",
                     "a:b/%2e%2e/\",\"", "../", "\\\\", ";a/", "?", "@", "h.", "\uff0f")
    )  # fmt: skip


def within(before: bytes, value: Callable[[int], bytes], after: bytes) -> Callable[[int], bytes]:
    return lambda size: before + value(size) + after


def all_within(before: bytes, after: bytes) -> tuple[Callable[[int], bytes], ...]:
    return tuple(within(before, value, after) for value in VALUES)


BATCHES = (
    numbered(b"[", calling("wipe_disk", id="%d").decode(), b"]", MOST_IN_BATCH),
    numbered(b"[", asking("ping", id="%09d").decode(), b"]", 10**6),
    filled(b"[", b"{},", b"{}]"),
)

LISTS = (
    numbered(TOOLS, '{"name":"a%09d","inputSchema":{}}', b"]}}", 10**6),
    numbered(TOOLS, '{"name":"read_file","inputSchema":{"tools":"%d"}}', b"]}}", 10**6),
    filled(TOOLS, b'{"":0,"":0},', b"{}]}}"),
    filled(TOOLS, b"[[]],", b"{}]}}"),
    filled(b'{"jsonrpc":"2.0","id":1,"result":{', b'"tools":[],', b'"a":0}}'),
    numbered(TOOLS + b"{", '"%09d":0', b"}]}}", 10**6),
    numbered(TOOLS + b'],"_meta":{', '"%09ddigest":0', b"}}}", 10**6),
    numbered(TOOLS + b"],", '"%09ddigest":0', b"}}", 10**6),
)

STREAMS = (
    b"data: {}\n\n", b"data: {}\r\r", b"data:\n", b"\n", b"\r", b"\r\n", b":\n", b": a\n\n", b"data", b"a:",
    b"event: endpoint\ndata: /a\n\n", b"event: a\n", b"id: 1\n\n", b"data: a\n", b"data: a\r\n", b"a\n",
    b"data: \n\ndata: a", b"data: {\"id\":1\n\n", b"\xef\xbb\xbf", b"\n\r", b"data: [\n", b"\x0b",
    filled(b"data: ", b"a"), filled(b"data: ", b"a", b"\n\n"), filled(b": ", b"a"), filled(b"data: ", b"\xff"),
    filled(b"event: ", b" "), filled(b"event: endpoint\ndata: ", b"/"), filled(b"data: ", b'"id":'),
)  # fmt: skip

ENDS = ("", "gzip", "deflate", "br", "zstd")


def packed(coding: str) -> tuple[Callable[[int], bytes], ...]:
    def write(size: int, part: bytes) -> bytes:
        raw = part * (size // len(part))
        match coding:
            case "gzip":
                return gzip.compress(raw)
            case "deflate":
                return zlib.compress(raw)
            case "br":
                return bytes(brotli.compress(raw))
            case _:
                return zstandard.ZstdCompressor().compress(raw)

    return tuple(partial(write, part=part) for part in (b"a", bytes(range(256))))


def members(raw: bytes) -> bytes:
    """Many small members of gzip one behind the other."""
    return gzip.compress(b"a") * (len(raw) // 21)


HEADERS = 7_000

BODY = 120_000


PARSERS = [
    Parser("judge_head", judge_head, ANY, HEADERS),
    Parser("charsets_in", lambda raw: bodies.charsets_in(text(raw)), ANY, HEADERS),
    Parser("refuse_partial", lambda raw: bodies.refuse_partial(200, text(raw)), ANY, HEADERS),
    Parser("refuse_packed", lambda raw: bodies.refuse_non_text(text(raw), raw), ANY, HEADERS),
    Parser("problem_in_mirrored", lambda raw: head.problem_in_mirrored(head_of(raw, b"mcp-name"), CALL), ANY, HEADERS),
    Parser("problem_in_source", lambda raw: problem_in_source(
        AllowedHosts(), Head("POST", "/", tuple((name, raw) for name in (b"host", b"origin", b"sec-fetch-site")))), ANY, HEADERS),
    Parser("keep_links: location", lambda raw: urls.keep_links([(b"location", raw)], UPSTREAM), ANY, HEADERS),
    Parser("keep_links: link", lambda raw: urls.keep_links([(b"link", raw)], UPSTREAM), ANY, HEADERS),
    Parser("keep_links: refresh", lambda raw: urls.keep_links([(b"refresh", raw)], UPSTREAM), ANY, HEADERS),
    Parser("leads_away", lambda raw: urls.leads_away([(b"location", raw)]), ANY, HEADERS),
    Parser("kept_with_us", lambda raw: urls.kept_with_us("http://" + text(raw), UPSTREAM), ANY, HEADERS),
    Parser("may_lead_round", lambda raw: urls.may_lead_round("//" + text(raw), UPSTREAM), ANY, HEADERS),
    Parser("plain_hosts", lambda raw: urls.plain_hosts(text(raw)), ANY, HEADERS),
    Parser("parse_origin", lambda raw: urls.parse_origin("http://" + text(raw)), ANY, HEADERS),
    Parser("masks in a path", lambda raw: _PARAMETER.sub(b"", b"/x?" + raw), (*ANY, b"?a", b"&a="), BODY),
    Parser("learn_login", learn_login, (*ANY, b'"\\'), HEADERS),
    Parser("fold", lambda raw: messages.fold(text(raw)), ANY, BODY),
    Parser("is_like_a_call", lambda raw: messages.is_like_a_call(text(raw)), ANY, BODY),
    Parser("problem_in_body: form", lambda raw: head.problem_in_body(
        FORM, raw, is_endpoint=False, limits=LIMITS), ANY, 60_000),
    *(Parser(f"decode_body: {coding}", partial(bodies.decode_body, coding=coding, limit=LIMITS.message),
             packed(coding), 10 * BODY) for coding in ENDS[1:]),
    Parser("decode_body: members", lambda raw: bodies.decode_body(members(raw), "gzip", limit=LIMITS.message),
           (b"a",), BODY),
    *(Parser(f"decode_body: not {coding}", partial(bodies.decode_body, coding=coding, limit=LIMITS.message),
             (b"a", b"\0", b"\x1f\x8b"), BODY) for coding in ENDS[1:]),
    Parser("EventParser: whole", parse_stream, STREAMS, BODY),
    Parser("EventParser: in pieces", partial(parse_stream, cut=61), STREAMS, BODY),
    Parser("EventParser: byte by byte", partial(parse_stream, cut=1), STREAMS, 20_000),
    Parser("parse_event", sse.parse_event, STREAMS, BODY),
    Parser("with_data", rewrite_events, STREAMS, BODY),
    Parser("EventStream", filter_stream, STREAMS, 60_000),
    Parser("parse_message", messages.parse_message, (*ANY, *VALUES, *BATCHES, *LISTS), BODY),
    Parser("parse_message: result", messages.parse_message, all_within(RESULT, b"}}"), BODY),
    Parser("parse_message: arguments", messages.parse_message, all_within(PARAMS, b"}}"), BODY),
    Parser("parse_message: unknown member", messages.parse_message, all_within(FOREIGN, b"}"), BODY),
    Parser("is_json_rpc", messages.is_json_rpc, (*ANY, *VALUES), BODY),
    Parser("ids_in", messages.ids_in, (*ANY, *VALUES, *BATCHES), BODY),
    Parser("ids_guessed_in", messages.ids_guessed_in, (*ANY, b'"id":1', b'"id":"', b'"id" ', b'"id":1.0e'), BODY),
    Parser("id_value", lambda raw: messages.id_value(text(raw) or "0"), (b"1", b"0", filled(b"1.", b"0"),
           filled(b"1e", b"1"), filled(b'"', b"\\u0061", b'"'), filled(b"", b"0", b".1")), 3_000),
    Parser("parse_listing", lambda raw: parse_listing(message(raw)), LISTS, BODY),
    Parser("decide_listed: as many faults", list_beside_faults, LISTS[:1], BODY),
    Parser("parse_in_steps", lambda raw: list(large.parse_in_steps(raw, LIMITS)), LISTS, BODY),
    Parser("read_tool_result", read_result, all_within(RESULT, b"}}"), BODY),
    Parser("in_parts", lambda raw: list(large.in_parts(raw)), LISTS, BODY),
    Parser("shows_tool", lambda raw: shows_tool(text(raw), NAMES), VALUES, BODY),
    Parser("could_show_tool", lambda raw: bodies.could_show_tool(raw, NAMES, LIMITS), (*ANY, *VALUES), BODY),
    Parser("shows_tool: as many names", lambda raw: shows_tool(text(raw), names_for(raw)),
           (filled(b"[", b'{"tools":"{schema"},', b"{}]"),), BODY),
    Parser("could_show_tool: as many names", lambda raw: bodies.could_show_tool(
        raw, [""], LIMITS, in_text=names_for(raw)), (filled(b"<p>", b"a"), filled(b"<p>inputSchema", b"a")), BODY),
    Parser("judge_request", judge_request, (*VALUES, *BATCHES, *all_within(PARAMS, b"}}")), BODY),
    Parser("judge_request: elsewhere", judge_elsewhere, (*ANY, *VALUES, *BATCHES), BODY),
    Parser("judge_answer", judge_answer, (*LISTS, *all_within(RESULT, b"}}")), BODY),
    Parser("judge_answer: no message", judge_other_answer, (*ANY, *VALUES, *LISTS), BODY),
    *(Parser(f"judge_request: {method}", judge_asking, named(f'"method":"{method}",', before, after), 30_000)
      for method, before, after in (
        ("prompts/get", '"params":{"name":"', '"'), ("resources/read", '"params":{"uri":"', '"'),
        ("resources/subscribe", '"params":{"uri":"', '"'), ("skills/get", '"params":{"name":"', '"'))),
    *(Parser(f"judge_answer: {method}", partial(judge_answer, to=asking(method), **THINGS),
             named('"result":', before, after), 30_000)
      for method, before, after in (
        ("prompts/list", '{"prompts":[{"name":"', '"}]'), ("resources/list", '{"resources":["', '"]'))),
    Parser("judge_answer: beside a list", partial(judge_answer, to=asking("tools/list")), all_within(
        b'{"jsonrpc":"2.0","id":1,"result":{"tools":[],"x":', b"}}"), 40_000),
    Parser("introduced", lambda raw: introduced("", text(raw), Names([])), ANY, 30_000),
    Parser("render_body", lambda raw: render_body(raw, "application/json"), (*LISTS, *all_within(RESULT, b"}}")), 30_000),
    Parser("render_body: stream", lambda raw: render_body(raw, "text/event-stream"), STREAMS, 30_000),
    Parser("tools_in", lambda raw: tools_in(raw, "application/json"), LISTS, BODY),
    Parser("messages_in", messages_in, (*BATCHES, *LISTS), BODY),
    Parser("cancelled requests: audit log", cancel_audited, (b"x",), 2000),
]  # fmt: skip
