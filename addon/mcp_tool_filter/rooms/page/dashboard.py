"""The present state of the filter: for commands, and the page ``/mcp`` that shows and changes it.

The page is in mitmweb, or on a port of its own (``--dashboard PORT``).

The page requests the state every second. A click on a tool requests the patterns that would
result, and "apply" edits the option ``deny`` like mitmweb's own page, with the same checks. "save"
shows how the config file would change, and then changes it.

On a port of its own, anyone with the token in the address that is printed at start may view and
edit. The page keeps the token for its tab and sends it in a header: a cookie would go to every
server on this host, whatever its port. The page is served only on loopback, only under that host
name, and only to its own pages.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import secrets
import shlex
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from hmac import compare_digest
from pathlib import Path
from time import time
from typing import NamedTuple, Protocol
from urllib.parse import parse_qs, urlsplit

import orjson

from mcp_tool_filter.cli.http_server import PAGE_LIMITS, comes_from_here, http_server
from mcp_tool_filter.cli.report import estimate_tokens, pattern_warnings, tokens_in
from mcp_tool_filter.cli.switching import NOTHING, could_expose, hinted_in, switched
from mcp_tool_filter.core.conversation.lists import listings_in
from mcp_tool_filter.core.conversation.policy_in_force import PolicyInForce, SessionAtWork
from mcp_tool_filter.core.errors import StartError, printable, reason_of
from mcp_tool_filter.core.http.asked import Answered
from mcp_tool_filter.core.http.listener import Listener
from mcp_tool_filter.core.http.shown import shown_url
from mcp_tool_filter.core.policy.choice import Choice, claims_in
from mcp_tool_filter.core.policy.config import AllowedHosts, Config
from mcp_tool_filter.core.policy.situation import Session
from mcp_tool_filter.core.policy.snapshot import Snapshot, shown
from mcp_tool_filter.core.process.sentences import CLIENT_NAME
from mcp_tool_filter.core.process.start import key_of
from mcp_tool_filter.core.process.statistics import JsonObject, Statistics
from mcp_tool_filter.core.sockets.served import ServedRequest, ServedResponse
from mcp_tool_filter.rooms.lock.approvals import Approvals
from mcp_tool_filter.rooms.page.timeline import Timeline

log = logging.getLogger(__name__)

_FILES = Path(__file__).with_name("files")
_HTML = "text/html; charset=UTF-8"
_PLAIN = "text/plain; charset=UTF-8"
_JSON = "application/json; charset=UTF-8"
_TYPES = {
    ".js": "text/javascript; charset=UTF-8",
    ".css": "text/css; charset=UTF-8",
}
_STATIC = frozenset(one.name for one in _FILES.iterdir() if one.suffix in _TYPES)
_FOR_EVERYBODY = frozenset({"/favicon.ico", *(f"/mcp/{name}" for name in _STATIC)})
"""A browser loads them for a page, and adds no token. They hold nothing of the filter's state."""
_MOST_UNDONE = 50
_MOST_AT_FIRST = 200  # messages, for who does not ask for more
_MOST_SHOWN = 10_000


def not_let_in(title: str, how: str, *, script: str = "") -> bytes:
    """Return a page for a visitor without a token; a ``script`` may know one."""
    runs = f'<script src="{script}" defer></script>' if script else ""
    page = (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<title>MCP tool filter</title><link rel="stylesheet" href="/mcp/page.css">'
        f'{runs}<body class="alone">'
        f"<main><section><h1>{title}</h1><p>{how}</p></section></main></html>"
    )
    return page.encode()


# The state of the filter

_MOST_SESSIONS = 200
_SHOWN_OF_AN_ID = 8
_LONGEST_DESCRIPTION = 240


@dataclass(slots=True)
class Overview:
    """Collects the state of the tool filter's listeners."""

    listeners: Mapping[str, Listener]
    statistics: Mapping[str, Statistics]
    clock: Callable[[], float] = time
    besides: Callable[[], Mapping[str, Listener]] = dict
    """Returns what is shown besides the listeners."""
    places: Mapping[str, str] = field(default_factory=dict)
    """Where clients find them."""
    names: Callable[[], Iterable[str]] = tuple
    """Returns the servers of the file, in its order; not all may run."""
    problem_of: Callable[[str], str | None] = lambda _name: None
    """Returns why one does not run: empty while it starts, None if it does."""
    refused_edit: str = ""
    """Why the last edit of an option was refused; else empty."""

    def as_json(self) -> dict[str, object]:
        """Return the whole state as JSON values."""
        return {"listeners": [*self._in_order()], "refused_edit": self.refused_edit}

    def render(self) -> list[JsonObject]:
        return [one for one in self._in_order() if "tools" in one]

    def _in_order(self) -> Iterator[JsonObject]:
        known = {**self.listeners, **self.besides()}
        matched = _matched_patterns(self.listeners.values())
        for mode in dict.fromkeys((*self.names(), *known)):
            problem = self.problem_of(mode)
            state = "runs" if problem is None else "broken" if problem else "starting"
            begin: JsonObject = {"mode": mode, "state": state, "problem": problem or ""}
            if (listener := known.get(mode)) is None:
                yield begin
            else:
                begin["is_merged"] = mode not in self.listeners
                yield begin | self._lines(mode, listener, matched)

    def definition(self, mode: str, tool: str) -> JsonObject:
        """Return a tool's definition as the server and as its clients have it."""
        listener = {**self.listeners, **self.besides()}[mode]
        own = _facts_in(listener.fetched.pages)[tool].raw
        shown = _edited_in(listener).get(tool, own)
        return {"own": own.decode(), "shown": shown.decode()}

    def _lines(self, mode: str, listener: Listener, matched: Set[tuple[str, str]]) -> JsonObject:
        snapshot, fetched = listener.snapshot, listener.fetched
        counted = self.statistics.get(mode) or Statistics()
        now = self.clock()
        at_work = listener.policy.rules_at_work()
        tools = list(_tool_lines(listener, counted))
        return {
            "upstream": listener.called or shown_url(listener.upstream + fetched.endpoint),
            "server": f"{fetched.server_name} {fetched.server_version}".strip() or "unnamed",
            "transport": fetched.transport.value,
            "revision": fetched.revision,
            "url": _url_at(self.places.get(mode, ""), fetched.endpoint),
            "is_listed": fetched.is_listed,
            "tools": tools,
            "tokens": sum(one["tokens"] for one in tools if one["exposed"]),
            "exposed": len(snapshot.allowed),
            "hidden": len(snapshot.denied),
            "saved_bytes": snapshot.denied_bytes,
            "saved_tokens": estimate_tokens(snapshot.denied_bytes),
            "lists": counted.lists,
            "messages": counted.messages,
            "calls": counted.calls.total(),
            "failed": counted.failed_calls.total(),
            "refused": counted.refused,
            "invalid": counted.invalid,
            "shadow": listener.policy.config.shadow,
            "reported": counted.reported,
            "sessions": list(_session_lines(listener)),
            "refusals": [
                {"seconds_ago": round(now - one.at, 1), "tool": one.tool, "why": one.why}
                for one in list(counted.refusals)  # a thread may add to them
            ],
            "rules": [{"id": shown(id), "hits": hits} for id, hits in at_work.hits],
            "metrics": {shown(name): value for name, value in at_work.metrics},
            "rule_sessions": [_rule_session_line(one) for one in at_work.sessions],
            "warnings": [
                *(said[0].upper() + said[1:] for said in pattern_warnings(snapshot, matched)),
                *snapshot.faults,
            ],
        }


def render_tools(listeners: Iterable[JsonObject]) -> Iterator[str]:
    """Write one line for each tool."""
    for listener in listeners:
        yield f"{listener['upstream']}: {listener['exposed']} exposed, {listener['hidden']} hidden"
        for tool in listener["tools"]:
            what = f"hidden, {tool['why']}, {tool['refused']} refused"
            if tool["exposed"]:
                what = f"exposed, {tool['calls']} calls"
            yield f"  {tool['name']}: {what}"


def render_sessions(listeners: Iterable[JsonObject]) -> Iterator[str]:
    """Write one line for each session."""
    for listener in listeners:
        yield f"{listener['upstream']}: {len(listener['sessions'])} sessions"
        for one in listener["sessions"]:
            ago = one["seconds_ago"]
            when = "open" if ago is None else f"last seen {ago:.0f} s ago"
            yield f"  {one['id']}: {one['revision']}, {when}, {one['waiting']} waiting"
        for known in listener["rule_sessions"]:
            yield (
                f"  {known['id']}, as the rules know it: {known['messages']} messages in "
                f"{known['seconds']:.0f} s, {known['errors']} errors, "
                f"{known['milliseconds']:.0f} ms per answer"
            )


def render_statistics(listeners: Iterable[JsonObject]) -> Iterator[str]:
    """Write what has been counted."""
    for one in listeners:
        yield one["upstream"]
        yield f"  messages: {one['messages']}, of which {one['invalid']} invalid"
        yield f"  lists: {one['lists']}, each {one['saved_bytes']:,} bytes shorter"
        yield f"  calls: {one['calls']}, refused: {one['refused']}"
        if one["shadow"] or one["reported"]:
            yield f"  only reported, neither refused nor changed: {one['reported']}"
        if one["failed"]:
            yield f"  calls answered with an error: {one['failed']}"
        for rule in one["rules"]:
            yield f"  rule {rule['id']}: {rule['hits']} hits"
        for name, value in one["metrics"].items():
            yield f"  metric {name}: {value:g}"


def _url_at(place: str, endpoint: str) -> str:
    """Return the URL for clients, if the place is an address alone.

    >>> _url_at("http://127.0.0.1:6273", "/mcp?key=1")
    'http://127.0.0.1:6273/mcp'
    """
    is_address = bool(place) and not urlsplit(place).path
    return place + endpoint.partition("?")[0] if is_address else place


def _matched_patterns(listeners: Iterable[Listener]) -> set[tuple[str, str]]:
    """Return the patterns that match something at one of the listeners."""
    found: set[tuple[str, str]] = set()
    for one in listeners:
        found |= set(map(key_of, one.config.patterns)) - set(map(key_of, one.snapshot.unmatched))
    return found


class _Fact(NamedTuple):
    """What the server says of one of its tools, also of one that is hidden."""

    raw: bytes
    marks: str
    description: str


@lru_cache(50)  # the page asks every second
def _facts_in(pages: tuple[bytes, ...]) -> dict[str, _Fact]:
    listings = filter(None, listings_in(pages))
    return {
        one.name: _Fact(one.raw, claims_in(one.raw).marks, _description_in(one.raw))
        for page in listings
        for one in page.definitions
        if one.name
    }


def _description_in(definition: bytes) -> str:
    """Return the first line of a tool's description."""
    try:
        said = str(orjson.loads(definition).get("description") or "")
    except ValueError:
        return ""
    return printable(said.strip().partition("\n")[0][:_LONGEST_DESCRIPTION])


def _edited_in(listener: Listener) -> dict[str, bytes]:
    """Return the definitions that clients see otherwise than the server has written them."""
    snapshot, editor = listener.snapshot, listener.config.editor
    if editor is None:
        return {}
    shown_as = dict(editor.shown(snapshot))
    found = ((name, shown_as.get(editor.exposed(name))) for name in snapshot.allowed)
    return {name: raw for name, raw in found if raw and raw != snapshot.allowed[name]}


def _tool_lines(listener: Listener, counted: Statistics) -> Iterator[JsonObject]:
    snapshot, facts = listener.snapshot, _facts_in(listener.fetched.pages)
    edited, editor = _edited_in(listener), listener.config.editor
    for name in (*snapshot.allowed, *snapshot.denied):
        label, by = shown(name), snapshot.denied.get(name)
        fact = facts.get(name) or _Fact(snapshot.allowed.get(name, b""), "", "")
        size = len(edited.get(name, fact.raw))
        called = editor.exposed(name) if editor and name in edited else name
        yield {
            "id": name,
            "name": label,
            "by_deny": by is not None and could_expose(snapshot.choice, name, by),
            "exposed": by is None,
            "why": by.says if by else "",
            "marks": fact.marks,
            "description": fact.description,
            "bytes": size,
            "tokens": tokens_in(size),
            "edited": name in edited,
            "called": shown(called) if called != name else "",
            "calls": counted.calls[label],
            "failed": counted.failed_calls[label],
            "refused": counted.refused_calls[label],
        }


def _session_lines(listener: Listener) -> Iterator[JsonObject]:
    now = listener.policy.clock()
    for stream in listener.legacy:
        yield {
            "id": _short(stream.target),
            "client": _client_name(stream.conversation.client.session),
            "revision": stream.conversation.client.revision or "?",
            "seconds_ago": None,
            "waiting": len(stream.conversation.exchanges),
        }
    newest_first = reversed(list(listener.sessions)[-_MOST_SESSIONS:])
    for key, last_used, session in newest_first:
        yield {
            "id": _short(str(key)),
            "client": _client_name(session),
            "revision": session.revision or "?",
            "seconds_ago": round(now - last_used, 1),
            "waiting": 0,  # each request of such a session gets its own answer
        }


def _client_name(session: Session | None) -> str:
    return str(session.notes.get(CLIENT_NAME, "")) if session else ""


def _rule_session_line(one: SessionAtWork) -> JsonObject:
    return {
        "id": _short(shown(one.id)),
        "seconds": round(one.seconds, 1),
        "messages": one.messages,
        "errors": one.errors,
        "milliseconds": round(1000 * one.mean_latency, 1),
    }


def _short(id: str) -> str:
    """Show enough of a session's id to recognise it, but too little to hijack the session.

    >>> _short("0123456789abcdef")
    '…89abcdef'
    """
    return id if len(id) <= _SHOWN_OF_AN_ID else f"…{id[-_SHOWN_OF_AN_ID:]}"


# The page

type ApplyPatterns = Callable[[list[str], list[str]], str]
"""Sets the deny patterns and their exceptions; returns the problem with them, or an empty text."""


class SavesPatterns(Protocol):
    """Saves patterns in the file that the settings are from."""

    @property
    def path(self) -> str: ...

    def shared(self) -> Choice:
        """Return the patterns that are set elsewhere, and stay. Raises StartError."""

    def save(self, deny: Sequence[str], exceptions: Sequence[str], token: str) -> JsonObject:
        """Return the change of the file, with its token; or make it, if that is its token."""


class Switches:
    """What people see and change of the patterns of one server; or of all, if they share them."""

    def __init__(
        self,
        config: Callable[[], Config],
        snapshots: Callable[[], Sequence[Snapshot]],
        edit: ApplyPatterns,
        *,
        savings: SavesPatterns | None = None,
        policies: Callable[[], Sequence[PolicyInForce]] = tuple,
        adopt: Callable[[Config], None] = lambda _config: None,
        server: str = "",
    ) -> None:
        """``server`` is the name of an only one; the patterns of all servers are not its own."""
        self._config = config
        self._snapshots = snapshots
        self._edit = edit
        self._savings = savings
        self._approvals = Approvals(config, policies, adopt)
        self._server = server
        self._before: list[tuple[list[str], list[str]]] = []

    def patterns(self) -> dict[str, object]:
        """Return the patterns, and what can be done with them."""
        deny, exceptions = self._patterns()
        return {
            "deny": deny,
            "except": exceptions,
            "command": self._shown(deny, exceptions),
            "can_undo": bool(self._before),
            "file": self._savings.path if self._savings else "",
            "waiting": self._approvals.waiting(),
        }

    def preview(self, hide: Sequence[str], show: Sequence[str]) -> dict[str, object]:
        """Return patterns that hide and expose these tools, and how to make them permanent."""
        snapshots = self._snapshots()
        names = list(
            dict.fromkeys(name for one in snapshots for name in (*one.allowed, *one.denied))
        )
        choice, hinted = self._own(), {name for one in snapshots for name in hinted_in(one)}
        if self._server:
            shared = self._shared()
            hinted |= {name for name in names if any(one.matches(name) for one in shared.deny)}
            stays = [one for one in hide if any(each.matches(one) for each in shared.exceptions)]
            if stays:
                why = f"{stays[0]} cannot be hidden here: an except for all servers exposes it"
                return {"problem": why}
        new = switched(choice, names, set(hide), set(show), hinted)
        deny, exceptions = new.deny if choice.deny or new.more else [], new.exceptions
        return {"deny": deny, "except": exceptions, "command": self._shown(deny, exceptions)}

    def apply(
        self, deny: Sequence[str], exceptions: Sequence[str] | None = None
    ) -> dict[str, object]:
        """Set the patterns, and their exceptions if given; return the problem with them, if any."""
        before = self._patterns()
        after = list(deny), before[1] if exceptions is None else list(exceptions)
        problem = self._edit(*after)
        if not problem and before != after:
            self._tell_of_change(*after)
            self._before = [*self._before[-_MOST_UNDONE:], before]
        return {"problem": problem}

    def undo(self) -> dict[str, object]:
        """Restore the patterns before the last change."""
        if not self._before:
            return {"problem": "There is nothing to undo"}
        deny, exceptions = self._before[-1]
        problem = self._edit(deny or [NOTHING], exceptions)
        if not problem:
            self._tell_of_change(deny, exceptions)
            self._before.pop()
        return {"problem": problem}

    def save(self, token: str) -> dict[str, object]:
        """Return how the file would change, with a token for just that; or change it."""
        if self._savings is None:
            return {"problem": "There is no config file: start with --config FILE"}
        return self._savings.save(*self._patterns(), token)

    def approve(self, token: str) -> dict[str, object]:
        """Take a definition that waits into the lock; return the problem with it, if any."""
        return self._approvals.approve(token)

    def _shared(self) -> Choice:
        if not self._server or not self._savings:
            return Choice()
        try:
            return self._savings.shared()
        except StartError:  # such as a broken lock: nothing can be applied until it is mended
            return Choice()

    def _own(self) -> Choice:
        """Return what can be changed here: a server's patterns without those of all servers."""
        choice, shared = self._config().choice, self._shared()
        return replace(
            choice,
            deny=tuple(one for one in choice.deny if one not in shared.deny),
            exceptions=tuple(one for one in choice.exceptions if one not in shared.exceptions),
        )

    def _patterns(self) -> tuple[list[str], list[str]]:
        choice = self._own()
        return [one.regex for one in choice.deny], [one.text for one in choice.exceptions]

    def _shown(self, deny: Sequence[str], exceptions: Sequence[str]) -> str:
        """Write patterns as they can be kept: in a shell, or in a server's table of the file."""
        if not self._server:
            return shlex.join(_flags(deny, exceptions))
        given = {"deny": [one for one in deny if one != NOTHING], "except": list(exceptions)}
        return "\n".join(f"{key} = {json.dumps(value)}" for key, value in given.items() if value)

    def _tell_of_change(self, deny: Sequence[str], exceptions: Sequence[str]) -> None:
        flags = shlex.join(_flags(deny, exceptions)) or "no pattern"
        of = f" of {self._server}" if self._server else ""
        log.warning("The patterns%s were changed on the page: %s", of, flags)


class Dashboard:
    """The dashboard of the process."""

    def __init__(
        self,
        overview: Callable[[], dict[str, object]],
        switches: Switches,
        servers: Callable[[], Mapping[str, Switches]] = dict,
        definition: Callable[[str, str], JsonObject] = lambda _mode, _tool: {},
    ) -> None:
        """The ``switches`` are for all that it filters, unless each server has its own."""
        self._overview, self._switches, self._servers = overview, switches, servers
        self.definition = definition
        self.has_flows = False
        """True if a message's flow can be viewed at ``/#/flows/ID``."""
        self.timeline = Timeline()

    def state(self, after: int = 0, most: int = _MOST_AT_FIRST) -> dict[str, object]:
        """Return everything that the page shows, and at most so many messages behind a number."""
        return {
            **self._overview(),
            "pid": os.getpid(),
            "recent": orjson.Fragment(self.timeline.recent_json(after, most=most)),
            "steps": self.timeline.steps(),
            "callers": self.timeline.callers(),
            "flows": self.has_flows,
            **self._switches.patterns(),
            "servers": {name: one.patterns() for name, one in self._servers().items()},
        }

    def switches_of(self, server: object) -> Switches:
        """Return the switches of a server. Raises KeyError."""
        return self._servers()[str(server)] if server else self._switches


def _flags(deny: Sequence[str], exceptions: Sequence[str]) -> list[str]:
    flags = [*(("--deny", one) for one in deny), *(("--except", one) for one in exceptions)]
    return [word for flag in flags for word in flag]


def _names(value: object) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise TypeError("not a list of names")
    return value


def answer_page(board: Dashboard, method: str, path: str, body: bytes) -> Answered:
    """Answer a request of a visitor who may see the page."""
    folder, _, name = path.rstrip("/").rpartition("/")
    if folder != "/mcp" and (folder or name not in ("", "mcp", "favicon.ico")):
        return Answered(404, b"Not found", content_type=_PLAIN)
    if method == "POST":
        try:
            return _json(_change(board, name, json.loads(body or b"{}")))
        except (ValueError, KeyError, TypeError, RecursionError):
            return Answered(400, b"Bad request", content_type=_PLAIN)
    match name:
        case "state":
            return _json(board.state())
        case "favicon.ico":
            return Answered(204, content_type=_PLAIN)
        case "" | "mcp":
            return Answered(200, (_FILES / "page.html").read_bytes(), content_type=_HTML)
    if name not in _STATIC:
        return Answered(404, b"Not found", content_type=_PLAIN)
    return Answered(200, (_FILES / name).read_bytes(), content_type=_TYPES[Path(name).suffix])


def answer_other(
    board: Dashboard, question: JsonObject, described: JsonObject
) -> JsonObject | bytes:
    """Answer the page of another process of this user."""
    match question:
        case {"after": int(after)}:
            return _dumps({**described, "state": board.state(after, _MOST_SHOWN)})
        case {"do": [str(name), dict(said)]}:
            try:
                return _dumps({"done": _change(board, name, said)})
            except (ValueError, KeyError, TypeError, RecursionError):
                return {"done": {"problem": "The filter does not know this request"}}
    return described


async def answer_visitor(board: Dashboard, method: str, path: str, body: bytes) -> Answered:
    """Answer the same, also about other processes."""
    if path == "/mcp/running" and method != "POST":
        return await _answer_running(lambda _pid: {})
    if method == "POST" and (said := _said_to_others(path, body)) is not None:
        if path == "/mcp/others":
            after = said["after"]
            return await _answer_running(lambda pid: {"after": int(after.get(str(pid), 0))})
        return await _answer_for(path.rpartition("/")[2], said)
    return answer_page(board, method, path, body)


def _said_to_others(path: str, body: bytes) -> JsonObject | None:
    """Return what a request says, if it is for other processes."""
    try:
        said = orjson.loads(body)
        if path == "/mcp/others":
            return {"after": {str(pid): int(number) for pid, number in said["after"].items()}}
        return said if isinstance(said["pid"], int) and said["pid"] != os.getpid() else None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


async def _answer_running(question: Callable[[int], JsonObject]) -> Answered:
    """Answer what all running filters of this user say."""
    from mcp_tool_filter.rooms.status.running import running_filters

    own = os.getpid()
    ask = partial(running_filters, lambda pid: question(pid) if pid != own else {})
    return _json({"running": await asyncio.to_thread(ask), "pid": own})


async def _answer_for(name: str, said: JsonObject) -> Answered:
    """Answer what another process says to a request."""
    from mcp_tool_filter.rooms.status.running import ask_filter

    found = await asyncio.to_thread(ask_filter, said["pid"], {"do": [name, said]})
    return _json(found.get("done") or {"problem": found.get("problem", "It does not answer")})


def _change(board: Dashboard, name: str, said: dict[str, object]) -> dict[str, object]:
    if not isinstance(said, dict):
        raise TypeError("not an object")
    if name == "look":
        return board.state(int(str(said["after"])), _MOST_SHOWN)
    switches = board.switches_of(said.get("server"))
    match name:
        case "preview":
            return switches.preview(_names(said["hide"]), _names(said["show"]))
        case "apply":
            exceptions = _names(said["except"]) if "except" in said else None
            return switches.apply(_names(said["deny"]), exceptions)
        case "undo":
            return switches.undo()
        case "approve":
            return switches.approve(str(said["token"]))
        case "save":
            return switches.save(str(said["token"]))
        case "details":
            return board.timeline.details(int(str(said["number"])))
        case "definition":
            return board.definition(str(said["listener"]), str(said["tool"]))
    raise KeyError(name)


def _json(answer: dict[str, object]) -> Answered:
    return Answered(200, _dumps(answer), content_type=_JSON)


def _dumps(answer: dict[str, object]) -> bytes:
    try:
        return orjson.dumps(answer)
    except TypeError:  # for example half a surrogate pair in a tool's name
        return json.dumps(answer, default=_loaded).encode()


def _loaded(part: object) -> object:
    if not isinstance(part, orjson.Fragment):
        raise TypeError(type(part))
    return orjson.loads(part.contents)


# On a port of its own

_HOSTS = AllowedHosts()
_NO_TOKEN = not_let_in(
    "This page needs a token",
    "The filter printed the address of this page when it started, on a line that begins with"
    " <code>Dashboard:</code>. The token is in that address: open it in this browser.",
    script="/mcp/enter.js",
)
_SAFE = [
    (b"content-security-policy", b"default-src 'self'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-store"),
]


class DashboardServer:
    """Answers the requests of the page; ``http_server`` serves it."""

    def __init__(self, dashboard: Dashboard) -> None:
        self._dashboard = dashboard
        self.token = secrets.token_urlsafe(24)

    def judge_head(self, request: ServedRequest) -> ServedResponse | None:
        """Refuse, or let in, by the head alone: strangers cannot make us read a body."""
        if not comes_from_here(request, _HOSTS):
            return _plain(403, b"Forbidden: unknown Host or Origin")
        if request.method == "GET" and request.path in _FOR_EVERYBODY:
            return _served(answer_page(self._dashboard, "GET", request.path, b""))
        try:
            given = _token_in(request)
        except ValueError:  # for example //[
            return _plain(400, b"Bad request")
        if not compare_digest(given.encode(), self.token.encode()):
            return _served(Answered(403, _NO_TOKEN, content_type=_HTML))
        if request.method not in ("GET", "HEAD", "POST"):
            return _plain(405, b"Method not allowed")
        return None

    async def answer(self, request: ServedRequest) -> ServedResponse:
        """Answer a request whose head has passed."""
        asked = request.method, request.path, request.body
        return _served(await answer_visitor(self._dashboard, *asked))


def _token_in(request: ServedRequest) -> str:
    """Return the token of a request: in a header, or for the page itself in its address. Raises
    ValueError."""
    scheme, _, given = (request.header(b"authorization") or "").partition(" ")
    if scheme.lower() == "bearer":
        return given.strip()
    return parse_qs(urlsplit(request.target).query).get("token", [""])[0]


def _plain(status: int, text: bytes) -> ServedResponse:
    return _served(Answered(status, text, content_type=_PLAIN))


def _served(answer: Answered) -> ServedResponse:
    kind = (b"content-type", answer.content_type.encode())
    return ServedResponse(answer.status, [kind, *_SAFE], answer.body)


@asynccontextmanager
async def dashboard_server(
    dashboard: Dashboard, port: int, say: Callable[[str], None]
) -> AsyncIterator[str]:
    """Serve the page; ``say`` gets its address, the block the same without the token. Raises
    StartError."""
    page = DashboardServer(dashboard)
    try:
        running = http_server(
            page.answer, port=port, judge_head=page.judge_head, limits=PAGE_LIMITS
        )
        async with running as server:
            address = f"http://127.0.0.1:{server.port}/mcp"
            say(f"Dashboard: {address}?token={page.token}")
            yield address
    except OSError as error:
        what = f"Cannot serve the dashboard on 127.0.0.1:{port}"
        raise StartError(what, why=reason_of(error)) from error
