r"""Record a stdio session as a flow dump, as if the session had used HTTP.

Each request becomes a POST with its answer; other messages of the upstream become events on a GET.
So mitmweb can show the recording, and ``replay`` can replay it with other patterns. We do not
import mitmproxy, and write each exchange as soon as it is complete.

This is the format of mitmproxy's flow dumps:

>>> write_value({"a": [1, True, None], "b": (b"x", "y")})
b'37:1:a;14:1:1#4:true!0:~]1:b;8:1:x,1:y;]}'
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from threading import Lock
from typing import IO
from uuid import uuid4

from mcp_tool_filter.core.http.bodies import EVENT_STREAM, JSON
from mcp_tool_filter.core.messages.messages import Request, Response, id_value, read_message
from mcp_tool_filter.core.messages.sse import render_event
from mcp_tool_filter.core.policy.verdict import Drop, Forward, Reply, Rewrite, Verdict

type Dumpable = (
    bool | int | float | bytes | str | Sequence["Dumpable"] | Mapping[str, "Dumpable"] | None
)


def write_value(value: Dumpable) -> bytes:
    """Render a value with its length before it and its type after it."""
    payload, kind = _payload(value)
    return b"%d:%b%b" % (len(payload), payload, kind)


def _payload(value: Dumpable) -> tuple[bytes, bytes]:
    match value:
        case None:
            return b"", b"~"
        case bool():
            return (b"true" if value else b"false"), b"!"
        case int():
            return b"%d" % value, b"#"
        case float():
            return repr(value).encode(), b"^"
        case bytes():
            return value, b","
        case str():
            return value.encode(), b";"
        case Mapping():
            items = [write_value(part) for item in value.items() for part in item]
            return b"".join(items), b"}"
        case _:
            return b"".join(map(write_value, value)), b"]"


_FORMAT = 21  # of mitmproxy 12.2's dumps
_KEY = "mcp_tool_filter"  # see flow_dump
_HOST = "localhost"  # so that replay accepts the client's Host
_SESSION = b"stdio"
_JSON = JSON.encode()
_EVENTS = EVENT_STREAM.encode()

type RecordedFields = tuple[tuple[bytes, bytes], ...]


@dataclass(slots=True)
class _Asked:
    """A request that waits for its answer, or another message of the client."""

    line: bytes
    sent: bytes
    """The bytes sent to the upstream."""
    at: float
    fields: RecordedFields = field(default=())


class LineRecorder:
    """The recorder of one session; several threads may use it."""

    def __init__(
        self,
        file: IO[bytes],
        *,
        on_failure: Callable[[OSError], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``on_failure`` is called once if the file cannot be written any more."""
        self._file = file
        self._on_failure = on_failure
        self._clock = clock
        self._waiting: dict[str, _Asked] = {}
        self._is_open = False  # True after an initialize
        self._lock = Lock()

    def from_client(self, line: bytes, verdict: Verdict) -> None:
        """Record a client's line and its verdict."""
        with self._lock:
            if self._file.closed:
                return
            now = self._clock()
            match verdict:
                case Forward():
                    self._ask(_Asked(line, line, now, self._fields()))
                case Rewrite(text, _, owed):
                    self._ask(_Asked(line, text, now, self._fields()))
                    for reply in owed:
                        self._write(_Asked(line, b"", now, self._fields()), reply, None, now)
                case Reply(text):
                    self._write(_Asked(line, line, now, self._fields()), text, None, now)
                case Drop():
                    self._write(_Asked(line, line, now, self._fields()), b"", None, now, status=202)

    def from_upstream(self, line: bytes, verdict: Verdict) -> None:
        """Record an upstream's line and its verdict."""
        with self._lock:
            if self._file.closed:
                return
            heard = list(_heard(line, verdict))
            message = read_message(line)
            asked = None
            if isinstance(message, Response) and message.id is not None:
                asked = self._waiting.pop(id_value(message.id), None)
            now = self._clock()
            if asked is None:
                self._write_event(line, heard, now)
                return
            self._write(asked, b"\n".join(heard), line, now)

    def end(self) -> None:
        """Write the unanswered requests, and close the file."""
        with self._lock:
            for asked in self._waiting.values():
                self._add(_flow(asked, None, b"POST", self._clock()))
            self._close()

    def _fields(self) -> RecordedFields:
        usual = ((b"content-type", _JSON), (b"accept", _JSON + b", " + _EVENTS))
        return (*usual, (b"mcp-session-id", _SESSION)) if self._is_open else usual

    def _ask(self, asked: _Asked) -> None:
        message = read_message(asked.sent)
        if isinstance(message, Request):
            if message.method == "initialize":
                self._is_open = True
            self._waiting[id_value(message.id)] = asked
        else:
            self._write(asked, b"", b"", self._clock(), status=202)

    def _write(
        self, asked: _Asked, heard: bytes, said: bytes | None, now: float, *, status: int = 200
    ) -> None:
        fields: RecordedFields = ((b"content-type", _JSON),) if heard else ()
        if b"mcp-session-id" not in dict(asked.fields):
            fields = (*fields, (b"mcp-session-id", _SESSION))
        answer = _Answer(status, fields, heard, said)
        self._add(_flow(asked, answer, b"POST", now))

    def _write_event(self, line: bytes, heard: Sequence[bytes], now: float) -> None:
        fields = ((b"accept", _EVENTS), (b"mcp-session-id", _SESSION))
        body = b"".join(map(render_event, heard))
        answer = _Answer(200, ((b"content-type", _EVENTS),), body, render_event(line))
        self._add(_flow(_Asked(b"", b"", now, fields), answer, b"GET", now))

    def _add(self, flow: dict[str, Dumpable]) -> None:
        if self._file.closed:  # a thread may still receive something at the end
            return
        try:
            self._file.write(write_value(flow))
            self._file.flush()
        except OSError as error:  # the disk is full: the session goes on
            self._close()
            self._on_failure(error)

    def _close(self) -> None:
        self._waiting = {}
        with suppress(OSError):
            self._file.close()


@dataclass(slots=True)
class _Answer:
    status: int
    fields: RecordedFields
    heard: bytes
    said: bytes | None
    """The upstream's answer; None if it was not asked."""


def _heard(line: bytes, verdict: Verdict) -> Iterator[bytes]:
    match verdict:
        case Forward():
            yield line
        case Rewrite(text, _, owed):
            yield text
            yield from owed


def _kept(asked: _Asked, answer: _Answer | None, now: float) -> dict[str, Dumpable]:
    """Return what a recording keeps of an exchange as it was before our changes."""
    kept: dict[str, Dumpable] = {
        "asked": {
            "body": asked.line,
            "headers": [list(one) for one in asked.fields],
            "host": _HOST,
        },
        "format": 1,
    }
    if answer and answer.said is not None:
        kept["said"] = {
            "at": now,
            "chunks": [[now, answer.said]] if answer.said else [],
            "ended": now,
            "headers": [list(one) for one in answer.fields],
            "left_out": 0,
            "size": len(answer.said),
            "status": answer.status,
        }
    return kept


def _flow(asked: _Asked, answer: _Answer | None, method: bytes, now: float) -> dict[str, Dumpable]:
    """Return a flow in the format of mitmproxy's FlowReader."""
    return {
        "backup": None,
        "client_conn": _connection(asked.at, ("127.0.0.1", 0)) | _CLIENT,
        "comment": "",
        "error": None,
        "id": str(uuid4()),
        "intercepted": False,
        "is_replay": None,
        "marked": "",
        "metadata": {_KEY: _kept(asked, answer, now)},
        "request": {
            **_message(asked.fields, asked.sent, asked.at, asked.at),
            "authority": b"",
            "host": _HOST,
            "method": method,
            "path": b"/mcp",
            "port": 80,
            "scheme": b"http",
        },
        "response": {
            **_message(answer.fields, answer.heard, now, now),
            "reason": b"",
            "status_code": answer.status,
        }
        if answer
        else None,
        "server_conn": {
            **_connection(asked.at, None),
            "address": (_HOST, 80),
            "timestamp_tcp_setup": asked.at,
            "via": None,
        },
        "timestamp_created": asked.at,
        "type": "http",
        "version": _FORMAT,
        "websocket": None,
    }


_CLIENT: dict[str, Dumpable] = {"mitmcert": None, "proxy_mode": f"reverse:http://{_HOST}"}
_UNKNOWN: dict[str, Dumpable] = dict.fromkeys(
    ("alpn", "cipher", "error", "sni", "timestamp_end", "timestamp_tls_setup", "tls_version")
)


def _message(
    fields: RecordedFields, content: bytes, start: float, end: float
) -> dict[str, Dumpable]:
    length = (b"content-length", b"%d" % len(content))
    return {
        "content": content,
        "headers": [list(one) for one in (*fields, length)],
        "http_version": b"HTTP/1.1",
        "timestamp_end": end,
        "timestamp_start": start,
        "trailers": None,
    }


def _connection(at: float, peer: tuple[str, int] | None) -> dict[str, Dumpable]:
    return {
        **_UNKNOWN,
        **{"alpn_offers": [], "certificate_list": [], "cipher_list": []},
        **{"id": str(uuid4()), "peername": peer, "sockname": peer, "timestamp_start": at},
        **{"tls": False, "transport_protocol": "tcp"},
    }
