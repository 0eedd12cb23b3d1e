"""``mcp-tool-filter demo``: run an MCP server with the filter, and show what an agent sees.

The server speaks Streamable HTTP, from 2025-03-26 to 2026-07-28. It has the tools of an agent in a
small company, only repeats what it was asked to do, and remembers which tools were called.

>>> len(TOOLS), TOOLS[0]["name"]
(20, 'file_read')
"""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio import Event
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from ssl import SSLContext
from typing import Any, Final

from mcp_tool_filter import __version__
from mcp_tool_filter.cli.commands.http import HttpFilter
from mcp_tool_filter.cli.flags import Given
from mcp_tool_filter.cli.http_server import http_server
from mcp_tool_filter.cli.options import CHOICE, OPTIONS
from mcp_tool_filter.cli.report import estimate_tokens
from mcp_tool_filter.cli.settings import Settings, settle
from mcp_tool_filter.cli.terminal import (
    Colour,
    columns,
    log_to_stderr,
    on_signals,
    paint,
    say,
    shortened,
    width,
)
from mcp_tool_filter.core.http.urls import parse_origin
from mcp_tool_filter.core.messages.limits import (
    INITIALIZE_REVISIONS,
    KNOWN_REVISIONS,
    META_REVISION,
    NEWEST_STATELESS,
    NEWEST_WITH_INITIALIZE,
    REVISION_KEY,
)
from mcp_tool_filter.core.sockets.client import HttpClient
from mcp_tool_filter.core.sockets.serve import bind
from mcp_tool_filter.core.sockets.served import ServedRequest, ServedResponse
from mcp_tool_filter.core.upstream.clients import JSON_BODY, Poster, StreamableClient
from mcp_tool_filter.core.upstream.replies import Refused

_DENY = r"^file_(?:write|move|delete)$,_database$,^shell_,_production$,^email_(?:send|delete)$"
_LIMIT = 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the agent saw."""

    tools: list[dict[str, Any]]
    size: int
    """The size of the list in bytes."""
    calls: dict[str, str]
    """The result of calling each tool."""


def run(given: Given) -> int:
    """Run the demo; return the exit status."""
    stays = bool(given.pop("stay", None)) or "inspect" in given
    if given.keys().isdisjoint(CHOICE):
        given["deny"] = [_DENY]
    given.setdefault("port", [OPTIONS["port"].default if stays else "0"])
    log_to_stderr(0)
    return asyncio.run(_show(given, stays))


async def _show(given: dict[str, list[str]], stays: bool) -> int:
    async with demo_upstream() as upstream:
        settings = settle({**given, "upstream": [upstream.url]})
        settings.config()
        async with _running(settings) as url:
            before = await _look(upstream.url)
            after = await _look(url, [tool["name"] for tool in before.tools])
            print("\n".join(_lines(settings, before, after, upstream)))
            print("\nNext: mcp-tool-filter")
            if stays:
                say(f"\nThe filter listens at {url}, in front of {upstream.url}; Ctrl+C ends both.")
                signalled = Event()
                on_signals(asyncio.get_running_loop(), signalled.set)
                await signalled.wait()
    return 0


@asynccontextmanager
async def _running(settings: Settings) -> AsyncIterator[str]:
    """Run the filter in this process, as the launcher does."""
    running = HttpFilter(settings, bind(settings.host, settings.port), report=lambda _report: None)
    await running.server.start()
    try:
        yield f"{running.server.address}{PATH}"
    finally:
        await running.server.close()


async def _look(url: str, known: Sequence[str] = ()) -> _Seen:
    """Connect as an agent's client would, and list the tools; of the tools that are known from
    before, call one that is hidden now, and one that is not."""
    http = HttpClient(parse_origin(url))
    client = StreamableClient(Poster(http, PATH, limit=_LIMIT))
    reply = await client.initialize()
    await client.initialized(str(reply.result[REVISION_KEY]))
    listed = await client.request("tools/list", {})
    tools = json.loads(listed.raw)["result"]["tools"]
    left = [tool["name"] for tool in tools]
    hidden = [name for name in known if name not in left]
    calls = [*hidden[-1:], *[name for name in known if name in left][:1]]
    seen = _Seen(tools, len(listed.raw), {name: await _call(client, name) for name in calls})
    await http.close()
    return seen


async def _call(client: StreamableClient, name: str) -> str:
    try:
        reply = await client.request("tools/call", {"name": name, "arguments": {"path": "a.txt"}})
    except Refused as refused:
        return str(refused)
    return str(json.loads(reply.raw)["result"]["content"][0]["text"])


def _lines(
    settings: Settings, before: _Seen, after: _Seen, upstream: DemoUpstream
) -> Iterator[str]:
    left = {tool["name"] for tool in after.tools}
    patterns = [
        f"--{name} '{text}'"
        for name in CHOICE
        for text in (settings.many(OPTIONS[name].key) if OPTIONS[name].many else ())
    ]
    patterns += ["--read-only"] if settings.texts["read_only"] == "true" else []
    yield f"An MCP server with {len(before.tools)} tools; in front of it: mcp-tool-filter"
    yield f"  {' '.join(patterns)}"
    yield ""
    yield from _tool_lines(before, left)
    yield ""
    yield paint(f"The agent saw {_measure(before)}; now it sees {_measure(after)}.", Colour.BOLD)
    saved = before.size - after.size
    tokens = estimate_tokens(saved)
    yield f"That saves {saved:,} bytes of context, about {tokens} tokens per tools/list."
    yield ""
    yield from _call_lines(after, upstream)


def _tool_lines(before: _Seen, left: set[str]) -> Iterator[str]:
    rows = [("BEFORE", "NOW", "")]
    for tool in before.tools:
        name = tool["name"]
        rows.append((name, name if name in left else "-", shortened(tool["description"], 60)))
    head, *lines = columns(rows, is_terminal=True)
    yield paint(head, Colour.DIM)
    for row, line in zip(rows[1:], lines, strict=True):
        cut = line[: width()] if sys.stdout.isatty() else line
        yield paint(cut, Colour.RED if row[1] == "-" else Colour.GREEN)


def _measure(seen: _Seen) -> str:
    return f"{len(seen.tools)} tools ({seen.size:,} bytes)"


def _call_lines(after: _Seen, upstream: DemoUpstream) -> Iterator[str]:
    for name, said in after.calls.items():
        reached = "reached" if name in upstream.calls else "did not reach"
        yield f"It calls {name}: {said}"
        yield paint(f"  (the call {reached} the server)", Colour.DIM)


PATH = "/mcp"
_INFO = {"name": "demo", "version": __version__}
_CAPABILITIES: dict[str, Any] = {"tools": {}}
_MODERN = {
    "resultType": "complete",
    "_meta": {"io.modelcontextprotocol/serverInfo": _INFO},
}
_CACHEABLE = {"ttlMs": 60_000, "cacheScope": "public"}

type JsonObject = dict[str, Any]


@dataclass
class DemoUpstream:
    """The running server, and the tools that were called."""

    port: int = 0
    calls: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}{PATH}"

    async def answer(self, request: ServedRequest) -> ServedResponse:
        status, said = self._answer_http(request)
        body = json.dumps(said, separators=(",", ":")).encode() if said else b""
        return ServedResponse(status, [JSON_BODY], body)

    def _answer_http(self, request: ServedRequest) -> tuple[int, JsonObject | None]:
        if request.path != PATH:
            return 404, None
        if request.method != "POST":
            return 405, None
        try:
            message = json.loads(request.body)
            method, params = message["method"], message.get("params") or {}
        except (ValueError, TypeError, KeyError):
            return 400, _error(None, -32600, "Invalid Request")
        if "id" not in message:
            return 202, None
        return self._answer(message["id"], method, params)

    def _answer(self, id: object, method: str, params: JsonObject) -> tuple[int, JsonObject]:
        said = params.get("_meta", {}).get(META_REVISION)
        if said not in (None, NEWEST_STATELESS):
            why = {"supported": [NEWEST_STATELESS], "requested": said}
            return 400, _error(id, -32022, "Unsupported protocol version", why)
        modern = _MODERN if said else {}
        match method:
            case "server/discover" if said:
                return 200, _result(id, _discovery() | modern)
            case "initialize" if not said:
                return 200, _result(id, _welcome(params))
            case "ping":
                return 200, _result(id, modern)
            case "tools/list":
                cacheable = _CACHEABLE if said else {}
                return 200, _result(id, {"tools": TOOLS} | cacheable | modern)
            case "tools/call":
                return 200, self._call(id, params, modern)
        return 404 if said else 200, _error(id, -32601, "Method not found")

    def _call(self, id: object, params: JsonObject, modern: JsonObject) -> JsonObject:
        name = str(params.get("name"))
        if name not in NAMES:
            return _error(id, -32602, f"Unknown tool: {name}")
        self.calls.append(name)
        text = f"demo: {name} was called with {json.dumps(params.get('arguments', {}))}"
        return _result(id, {"content": [{"type": "text", "text": text}]} | modern)


@asynccontextmanager
async def demo_upstream(
    port: int = 0, tls: SSLContext | None = None
) -> AsyncIterator[DemoUpstream]:
    """Run one on loopback."""
    upstream = DemoUpstream()
    async with http_server(upstream.answer, port=port, tls=tls) as server:
        upstream.port = server.port
        yield upstream


def _discovery() -> JsonObject:
    supported = {"supportedVersions": [*KNOWN_REVISIONS[1:]]}
    return supported | {"capabilities": _CAPABILITIES, **_CACHEABLE}


def _welcome(params: JsonObject) -> JsonObject:
    wanted = params.get(REVISION_KEY)
    revision = wanted if wanted in INITIALIZE_REVISIONS[1:] else NEWEST_WITH_INITIALIZE
    return {REVISION_KEY: revision, "capabilities": _CAPABILITIES, "serverInfo": _INFO}


def _result(id: object, result: JsonObject) -> JsonObject:
    return {"jsonrpc": "2.0", "id": id, "result": result}


def _error(id: object, code: int, message: str, data: JsonObject | None = None) -> JsonObject:
    error = {"code": code, "message": message} | ({"data": data} if data else {})
    return {"jsonrpc": "2.0", "id": id, "error": error}


_PATH = "Path of the file, relative to the project's folder"
_SQL = "One SQL statement; parameters are written as $1, $2 and so on"
_TABLE = "Name of the table, with its schema where it is not public"
_TO = "Address of the receiver; several are separated by commas"


def _tool(name: str, description: str, /, *, optional: str = "", **parameters: str) -> Any:
    """Return a tool definition; ``optional`` names the optional parameters."""
    properties = {key: {"type": "string", "description": says} for key, says in parameters.items()}
    required = [key for key in parameters if key not in optional.split()]
    return {
        "name": name,
        "title": name.replace("_", " ").capitalize(),
        "description": description,
        "inputSchema": {
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        },
        "annotations": {
            "readOnlyHint": name.split("_")[-1] in {"read", "list", "search", "query", "status"},
            "destructiveHint": "delete" in name or "drop" in name,
        },
    }


TOOLS: Final[list[dict[str, Any]]] = [
    _tool("file_read", "Read a text file and return its lines with their numbers.",
          path=_PATH, first="First line to return; default: 1", optional="first"),
    _tool("file_write", "Create a file or replace its content. There is no undo.",
          path=_PATH, content="The complete new text"),
    _tool("file_move", "Rename a file, or move it to another folder, replacing what is there.",
          path=_PATH, destination="New path of the file"),
    _tool("file_delete", "Delete a file for good. Folders are deleted with their content.",
          path=_PATH),
    _tool("file_search", "Find the files whose text matches a regular expression.",
          pattern="The regular expression", folder="Where to look", optional="folder"),
    _tool("query_database", "Run a statement that only reads, and return its rows as JSON.",
          sql=_SQL, parameters="Values for the parameters, a JSON array", optional="parameters"),
    _tool("alter_database", "Run a statement that changes rows or tables, and commit it.",
          sql=_SQL, parameters="Values for the parameters, a JSON array", optional="parameters"),
    _tool("drop_database", "Delete a whole database with its backups. Cannot be undone.",
          database="Name of the database", confirm="The name again, to confirm"),
    _tool("table_list", "List the tables, each with its columns and the number of its rows.",
          schema="Only tables of this schema", optional="schema"),
    _tool("table_export", "Write all rows of a table to a CSV file in the shared folder.",
          table=_TABLE, path=_PATH),
    _tool("email_send", "Send an email in the user's name.",
          to=_TO, subject="The subject line", body="The text, Markdown"),
    _tool("email_search", "Find emails by their text, sender or date; the newest come first.",
          query="Words, from:address, after:2026-01-31", limit="Maximum number of emails",
          optional="limit"),
    _tool("email_delete", "Delete an email from all folders.", email="Its message id"),
    _tool("calendar_list", "List the events of a day with their times and guests.",
          day="The day, as 2026-01-31"),
    _tool("calendar_invite", "Create an event and invite guests to it by email.",
          title="Title of the event", start="Date and time of the start", guests=_TO),
    _tool("web_search", "Search the web and return titles, addresses and summaries.",
          query="What to search for"),
    _tool("web_fetch", "Fetch a web page and return its text as Markdown.",
          url="Address of the page"),
    _tool("deploy_status", "Show which version runs in which environment, and since when.",
          environment="production or staging", optional="environment"),
    _tool("deploy_production", "Build the main branch and put it into production.",
          reason="Written to the deploy log", commit="Default: the newest"
                                                     " commit", optional="commit"),
    _tool("shell_execute", "Run any command in a shell on the build machine, as its owner.",
          command="The command line", timeout="Seconds until it is killed", optional="timeout"),
]  # fmt: skip
NAMES: Final = frozenset(tool["name"] for tool in TOOLS)
