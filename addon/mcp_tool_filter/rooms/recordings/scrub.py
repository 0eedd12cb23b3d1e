"""Remove secrets from recordings, wherever a flow contains text.

``rooms.secrets`` finds secrets by name (``client_secret``, ``Authorization``) and by shape
(``ghp_…``). Each secret is replaced everywhere by the same mask of its length, so that a recorded
session can still be replayed. Long secrets are also searched for everywhere else. Scrubbing again
changes nothing.

Parts that cannot be read (an unknown coding, binary data) stay unchanged and are reported.

Masks have the length of their secret:

>>> masks = Masks({"a-long-session-id": False, "short": False, "other": False, "123456": True})
>>> [masks.of(Secret(0, len(value), value)) for value in masks.secrets]
['scrubbed-1-------', 'xxxxx', 'x2xxx', '111111']
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.core.http.bodies import decode_body
from mcp_tool_filter.core.messages.limits import MEBIBYTE
from mcp_tool_filter.rooms.recordings.flow_dump import KEY
from mcp_tool_filter.rooms.secrets.finder import SecretFinder
from mcp_tool_filter.rooms.secrets.places import Findings, Secret, replace

if TYPE_CHECKING:
    from mitmproxy.http import HTTPFlow

_MASK = re.compile(r"(?:scrubbed-[0-9]+-*|x(?:[0-9]+)?x*)")
_NUMBERED = re.compile(r"scrubbed-([0-9]+)")
_LONG_ENOUGH = 8
"""Bytes; a secret of this length is searched for everywhere. A shorter one could be any word."""
_WORDS = re.compile(r"[A-Za-z _.-]{1,15}|[0-9 _.:-]{1,11}")


class Masks:
    """The masks of one recording, for secrets and for masks of an earlier scrubbing, which stay."""

    def __init__(self, values: Mapping[str, bool]) -> None:
        """A value says whether its secret is a number."""
        self._taken = {_bytes(value) for value in values if _is_mask(value)}
        self._masks: dict[str, bytes] = {}
        numbers = [int(found[1]) for value in values if (found := _NUMBERED.search(value))]
        fresh = (value for value in values if not _is_mask(value))
        for number, value in enumerate(fresh, max(numbers, default=0) + 1):
            mask = b"1" * len(value) if values[value] else self._free_mask(value, number)
            self._masks[value] = mask

    @property
    def secrets(self) -> list[str]:
        return list(self._masks)

    def of(self, secret: Secret) -> str:
        """Return the mask for a secret."""
        size = secret.end - secret.start
        if secret.is_number:
            return "1" * size
        if _is_mask(secret.value):
            return secret.value
        mask = self._masks.get(secret.value, b"x" * size).decode()
        return (
            mask.ljust(size, "x") if mask.startswith("x") else mask
        )  # may also fill the place of its escapes

    def _free_mask(self, value: str, number: int) -> bytes:
        secret = _bytes(value)
        mask = b"scrubbed-%d" % number
        if len(mask) <= len(secret):
            return mask.ljust(len(secret), b"-")
        for other in range(1, 10 ** min(len(secret), 6)):
            mask = _short_mask(len(secret), other)
            if mask not in self._taken:
                break
        self._taken.add(mask)
        return mask


def is_distinctive(value: str) -> bool:
    """Tell whether searching for a secret everywhere would not find ordinary words."""
    return len(value) >= _LONG_ENOUGH and not _WORDS.fullmatch(value)


def _short_mask(size: int, number: int) -> bytes:
    """Return a mask without room for a long name; the first of its length gets no number."""
    mask = b"x" if number == 1 or size < 3 else b"x%d" % number
    return mask.ljust(size, b"x")[:size]


def _is_mask(value: str) -> bool:
    return _MASK.fullmatch(value) is not None


def _bytes(value: str) -> bytes:
    try:
        return value.encode("latin-1")
    except UnicodeEncodeError:
        return value.encode()


type _State = dict[str, Any]
type _Fields = Iterable[Sequence[bytes]]

_LARGEST = 512 * MEBIBYTE  # of a decoded body


@dataclass(slots=True)
class Scrubber:
    """Scrubs the flows of one recording; the same secret gets the same mask in all of them."""

    fields: frozenset[str] = frozenset()
    """More names of JSON members, form fields and parameters that are secret."""
    headers: frozenset[bytes] = frozenset()
    """More headers that are secret."""
    unread: list[str] = field(default_factory=list)
    """Descriptions of the parts that could not be read and may still contain secrets."""

    def scrub(self, flows: Sequence[HTTPFlow]) -> int:
        """Remove the secrets from all flows; return how many there were."""
        finder = SecretFinder(
            frozenset(name.lower() for name in self.fields),
            frozenset(name.decode("latin-1").lower() for name in self.headers),
        )
        states = [flow.get_state() for flow in flows]
        values: dict[str, bool] = {}
        search = _Walk(finder, lambda found: values.update(_values_in(found)))
        for state in states:
            search.flow(state)
        masks = Masks(values)
        # The longest first, because one may contain another.
        known = sorted(filter(is_distinctive, masks.secrets), key=len, reverse=True)
        clean = _Walk(SecretFinder(finder.fields, finder.headers, tuple(known)), mask=masks.of)
        for number, (flow, state) in enumerate(zip(flows, states, strict=True), 1):
            clean.unread = {}
            flow.set_state(clean.flow(state))
            label = f"flow {number} ({flow.request.method})"
            self.unread += [f"{label}, {what}" for what in clean.unread]
        return len(masks.secrets)


def _values_in(found: Findings) -> Iterator[tuple[str, bool]]:
    """Yield the secrets, each with whether it is a number."""
    for secret in found.secrets:
        if not (secret.is_number and not secret.value.strip("1")):
            yield secret.value, secret.is_number
    for related in found.related:
        if is_distinctive(related):
            yield related, False


@dataclass(slots=True)
class _Walk:
    """Visits all places of a flow's state, and builds a new state."""

    finder: SecretFinder
    note: Callable[[Findings], None] = lambda _found: None
    mask: Callable[[Secret], str] | None = None
    """Returns the mask for a secret."""
    unread: dict[str, None] = field(default_factory=dict)

    def flow(self, state: _State) -> _State:
        return {key: self._part(key, value) for key, value in state.items()}

    def _part(self, key: str, value: Any) -> Any:
        match key, value:
            case "request", dict():
                return self._message(value, "request")
            case "response", dict():
                return self._message(value, "answer")
            case "websocket", dict():
                messages = [self._websocket_message(one) for one in value["messages"]]
                return {**self._any({**value, "messages": []}), "messages": messages}
            case "metadata", dict():
                rest = {name: part for name, part in value.items() if name != KEY}
                kept = {KEY: self._kept(value[KEY])} if value.get(KEY) else {}
                clean = {**self._any(rest, ""), **kept}
                return {name: clean[name] for name in value if name in clean}
            case "backup", dict():
                return self.flow(value)
        return self._any(value)

    # Messages

    def _message(self, state: _State, label: str) -> _State:
        clean = dict(state)
        for key, value in state.items():
            if key in ("path", "authority", "host") and value:
                clean[key] = self._url(value)
            elif key in ("headers", "trailers") and value is not None:
                clean[key] = tuple((name, said) for name, said in self._fields(value))
            elif key != "content":
                clean[key] = self._any(value)
        if state["content"]:
            body, headers, _ = self._body([state["content"]], clean["headers"], label)
            clean["content"], clean["headers"] = b"".join(body), tuple(headers)
        return clean

    def _websocket_message(self, message: Any) -> Any:
        type_, from_client, content, *rest = message
        found = self.finder.in_body(content, "")
        self._report(found, "a WebSocket message")
        return (type_, from_client, self._replaced(content, found), *rest)

    def _kept(self, kept: _State) -> _State:
        clean = {
            key: value if key in ("asked", "said", "fetched") and value else self._any(value)
            for key, value in kept.items()
        }
        if asked := kept.get("asked"):
            headers = self._fields(asked["headers"])
            body, headers, _ = self._body([asked["body"]], headers, "request")
            host = self._any(asked["host"])
            clean["asked"] = {
                **asked, "host": host, "headers": _lists(headers), "body": b"".join(body)
            }  # fmt: skip
        if said := kept.get("said"):
            headers = self._fields(said["headers"])
            chunks, headers, size = self._body(
                [data for _, data in said["chunks"]], headers, "answer"
            )
            times = [at for at, _ in said["chunks"]]
            pieces = [[at, data] for at, data in zip(times, chunks, strict=True)]
            clean["said"] = {**said, "headers": _lists(headers), "chunks": pieces}
            if "size" in said and size is not None:
                clean["said"]["size"] = size
        if fetched := kept.get("fetched"):
            clean["fetched"] = {
                **self._any({**fetched, "pages": [], "endpoint": ""}),
                "pages": [self._json(page) for page in fetched["pages"]],
                "endpoint": self._url(fetched["endpoint"]),
            }
        return clean

    def _body(
        self, chunks: list[bytes], headers: list[tuple[bytes, bytes]] | Any, label: str
    ) -> tuple[list[bytes], list[tuple[bytes, bytes]], int | None]:
        """Return the chunks, the headers with the right length, and the size if it changed."""
        headers = list(headers)
        raw = b"".join(chunks)
        if not raw:
            return chunks, headers, None
        try:
            plain = _decoded(raw, headers)
        except ProtocolError as error:
            self.unread[f"{label}: {error}"] = None
            return chunks, headers, None
        found = self.finder.in_body(plain, _value_of(headers, b"content-type"))
        self._report(found, label)
        clean = self._replaced(plain, found)
        if clean == plain:
            return chunks, headers, None
        if plain != raw:  # the chunks are those of the compressed body
            headers = [pair for pair in headers if pair[0].lower() != b"content-encoding"]
            chunks = [b""] * (len(chunks) - 1) + [clean]
        else:
            chunks = list(self._recut(chunks, plain, found))
        return chunks, _with_length(headers, len(clean)), len(clean)

    def _recut(self, chunks: list[bytes], plain: bytes, found: Findings) -> Iterator[bytes]:
        """Split the new body where the old one was split; within a secret, somewhere in its
        mask."""
        text, clean = plain.decode("latin-1"), self._replaced(plain, found)
        secrets = iter([*found.secrets, Secret(len(text), len(text), "")])
        secret, moved, start = next(secrets), 0, 0
        for end in accumulate(map(len, chunks)):
            while secret.end <= end and secret.value:
                moved += len(self._written_one(text, secret)) - (secret.end - secret.start)
                secret = next(secrets)
            new_end = end + moved
            if secret.start < end:
                in_mask = min(end - secret.start, len(self._written_one(text, secret)))
                new_end = secret.start + moved + in_mask
            yield clean[start:new_end]
            start = new_end

    # Pieces

    def _fields(self, fields: _Fields) -> list[tuple[bytes, bytes]]:
        return [(name, self._header(name, value)) for name, value in fields]

    def _header(self, name: bytes, value: bytes) -> bytes:
        found = self.finder.in_header(name.decode("latin-1"), value.decode("latin-1"))
        return self._replaced(value, found)

    def _url(self, value: Any) -> Any:
        raw = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
        clean = self._replaced(raw, self.finder.in_url(raw.decode("latin-1")))
        return clean.decode("utf-8", "surrogateescape") if isinstance(value, str) else clean

    def _json(self, raw: bytes) -> bytes:
        found = self.finder.in_body(raw, "application/json")
        self._report(found, "the fetched tool list")
        return self._replaced(raw, found)

    def _any(self, value: Any, name: str | None = None) -> Any:
        """Visit any value of a state: texts, and containers of them.

        Names mark secrets only in metadata: elsewhere they are mitmproxy's own names.
        """
        match value:
            case str():
                raw = value.encode("utf-8", "surrogateescape")
                return self._named(raw, name).decode("utf-8", "surrogateescape")
            case bytes():
                return self._named(value, name)
            case dict():
                inner = None if name is None else ""
                return {key: self._member(key, part, inner) for key, part in value.items()}
            case list():
                return [self._any(part, name) for part in value]
            case tuple():
                return tuple(self._any(part, name) for part in value)
        return value

    def _member(self, key: Any, value: Any, name: str | None) -> Any:
        if name is not None:
            return self._any(value, str(key))
        if key == "proxy_mode" and "@" in value:  # reverse:URL@HOST:PORT, not a user name
            url, at, address = value.rpartition("@")
            return self._any(url) + at + address
        return self._any(value)

    def _named(self, raw: bytes, name: str | None) -> bytes:
        """Scrub the value of a name, as in a JSON object."""
        return self._replaced(raw, self.finder.under_name(name or "", raw.decode("latin-1")))

    def _replaced(self, raw: bytes, found: Findings) -> bytes:
        self.note(found)
        if self.mask is None or not found.secrets:
            return raw
        return self._written(raw.decode("latin-1"), found.secrets).encode("latin-1")

    def _written(self, text: str, secrets: Sequence[Secret]) -> str:
        return replace(text, secrets, lambda one: self._written_one(text, one))

    def _written_one(self, text: str, secret: Secret) -> str:
        return self.mask(secret) if self.mask else text[secret.start : secret.end]

    def _report(self, found: Findings, label: str) -> None:
        self.unread.update(dict.fromkeys(f"{label}: {what}" for what in found.unread))


def _decoded(raw: bytes, headers: _Fields) -> bytes:
    for coding in reversed(_value_of(headers, b"content-encoding").split(",")):
        raw = decode_body(raw, coding, limit=_LARGEST)
    return raw


def _value_of(headers: _Fields, name: bytes) -> str:
    found = [value for key, value in headers if key.lower() == name]
    return b",".join(found).decode("latin-1")


def _with_length(headers: _Fields, length: int) -> list[tuple[bytes, bytes]]:
    return [
        (name, b"%d" % length if name.lower() == b"content-length" else value)
        for name, value in headers
    ]


def _lists(fields: _Fields) -> list[list[bytes]]:
    return [list(field) for field in fields]
