"""What reads untrusted text takes twice the steps for twice the text.

Each reader gets every shape, so that a new shape is tried on all of them. We count instructions of
the interpreter, not seconds. (What a regex does is not visible here: see ``test_linear``. Neither
is what is copied.)
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import CodeType

import pytest

from mcp_tool_filter.core.engine.wire import AnswerWire, Fault, RequestWire
from mcp_tool_filter.core.errors import ProtocolError, StartError
from mcp_tool_filter.core.http import asker, bodies, urls
from mcp_tool_filter.core.http.head import Head, problem_in_fields
from mcp_tool_filter.core.http.shown import shown_url
from mcp_tool_filter.core.messages import large, messages, skim, tools
from mcp_tool_filter.core.messages.limits import Limits
from mcp_tool_filter.core.messages.sse import EventParser
from mcp_tool_filter.core.policy.effects import waits
from mcp_tool_filter.rooms.catalog import uris
from mcp_tool_filter.rooms.clients import entries, jsonc
from mcp_tool_filter.rooms.lock import changes
from mcp_tool_filter.rooms.lock.lock import Json
from mcp_tool_filter.rooms.logins import metadata
from mcp_tool_filter.rooms.logins.logins_through import without_metadata_urls
from mcp_tool_filter.rooms.secrets import finder, shown
from mcp_tool_filter.rooms.stdio import lines
from tests.core.policy.talking import Talk

TOOL = sys.monitoring.OPTIMIZER_ID
SIZE = 400  # characters of the shortest text
ALLOWED = 2.6  # times as many more steps for twice as much more text
FREE = 3000  # steps, whatever the size


def steps_of[T](read: Callable[[T], object], text: T) -> int:
    count = 0

    def step(_code: CodeType, _offset: int) -> None:
        nonlocal count
        count += 1

    sys.monitoring.use_tool_id(TOOL, "steps")
    sys.monitoring.register_callback(TOOL, sys.monitoring.events.INSTRUCTION, step)
    sys.monitoring.set_events(TOOL, sys.monitoring.events.INSTRUCTION)
    try:
        with suppress(ProtocolError, StartError, Fault, ValueError, uris.UnclearUri):
            read(text)
    finally:
        sys.monitoring.set_events(TOOL, 0)
        sys.monitoring.register_callback(TOOL, sys.monitoring.events.INSTRUCTION, None)
        sys.monitoring.free_tool_id(TOOL)
    return count


def grows(read: Callable[[str], object], unit: str, start: str = "", end: str = "") -> bool:
    """Tell whether the steps grow faster than the text, also where it is longer.

    (From some length on, a text may be read in another way, with more steps for each character.)
    """
    return all(_grows(read, unit, start, end, size) for size in (SIZE, 4 * SIZE))


def _grows(read: Callable[[str], object], unit: str, start: str, end: str, size: int) -> bool:
    texts = [start + unit * (size * times // len(unit)) + end for times in (1, 2, 4)]
    steps_of(read, texts[0])  # what is made once
    few, twice, most = (steps_of(read, text) for text in texts)
    return most - twice > ALLOWED * max(0, twice - few) + FREE


def raw(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def one_by_one(text: str) -> None:
    parser = EventParser()
    for byte in raw(text):
        parser.feed(bytes([byte]))
    parser.finish()


def head_named(text: str) -> None:
    head = Head("POST", "/mcp", ((raw(text), b"a"), (b"authorization", raw(text))))
    problem_in_fields(head)
    asker.identity_in(head, f"/mcp?{text}")


def head_with(text: str) -> None:
    head = Head("POST", text, ((b"cookie", raw(text)), (b"mcp-name", raw(text)), (b"x", raw(text))))
    problem_in_fields(head)
    asker.identity_in(head, f"/mcp?{text}")


def wired(wire: RequestWire | AnswerWire, text: str) -> None:
    wire.receive(raw(text))
    while wire.next() is not None:
        pass


def listed(text: str) -> None:
    message = messages.parse_message(raw(text))
    tools.parse_listing(message)  # type: ignore[arg-type]
    tools.shows_tool(text, ["rm"])


def introduced(text: str) -> None:
    before: Json = {"name": "a", "description": ""}
    after: Json = {"name": "a", "description": text}
    for _ in changes.introduced(before, after, changes.Names(["a", "rm"])):
        pass


def judged(text: str) -> None:
    """Judge a message of a client, and the same as one of the upstream."""
    talking = Talk(deny=["^rm"], deny_resources=["^file:///etc"], deny_prompts=["x"])
    for judge in (talking.conversation.from_client, talking.conversation.from_upstream):
        decision = judge(raw(text))
        for _ in decision if waits(decision) else ():
            pass


PLACES = (
    '"method":"tools/call","params":{"name":"a","arguments":{"a":%s}}',
    '"method":"tools/call","params":{"name":%s}',
    '"method":"prompts/get","params":{"name":%s}',
    '"method":"resources/read","params":{"uri":%s}',
    '"method":"vendor/x","params":{"a":%s,"method":"tools/x"}',
    '"method":%s',
    '"error":{"code":1,"message":%s}',
    '"result":{"content":[{"type":"text","text":%s}]}',
    '"result":{"tools":[{"name":"a","description":%s}]}',
    '"result":{"resources":[{"uri":%s,"name":"a"}]}',
)
"""Where messages have texts that others choose."""


def written(text: str) -> None:
    for place in PLACES:
        judged(f'{{"jsonrpc":"2.0","id":1,{place % json.dumps(text)}}}')


UPSTREAM = urls.UpstreamNames("http://localhost:3000/mcp")
READERS: Mapping[str, Callable[[str], object]] = {
    "header name": head_named,
    "header value": head_with,
    "request": lambda text: wired(RequestWire(), text),
    "answer": lambda text: wired(AnswerWire(), text),
    "url": lambda text: (urls.kept_with_us(text, UPSTREAM), urls.may_lead_round(text, UPSTREAM)),
    "host": urls.plain_hosts,
    "links": lambda text: urls.keep_links(
        [(b"link", raw(text)), (b"refresh", raw(text))], UPSTREAM
    ),
    "content type": bodies.charsets_in,
    "message": lambda text: messages.parse_message(raw(text)),
    "conversation": judged,
    "text in messages": written,
    "ids": lambda text: messages.ids_guessed_in(raw(text)),
    "method": messages.refuse_lookalike,
    "ends": lambda text: skim.find_ends(raw(text), 500),
    "envelope": lambda text: large.find_result_envelope(raw(text)),
    "params": lambda text: judged(
        f'{{"jsonrpc":"2.0","id":1,"method":"a","params":{{"method":"GET","é":{text}}}}}'
    ),
    "list": listed,
    "list in steps": lambda text: list(large.parse_in_steps(raw(text), Limits())),
    "events": lambda text: EventParser().feed(raw(text)),
    "events in bytes": one_by_one,
    "challenge": lambda text: metadata.parse_challenges([text]),
    "metadata": metadata.metadata_urls_in,
    "challenge passed on": without_metadata_urls,
    "document": metadata.is_login_document,
    "uri": uris.spellings_of,
    "uri of a rule": uris.parse_uri,
    "secrets": finder.redact,
    "secrets in a header": lambda text: finder.SecretFinder().in_header("cookie", text),
    "secrets in a form": lambda text: finder.SecretFinder().in_body(
        raw(text), "application/x-www-form-urlencoded"
    ),
    "secrets in parts": lambda text: finder.SecretFinder().in_body(
        raw(text), "multipart/form-data; boundary=a"
    ),
    "secrets in events": lambda text: finder.SecretFinder().in_body(raw(text), "text/event-stream"),
    "command": lambda text: shown.shown_command([text, f"--a={text}"]),
    "shown url": shown_url,
    "client file": jsonc.parse,
    "variables": lambda text: (entries.doubled(text), entries.expanded(text, {})),
    "change": introduced,
    "line": lambda text: lines.LineParser().feed(raw(text)),
    "cut line": lambda text: lines.ids_in_cut(lines.CutLine(raw(text), raw(text), 2 * len(text))),
}
SHAPES = [
    ("a", "", ""), ("amz-", "x-", ""), ("hmac", "", ""), ("/", "skill:", ""), ("<", "", ""),
    (" ", "", "x"), ("\t", "a:", ""), ("a=", "", ""), ("password=", "", ""), ("token: ", "", ""),
    ("'", "", ""), ('"', "", ""), ('\\"', '"', ""), ("\\", "", '"'), ("[", "", ""), ("{", "", ""),
    ('{"a":', "", ""), ('[1,', "[", ""), ("/*", "", ""), ("//a@", "http:", ""), ("${", "", ""),
    ("?a=", "http://a/", ""), ("&a=b", "a=b", ""), ("%41", "", ""), ("%25", "a:", ""),
    (";", "a", ""), ("../", "file:///", ""), (".", "a", ""), ("-", "", ""), ("key-", "", ""),
    ("1", "", "x"),
    ("\n", "", ""), ("\r", "", ""), ("\r\n", "", ""), ("data: a\n", "", ""), (":\n", "", ""),
    ("data:a\n", "", "\n"), (",", "", ""), (", a", "Bearer b", ""), ('a="b", ', "Bearer ", ""),
    ("a: b\r\n", "POST / HTTP/1.1\r\n", "\r\n"), ("a: b\r\n", "HTTP/1.1 200 OK\r\n", "\r\n"),
    ("1\r\na\r\n", "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", "0\r\n\r\n"),
    ("a", "POST / HTTP/1.1\r\nX: ", "\r\n\r\n"), ("@", "http://", "h"), (":", "a", ""),
    ('"id":1,', "{", ""), ('{"name":"a"},', '{"id":1,"result":{"tools":[', '{"name":"b"}]}}'),
    ('{"a":"b"},', '{"a":[', '{}]}'), ('"a",', "[", '"a"]'), ("\\u0061", '"', '"'),
    ("--a\r\n\r\nb\r\n", "", "--a--"), ("--a ", "", ""), ("http://a ", "", ""), ("a:/", "", ""),
    ("<a>", "", ""), ("\u0301", "a", ""), ("\u00e9", "", ""), ("a\u200b", "", ""), ("a.", "", ""),
    ("name='a'", "<a ", ">"), ("0.", "", ""), ("always call ", "", ""), ("ignore all ", "", ""),
]  # fmt: skip


@pytest.mark.parametrize("reader", READERS)
def test_twice_the_text_takes_twice_the_steps(reader: str) -> None:
    read = READERS[reader]
    slow = [shape for shape in SHAPES if grows(read, *shape)]
    assert slow == []


def test_steps_that_grow_faster_are_found() -> None:
    assert grows(lambda text: [one for one in text[::8] for _ in text[::8]], "a")
    assert not grows(lambda text: [one.isdigit() for one in text], "a")
