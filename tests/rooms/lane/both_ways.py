"""Let a call go through the lane and the whole way; return what could be seen of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from mcp_tool_filter.cli.parsing import parse_config
from mcp_tool_filter.core.conversation.memory import example
from mcp_tool_filter.core.conversation.policy_in_force import PlainCall, Watch
from mcp_tool_filter.core.policy.situation import Editor, RpcExchange
from mcp_tool_filter.core.process.statistics import Statistics
from mcp_tool_filter.rooms.lane.lane import take_lane
from tests.core.engine.table import Client, Table
from tests.raw_client import MCP_HEADERS, post
from tests.raw_upstream import SSE_HEAD, answer, chunk

HEAD = MCP_HEADERS + b"Mcp-Session-Id: s1\r\nMCP-Protocol-Version: 2025-06-18\r\n"
INITIALIZE = (
    b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":"2025-06-18",'
    b'"capabilities":{},"clientInfo":{"name":"c","version":"1"}}}'
)
OPENED = answer(
    b'{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":"2025-06-18","capabilities":{"tools":{}},'
    b'"serverInfo":{"name":"u","version":"1"}}}'
).replace(b"\r\n\r\n", b"\r\nMcp-Session-Id: s1\r\n\r\n", 1)
LIST = b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}'
TOOLS = (
    b'{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name":"read","inputSchema":{}},'
    b'{"name":"wipe","description":"secret-of-wipe","inputSchema":{}}]}}'
)
CALL = (
    b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"name":"read","arguments":{"a":1}}}'
)
RESULT = b'{"jsonrpc":"2.0","id":7,"result":{"content":[{"type":"text","text":"x"}]}}'
ERROR = b'{"jsonrpc":"2.0","id":7,"error":{"code":-1,"message":"no"}}'

META = (
    b'{"io.modelcontextprotocol/protocolVersion":"2026-07-28",'
    b'"io.modelcontextprotocol/clientInfo":{"name":"c","version":"1"},'
    b'"io.modelcontextprotocol/clientCapabilities":{"elicitation":{"form":{}}}}'
)


@dataclass(frozen=True)
class Style:
    """How a client speaks: with a session, or what it says of itself in each request."""

    head: bytes
    """Of its calls."""
    has_session: bool = False
    meta: bytes = b""
    listing: bytes = b""
    """The head of its lists, if that differs."""
    called: bytes = b"read"
    """The tool that the head names, if it names one."""

    def said(self, message: bytes) -> bytes:
        """Return a message with its ``_meta``, and perhaps nothing else in its params."""
        if not self.meta or b"_meta" in message or not message.endswith(b"}}"):
            return message
        more = b"" if message.endswith(b"{}}") else b","
        return b'%b%b"_meta":%b}}' % (message[:-2], more, self.meta)


NEWEST = MCP_HEADERS + b"MCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/"
STYLES = {
    "session": Style(HEAD, has_session=True),
    "no session": Style(HEAD.replace(b"Mcp-Session-Id: s1\r\n", b"")),
    "2026-07-28": Style(
        NEWEST + b"call\r\nMcp-Name: read\r\n", meta=META, listing=NEWEST + b"list\r\n"
    ),
}
SESSION = STYLES["session"]

NOTE = b'data: {"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info"}}\n\n'

type Act = Callable[[Table, Client], object]


def says(raw: bytes) -> Act:
    return lambda table, _client: table.link.says(raw)


@dataclass
class Ready:
    """A table with an open session, whose client has listed the tools and called one."""

    table: Table
    client: Client
    counted: Statistics
    lanes: int = 0

    def plain_begins(self, _call: PlainCall) -> None:
        self.lanes += 1

    def plain_ends(self, call: PlainCall) -> None:
        pass

    def plain_leaves(self, call: PlainCall, exchange: RpcExchange, origin: object) -> None:
        pass


def ready(
    *, has_lane: bool, style: Style = SESSION, watch: Watch | None = None, more: bytes = b"",
    editor: Editor | None = None, **options: Any,
) -> Ready:  # fmt: skip
    """A client that has called before: it is known, and so is the head of its calls. ``more`` is
    the name of one more tool, as it is written in JSON."""
    names = ("read", "wipe", *filter(None, [more.decode()]))
    fetched = replace(example(*names), endpoint="/mcp", sessions=style.has_session)
    tools = TOOLS.replace(b"}]", b'},{"name":"%b","inputSchema":{}}]' % more) if more else TOOLS
    table = Table(fetched=fetched, **options)
    if editor is not None:
        table.listener.policy.adopt(replace(table.listener.policy.config, editor=editor))
    counted, policy = Statistics(), table.listener.policy
    it = Ready(table, table.client(), counted)
    others = [watch] if watch is not None else []
    seen = [one.of_messages for one in others]
    policy.observe = counted.observer(lambda: 0.0, lambda _judged: None, seen)
    policy.observe_plain = counted.observer_of_plain([it, *(one.of_plain_calls for one in others)])
    table.service.take_lane = take_lane if has_lane else None
    if style.has_session:
        it.client.says(post(INITIALIZE, headers=MCP_HEADERS))
        table.link.says(OPENED)
    call = CALL.replace(b'"read"', b'"%b"' % style.called)
    for said, answered in ((LIST, answer(tools)), (call, answer(RESULT))):
        head = style.listing if said is LIST and style.listing else style.head
        it.client.says(post(style.said(said), headers=head))
        table.link.says(answered)
    assert it.client.taken().endswith(RESULT)
    it.lanes = 0
    return it


def heard(it: Ready, body: bytes, acts: Sequence[Act], head: bytes) -> dict[str, object]:
    """Return all that can be seen from outside."""
    table, client = it.table, it.client
    before = len(table.link.got)
    client.says(post(body, headers=head))
    for act in acts:
        act(table, client)
        table.serve_others()
    policy = table.listener.policy
    return {
        "client": client.got,
        "upstream": [table.links[0].got[before:], *(link.got for link in table.links[1:])],
        "open": [(link.is_open, link.is_held) for link in table.links],
        "client is open": (client.is_open, client.was_aborted, client.is_held),
        "counts": it.counted,
        "exchanges": len(table.service.exchanges),
        "calls in the lane": len(table.service.lanes),  # now all of them are whole
        "sessions": [
            (key, session.has_acted, bool(session.who))
            for key, _, session in table.listener.sessions
        ],
        "kinds": len(policy.kinds),
    }


def compared(
    body: bytes, *acts: Act, style: Style = SESSION, **options: Any
) -> tuple[bool, dict[str, object]]:
    """Let a call go both ways; return whether the lane took it, and what was seen."""
    seen = []
    for has_lane in (True, False):
        it = ready(has_lane=has_lane, style=style, **options)
        seen.append((it.lanes, heard(it, style.said(body), acts, style.head), it.lanes))
    (_, short, taken), (_, whole, never) = seen
    assert never == 0
    assert short == whole
    return taken > 0, whole


ANSWERS = {
    "result": answer(RESULT),
    "chunked": b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked"
    b"\r\n\r\n" + chunk(RESULT) + b"0\r\n\r\n",
    "other order": answer(b'{"result":{"content":[]},"jsonrpc":"2.0","id":7}'),
    "is error": answer(RESULT.replace(b"]}}", b'],"isError":true}}')),
    "is no error": answer(RESULT.replace(b"]}}", b'],"isError":false}}')),
    "meta": answer(RESULT.replace(b"]}}", b'],"_meta":{"a":1}}}')),
    "a list": answer(TOOLS.replace(b'"id":1', b'"id":7')),
    "a list twice": answer(RESULT.replace(b'"content"', b'"tools":[{"name":"wipe"}],"content"')),
    "tools in the meta": answer(
        RESULT.replace(b"]}}", b'],"_meta":{"tools":[{"name":"wipe","inputSchema":{}}]}}}')
    ),
    "content twice": answer(RESULT.replace(b'"content"', b'"content":[],"content"')),
    "another id": answer(RESULT.replace(b":7,", b":8,")),
    "id as text": answer(RESULT.replace(b":7,", b':"7",')),
    "two ids": answer(RESULT.replace(b":7,", b':7,"id":7,')),
    "error": answer(ERROR),
    "error beside": answer(RESULT.replace(b',"result"', b',"error":{},"result"')),
    "notification": answer(b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}'),
    "batch": answer(b"[" + RESULT + b"]"),
    "two values": answer(RESULT + RESULT),
    "not JSON": answer(b"hello"),
    "empty": answer(b""),
    "bad UTF-8": answer(RESULT.replace(b'"x"', b'"\xff"')),
    "control": answer(RESULT.replace(b'"x"', b'"\x00"')),
    "deep": answer(RESULT.replace(b'"x"', b"[" * 300 + b"]" * 300)),
    "404": answer(RESULT, status="404 Not Found"),
    "202": answer(b"", status="202 Accepted"),
    "401": answer(b"no", status="401 Unauthorized"),
    "101": b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n",
    "session": OPENED.replace(OPENED.partition(b"\r\n\r\n")[2], RESULT).replace(
        b"Content-Length: %d" % len(OPENED.partition(b"\r\n\r\n")[2]),
        b"Content-Length: %d" % len(RESULT),
    ),
    "a redirect": answer(RESULT).replace(b"\r\n", b"\r\nLocation: http://other/\r\n", 1),
    "coded": answer(RESULT).replace(b"\r\n", b"\r\nContent-Encoding: gzip\r\n", 1),
    "other kind": answer(RESULT, kind="text/plain"),
    "charset": answer(RESULT, kind="application/json; charset=utf-16"),
    "event": SSE_HEAD + chunk(b"data: " + RESULT + b"\n\n") + b"0\r\n\r\n",
    "whole event": answer(b"data: " + RESULT + b"\n\n", kind="text/event-stream"),
    "event with a list": answer(
        b"data: " + TOOLS + b"\n\ndata: " + RESULT + b"\n\n", kind="text/event-stream"
    ),
    **{
        f"event: {name}": SSE_HEAD + b"".join(map(chunk, said)) + b"0\r\n\r\n"
        for name, said in {
            "named": [b"event: message\ndata: " + RESULT + b"\n\n"],
            "with an id": [b"id: a-1\nevent: message\ndata: " + RESULT + b"\n\n"],
            "CRLF": [b"event: message\r\ndata: " + RESULT + b"\r\n\r\n"],
            "mixed line ends": [b"event: message\r\ndata: " + RESULT + b"\n\n"],
            "CR": [b"data: " + RESULT + b"\r\r"],
            "half a CRLF": [b"data: " + RESULT + b"\r\n\r"],
            "no space": [b"data:" + RESULT + b"\n\n"],
            "another name": [b"event: other\ndata: " + RESULT + b"\n\n"],
            "an endpoint": [b"event: endpoint\ndata: " + RESULT + b"\n\n"],
            "two names": [b"event: message\nevent: endpoint\ndata: " + RESULT + b"\n\n"],
            "in two lines": [b"data: " + RESULT.replace(b",", b",\ndata: ", 1) + b"\n\n"],
            "in two lines of JSON": [b"data: " + RESULT.replace(b",", b",\n", 1) + b"\n\n"],
            "a line end in the result": [b"data: " + RESULT.replace(b"[{", b"[\n{") + b"\n\n"],
            "a CR in the result": [b"data: " + RESULT.replace(b"[{", b"[\r{") + b"\n\n"],
            "a line between": [b"data: " + RESULT[:-1] + b"\nretry: 1\ndata: }\n\n"],
            "a comment first": [b": hello\n\n", b"data: " + RESULT + b"\n\n"],
            "an empty event first": [b"id: a\ndata: \n\n", b"data: " + RESULT + b"\n\n"],
            "a notification first": [NOTE, b"data: " + RESULT + b"\n\n"],
            "with the result in one chunk": [NOTE + b"data: " + RESULT + b"\n\n"],
            "a notification after": [b"data: " + RESULT + b"\n\n", NOTE],
            "a comment after": [b"data: " + RESULT + b"\n\n", b": bye\n\n"],
            "the result twice": [b"data: " + RESULT + b"\n\n"] * 2,
            "a list after": [b"data: " + RESULT + b"\n\n", b"data: " + TOOLS + b"\n\n"],
            "no blank line": [b"data: " + RESULT + b"\n"],
            "in pieces": [b"data: " + RESULT[:9], RESULT[9:] + b"\n\n"],
            "an error": [b"data: " + ERROR + b"\n\n"],
            "another id": [b"data: " + RESULT.replace(b":7,", b":8,") + b"\n\n"],
            "nothing": [],
            "a BOM": [b"\xef\xbb\xbfdata: " + RESULT + b"\n\n"],
            "a line that some see": [b"id: a\x0bdata: x\ndata: " + RESULT + b"\n\n"],
        }.items()
    },
    "event without an end": SSE_HEAD + chunk(b"data: " + RESULT + b"\n\n"),
    "event and not a chunk": SSE_HEAD + chunk(b"data: " + RESULT + b"\n\n") + b"hello\r\n",
    "event until the end": SSE_HEAD.replace(b"Transfer-Encoding: chunked\r\n", b"")
    + b"data: "
    + RESULT
    + b"\n\n",
    "event with an ETag": SSE_HEAD.replace(b"\r\n", b"\r\nETag: x\r\n", 1)
    + chunk(b"data: " + RESULT + b"\n\n")
    + b"0\r\n\r\n",
    "event with another status": SSE_HEAD.replace(b"200 OK", b"404 Not Found")
    + chunk(b"data: " + RESULT + b"\n\n")
    + b"0\r\n\r\n",
    "complete": answer(RESULT.replace(b"]}}", b'],"resultType":"complete"}}')),
    "more is wanted": answer(RESULT.replace(b"]}}", b'],"resultType":"input_required"}}')),
    "cut": answer(RESULT)[:-3],
    "closes": answer(RESULT).replace(b"\r\n", b"\r\nConnection: close\r\n", 1),
    "two answers": answer(RESULT) + answer(RESULT),
    "not HTTP": b"hello\r\n\r\n",
    "date": answer(RESULT).replace(b"\r\n", b"\r\nDate: today\r\nX-A: b\r\n", 1),
}


def edit(table: Table, _client: Client) -> None:
    table.listener.policy.adopt(parse_config(deny=["^read"]))


def list_changes(table: Table, _client: Client) -> None:
    table.listener.policy.kinds.note_change_for_all()


def reads_slowly(_table: Table, client: Client) -> None:
    client.engine.held(True)


def gives_up(table: Table, _client: Client) -> None:
    for one in list(table.service.exchanges):
        one.give_up()


def loses(table: Table, _client: Client) -> None:
    for one in list(table.service.exchanges):
        one.lose("gone")


MEANWHILE: dict[str, Act] = {
    "the client leaves": lambda _table, client: client.leaves(),
    "the upstream leaves": lambda table, _client: table.link.ends(),
    "somebody asks for the exchanges": lambda table, _client: table.service.exchanges,
    "they are given up": gives_up,
    "the upstream is lost": loses,
    "the policy is edited": edit,
    "the list changes": list_changes,
    "the client reads slowly": reads_slowly,
    "the process ends": lambda table, _client: setattr(table.service, "is_ending", True),
    "the process drains": lambda table, _client: setattr(table.service, "is_draining", True),
    "more requests come": lambda _table, client: client.says(post(CALL, headers=HEAD)),
    "too much comes ahead": lambda _table, client: client.says(post(b" " * 1_200_000)),
    "a bad request comes": lambda _table, client: client.says(b"x\r\n\r\n"),
    "time passes": lambda _table, client: client.engine.tick(1e9),
}
