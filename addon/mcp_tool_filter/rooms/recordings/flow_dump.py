"""Recordings: mitmproxy's flow dumps that also contain the messages before we filtered them.

A flow itself has what the upstream received and what the client got. What the client had sent, and
the upstream's original answer with its times, are in the flow's metadata (``keep_*``), so that a
session can be replayed with other patterns. Dumps made without us can be read too: nothing was
filtered, so the client got the upstream's answer.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import IO, Any

from mcp_tool_filter.core.conversation.memory import Fetched
from mcp_tool_filter.core.errors import StartError
from mcp_tool_filter.core.http.bodies import is_event_stream
from mcp_tool_filter.core.http.head import Head
from mcp_tool_filter.core.messages.limits import MEBIBYTE, Transport

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # of mitmproxy's own dependencies
    from mitmproxy.exceptions import FlowReadException
    from mitmproxy.flow import Flow
    from mitmproxy.http import HTTPFlow, Message
    from mitmproxy.io import FlowReader, FlowWriter

KEY = "mcp_tool_filter"
"""Our key in ``flow.metadata``."""

MOST_KEPT = 16 * MEBIBYTE
"""Bytes of one stream that we keep; of later bytes we keep only the count."""

type _Fields = list[list[bytes]]
type Kept = dict[str, Any]
"""Values that a dump can contain: dicts, lists, text, bytes and numbers."""


class UnreadableRecording(StartError):
    def __init__(self, path: object, *, why: str) -> None:
        super().__init__(f"Cannot read the recording {path}", why=why)


@contextmanager
def damage_in(path: object) -> Iterator[None]:
    """Report a recording whose parts are not what they should be. Raises UnreadableRecording.

    (Reading one may raise anything: mitmproxy does not check what it reads.)
    """
    try:
        yield
    except (StartError, OSError, FlowReadException):
        raise
    except Exception as error:
        raise UnreadableRecording(path, why=f"It is damaged: {error!r}"[:300]) from error


@dataclass(frozen=True, slots=True)
class Chunk:
    at: float
    """Seconds since 1970."""
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """The upstream's answer before we changed it."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    at: float
    chunks: tuple[Chunk, ...]
    ended: float | None
    """None if the stream was still open, or was cut."""
    left_out: int = 0
    """Bytes that were not kept because of the limit."""

    @property
    def body(self) -> bytes:
        return b"".join(chunk.data for chunk in self.chunks)

    @property
    def content_type(self) -> str:
        found = [value for name, value in self.headers if name.lower() == b"content-type"]
        return found[-1].decode("latin-1") if found else ""

    @property
    def is_event_stream(self) -> bool:
        return is_event_stream(self.content_type)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedFlow:
    """One request as its client sent it, and its answer."""

    head: Head
    host: str
    body: bytes
    at: float
    upstream: str
    """Scheme, host and port."""
    said: Said | None
    """The upstream's answer; None if it was not asked or did not answer."""
    heard: bytes
    """The body that the client got."""
    fetched: Fetched | None = None
    """The upstream's tools, if this flow has them."""


@dataclass(frozen=True, slots=True)
class Recording:
    """A recorded session (or several), in order of time."""

    flows: tuple[RecordedFlow, ...]
    name: str = field(default="")

    @property
    def fetched(self) -> Fetched | None:
        return next((flow.fetched for flow in self.flows if flow.fetched), None)


# Keeping, while a flow is under way


def keep_request(flow: HTTPFlow, host: str) -> Kept:
    """Keep a request as its client sent it. Call this before anything is changed."""
    request = flow.request
    kept: Kept = {
        "format": 1,
        "asked": {
            "host": host,
            "headers": [[name, value] for name, value in request.headers.fields],
            "body": request.raw_content or b"",
        },
    }
    flow.metadata[KEY] = kept
    return kept


def keep_fetched(kept: Kept, fetched: Fetched) -> None:
    kept["fetched"] = {
        "transport": fetched.transport.value,
        "revision": fetched.revision,
        "endpoint": fetched.endpoint,
        "server": [fetched.server_name, fetched.server_version],
        "sessions": fetched.sessions,
        "pages": list(fetched.pages),
    }


def keep_head(kept: Kept, fields: Iterable[tuple[bytes, bytes]], status: int, now: float) -> None:
    """Keep the head of the upstream's answer."""
    kept["said"] = {
        "status": status,
        "headers": [[name, value] for name, value in fields],
        "at": now,
        "chunks": [],
        "ended": None,
        "size": 0,
        "left_out": 0,
    }


def keep_chunk(kept: Kept, data: bytes, now: float) -> None:
    """Keep the next part of its body; b"" is the end."""
    said = kept.get("said")
    if said is None:
        return
    if not data:
        said["ended"] = now
    elif said["left_out"] or said["size"] + len(data) > MOST_KEPT:
        said["left_out"] += len(data)
    else:
        said["size"] += len(data)
        said["chunks"].append([now, bytes(data)])


# Reading and writing


def read_flows(path: Path) -> list[HTTPFlow]:
    """Read the HTTP flows of a dump. Raises UnreadableRecording."""
    return http_flows(read_all_flows(path))


def http_flows(flows: Iterable[Flow]) -> list[HTTPFlow]:
    """Leave out other protocols."""
    return [flow for flow in flows if isinstance(flow, HTTPFlow)]


def read_all_flows(path: Path) -> list[Flow]:
    """Read all flows of a dump, including other protocols. Raises UnreadableRecording."""
    try:
        with path.open("rb") as file, damage_in(path):
            return list(FlowReader(file).stream())
    except OSError as error:
        raise UnreadableRecording(path, why=error.strerror or str(error)) from error
    except FlowReadException as error:
        raise UnreadableRecording(path, why=f"Not a mitmproxy flow file: {error}") from error


def write_flows(path: Path, flows: Iterable[HTTPFlow]) -> None:
    """Write a dump. Unchanged flows of one of our dumps give the same bytes."""
    with path.open("wb") as file:
        write_flows_to(file, flows)


def write_flows_to(file: IO[bytes], flows: Iterable[HTTPFlow]) -> None:
    """Write a dump to an open file."""
    writer = FlowWriter(file)
    for flow in flows:
        flow.metadata = _sorted(flow.metadata)  # reading reverses the order of dicts
        writer.add(flow)


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return value


def read_recording(path: Path) -> Recording:
    """Read a recording. Raises UnreadableRecording."""
    with damage_in(path):
        flows = sorted(read_flows(path), key=lambda flow: flow.request.timestamp_start)
        return Recording(tuple(_recorded(flow) for flow in flows), path.stem)


def _recorded(flow: HTTPFlow) -> RecordedFlow:
    request, kept = flow.request, _of(dict, flow.metadata.get(KEY) or {})
    asked = _of(dict, kept.get("asked") or {})
    plain = _pairs(asked["headers"]) if asked else _plain_headers(request)
    return RecordedFlow(
        head=Head(request.method.upper(), request.path, plain),
        host=_of(str, asked["host"]) if asked else "localhost",
        body=_of(bytes, asked["body"]) if asked else _plain_body(request),
        at=_time(request.timestamp_start),
        upstream=f"{request.scheme}://{request.host}:{request.port}",
        said=_said_to(flow, kept),
        heard=flow.response.data.content or b"" if flow.response else b"",
        fetched=_fetched(_of(dict, kept["fetched"])) if kept.get("fetched") else None,
    )


def _said_to(flow: HTTPFlow, kept: Kept) -> Said | None:
    if flow.websocket:
        return None  # the content of tunnels is not kept
    if not kept:
        return _unfiltered(flow)
    if not (said := _of(dict, kept.get("said") or {})):
        return None
    if not 100 <= (status := _of(int, said["status"])) <= 999:
        raise ValueError("a status that cannot be")
    return Said(
        status=status,
        headers=_pairs(said["headers"]),
        at=_time(said["at"]),
        chunks=tuple(Chunk(_time(at), _of(bytes, data)) for at, data in said["chunks"]),
        ended=None if said["ended"] is None else _time(said["ended"]),
        left_out=_of(int, said["left_out"]),
    )


def _unfiltered(flow: HTTPFlow) -> Said | None:
    """Return what the client got as the upstream's answer, because nothing was filtered."""
    response = flow.response
    if response is None:
        return None
    end = response.timestamp_end or response.timestamp_start
    body = _plain_body(response)
    return Said(
        status=response.status_code,
        headers=_plain_headers(response),
        at=response.timestamp_start,
        chunks=(Chunk(end, body),) if body else (),
        ended=end,
    )


def _fetched(kept: Kept) -> Fetched:
    name, version = kept["server"]
    return Fetched(
        transport=Transport(kept["transport"]),
        revision=_of(str, kept["revision"]),
        endpoint=_of(str, kept["endpoint"]),
        server_name=_of(str, name),
        server_version=_of(str, version),
        sessions=_of(bool, kept["sessions"]),
        pages=tuple(_of(bytes, page) for page in kept["pages"]),
    )


def _of[T](kind: type[T], value: object) -> T:
    """Return a value that must be of this kind: anybody can write a dump. Raises TypeError."""
    if type(value) is not kind:
        raise TypeError(f"{type(value).__name__} in the place of {kind.__name__}")
    if isinstance(value, str):
        value.encode()  # no half of a surrogate pair
    return value


def _time(value: object) -> float:
    """Return a time that must be one. Raises TypeError, ValueError."""
    at = float(value) if type(value) is int else _of(float, value)
    if not isfinite(at):
        raise ValueError("a time that is no number")
    return at


def _plain_headers(message: Message) -> tuple[tuple[bytes, bytes], ...]:
    return tuple(
        (name, value)
        for name, value in message.headers.fields
        if name.lower() != b"content-encoding"
    )


def _plain_body(message: Message) -> bytes:
    return message.get_content(strict=False) or b""


def _pairs(fields: _Fields) -> tuple[tuple[bytes, bytes], ...]:
    return tuple((_of(bytes, name), _of(bytes, value)) for name, value in fields)
