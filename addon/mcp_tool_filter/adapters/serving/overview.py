"""The current state of the tool filter as JSON values.

The page in mitmweb and the commands show it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from time import time

import orjson

from mcp_tool_filter.conversation.policy_in_force import SessionAtWork
from mcp_tool_filter.errors import printable
from mcp_tool_filter.http.listener import Listener
from mcp_tool_filter.observers.redaction.shown import shown_url
from mcp_tool_filter.observers.sentences import CLIENT_NAME, estimate_tokens, pattern_of
from mcp_tool_filter.observers.statistics import JsonObject, RefusedMessage, Statistics
from mcp_tool_filter.policy.exchange import Session
from mcp_tool_filter.policy.snapshot import Snapshot, shown

_MOST_SESSIONS = 200
_SHOWN_OF_AN_ID = 8
_LONGEST_DESCRIPTION = 240


@dataclass(slots=True)
class Overview:
    """Collects the state of the tool filter's listeners."""

    listeners: Mapping[str, Listener]
    statistics: Mapping[str, Statistics]
    clock: Callable[[], float] = time
    refused_edit: str = ""
    """Why the last edit of an option was refused; else empty."""

    def as_json(self) -> dict[str, object]:
        """Return the whole state as JSON values."""
        return {"listeners": self.render(), "refused_edit": self.refused_edit}

    def render(self) -> list[JsonObject]:
        return [self._lines(mode, listener) for mode, listener in self.listeners.items()]

    def statistics_of(self, mode: str) -> Statistics:
        return self.statistics.get(mode) or Statistics()

    def _lines(self, mode: str, listener: Listener) -> JsonObject:
        snapshot, counted = listener.snapshot, self.statistics_of(mode)
        fetched = listener.fetched
        at_work = listener.policy.rules_at_work()
        return {
            "mode": mode,
            "upstream": listener.called or shown_url(listener.upstream + fetched.endpoint),
            "server": f"{fetched.server_name} {fetched.server_version}".strip() or "unnamed",
            "transport": fetched.transport.value,
            "revision": fetched.revision,
            "tools": list(_tool_lines(snapshot, counted)),
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
            "sessions": list(_session_lines(listener)),
            "refusals": [_refusal_line(one, snapshot, self.clock()) for one in counted.refusals],
            "rules": [{"id": shown(id), "hits": hits} for id, hits in at_work.hits],
            "metrics": {shown(name): value for name, value in at_work.metrics},
            "rule_sessions": [_rule_session_line(one) for one in at_work.sessions],
            "warnings": list(_warnings(snapshot)),
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
        if one["failed"]:
            yield f"  calls answered with an error: {one['failed']}"
        for rule in one["rules"]:
            yield f"  rule {rule['id']}: {rule['hits']} hits"
        for name, value in one["metrics"].items():
            yield f"  metric {name}: {value:g}"


def _tool_lines(snapshot: Snapshot, counted: Statistics) -> Iterator[JsonObject]:
    for name, definition in snapshot.allowed.items():
        yield {
            **_tool_line(name, "", len(definition), counted),
            "description": _description_in(definition),
        }
    for name, pattern in snapshot.denied.items():
        yield _tool_line(name, pattern_of(name, snapshot), 0, counted, by_deny=bool(pattern))


@lru_cache(2000)  # the page asks every second
def _description_in(definition: bytes) -> str:
    """Return the first line of a tool's description."""
    try:
        said = str(orjson.loads(definition).get("description") or "")
    except ValueError:
        return ""
    return printable(said.strip().partition("\n")[0][:_LONGEST_DESCRIPTION])


def _tool_line(
    name: str, why: str, size: int, counted: Statistics, *, by_deny: bool = False
) -> JsonObject:
    label = shown(name)
    return {
        "id": name,
        "name": label,
        "by_deny": by_deny,
        "exposed": not why,
        "why": why,
        "bytes": size,
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


def _refusal_line(refusal: RefusedMessage, snapshot: Snapshot, now: float) -> JsonObject:
    why = pattern_of(refusal.tool, snapshot) if refusal.tool else refusal.detail
    return {
        "seconds_ago": round(now - refusal.at, 1),
        "tool": refusal.tool or str(refusal.why),
        "why": why,
    }


def _warnings(snapshot: Snapshot) -> Iterator[str]:
    for pattern in snapshot.unmatched:
        yield f'The pattern "{pattern.text}" matches no tool'
    yield from snapshot.faults


def _short(id: str) -> str:
    """Show enough of a session's id to recognise it, but too little to hijack the session.

    >>> _short("0123456789abcdef")
    '…89abcdef'
    """
    return id if len(id) <= _SHOWN_OF_AN_ID else f"…{id[-_SHOWN_OF_AN_ID:]}"
