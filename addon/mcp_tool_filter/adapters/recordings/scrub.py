"""Takes secrets out of recordings: credentials, cookies, session ids, and fields you name.

A secret is replaced by a mask, the same wherever it stands, so that a recorded session still
hangs together; and by one just as long where length counts (in bodies and URLs), so that the rest
stays as it was. What has been scrubbed stays as it is when it is scrubbed again:

>>> scrub_json(b'{"password": "hunter2", "n": 1}', frozenset({"password"}))
b'{"password": "xxxxxxx", "n": 1}'
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from mitmproxy.http import HTTPFlow, Message

from mcp_tool_filter.adapters.recordings.flow_dump import KEY, Kept, recut
from mcp_tool_filter.http.head import Head

DEFAULT_FIELDS = frozenset({
    "password", "passwd", "secret", "client_secret", "token", "access_token", "refresh_token",
    "id_token", "api_key", "apikey", "authorization", "private_key",
})  # fmt: skip

_COOKIES = (b"cookie", b"set-cookie")
_SESSION_IDS = (b"mcp-session-id",)
_IN_URL = re.compile(
    rb"(?<=[?&])((?:session_?id|sessionid|token|access_token|api_?key|key|code|auth)=)([^&#\s\"\\]+)",
    re.IGNORECASE,
)
_COOKIE_VALUE = re.compile(rb"(?:(?<=^)|(?<=[;,]))(\s*[^=;,\s]+=)([^;]*)")
_ATTRIBUTES = re.compile(rb"\s*(?:expires|max-age|domain|path|samesite|priority)=", re.IGNORECASE)
_MASK = re.compile(rb"(?:(?:basic|bearer|digest) )?(?:scrubbed-\d+-*|x+)", re.IGNORECASE)
_NUMBERED = re.compile(rb"scrubbed-(\d+)")
_SCHEME = re.compile(rb"(basic|bearer|digest) +", re.IGNORECASE)
_LONG_ENOUGH = 12
"""Bytes from which on a secret is looked for everywhere; a shorter one could be any word."""


@dataclass(slots=True)
class Scrubber:
    """Scrubs the flows of one recording; the same secret gets the same mask in all of them."""

    fields: frozenset[str] = DEFAULT_FIELDS
    headers: frozenset[bytes] = frozenset()
    """Headers of which you know that they are secret, in lower case."""
    _masks: dict[bytes, bytes] = field(default_factory=dict)

    def scrub(self, flows: Sequence[HTTPFlow]) -> int:
        """Take the secrets out of all flows; return how many there were."""
        found = dict.fromkeys(secret for flow in flows for secret in _secrets(flow, self))
        taken = [int(old[1]) for secret in found if (old := _NUMBERED.search(secret))]
        secrets = [secret for secret in found if secret and not _MASK.fullmatch(secret)]
        for number, secret in enumerate(secrets, max(taken, default=0) + 1):
            self._masks[secret] = _mask(secret, number)
        for flow in flows:
            self._clean(flow)
        return len(self._masks)

    # What is secret

    def secrets_in(self, name: bytes, value: bytes) -> Iterator[bytes]:
        """Yield what is secret in a header."""
        if name in _COOKIES:
            for key, secret in _COOKIE_VALUE.findall(value):
                if not _ATTRIBUTES.match(key):
                    yield secret
        elif self._is_secret(name):
            yield _SCHEME.sub(b"", value, count=1)

    def _is_secret(self, name: bytes) -> bool:
        is_credential = bool(Head("GET", "/", ((name, b""),)).credentials)
        return is_credential or name in _SESSION_IDS or name in self.headers

    def mask_of(self, secret: bytes) -> bytes:
        return self._masks.get(secret, secret)

    # Taking it out

    def _clean(self, flow: HTTPFlow) -> None:
        request, response = flow.request, flow.response
        request.data.path = self._replaced(_clean_url(request.data.path, self))
        request.headers.fields = self._clean_fields(request.headers.fields)
        self._clean_body(request)
        if response:
            response.headers.fields = self._clean_fields(response.headers.fields)
            self._clean_body(response)
        if kept := flow.metadata.get(KEY):
            self._clean_kept(kept)
        for message in flow.websocket.messages if flow.websocket else ():
            message.content = self._clean_text(message.content)
        flow.comment = self._clean_text(flow.comment.encode()).decode()

    def _clean_kept(self, kept: Kept) -> None:
        if asked := kept.get("asked"):
            asked["headers"] = [list(one) for one in self._clean_fields(asked["headers"])]
            asked["body"] = self._clean_text(asked["body"])
        if said := kept.get("said"):
            said["headers"] = [list(one) for one in self._clean_fields(said["headers"])]
            times = [at for at, _ in said["chunks"]]
            chunks = [data for _, data in said["chunks"]]
            clean = recut(chunks, self._clean_text(b"".join(chunks)))
            said["chunks"] = [[at, data] for at, data in zip(times, clean, strict=True)]

    def _clean_fields(self, fields: Iterable[Sequence[bytes]]) -> tuple[tuple[bytes, bytes], ...]:
        return tuple((name, self._clean_value(name.lower(), value)) for name, value in fields)

    def _clean_value(self, name: bytes, value: bytes) -> bytes:
        for secret in self.secrets_in(name, value):
            if secret:
                value = value.replace(secret, self.mask_of(secret))
        return self._replaced(_clean_url(value, self))

    def _clean_body(self, message: Message) -> None:
        content = message.data.content
        if not content:
            return
        coding = message.headers.get("content-encoding", "identity").lower()
        if coding == "identity":
            message.data.content = self._clean_text(content)
            return
        plain = message.get_content(strict=False) or b""
        clean = self._clean_text(plain)
        if clean != plain:  # nobody could tell what is in it while it was compressed
            del message.headers["content-encoding"]
            message.content = clean

    def _clean_text(self, text: bytes) -> bytes:
        return self._replaced(_clean_url(scrub_json(text, self.fields), self))

    def _replaced(self, text: bytes) -> bytes:
        for secret in sorted(self._masks, key=len, reverse=True):  # one may hold another
            if len(secret) >= _LONG_ENOUGH:
                text = text.replace(secret, self._masks[secret])
        return text


def scrub_json(text: bytes, fields: Iterable[str]) -> bytes:
    """Mask the strings that stand in members of these names, at any depth; lengths stay."""
    names = b"|".join(re.escape(name.encode()) for name in sorted(fields))
    if not names:
        return text
    member = re.compile(rb'("(?:' + names + rb')"\s*:\s*")((?:[^"\\]|\\.)*)(?=")', re.IGNORECASE)
    return member.sub(lambda found: found[1] + _blank(found[2]), text)


def _blank(secret: bytes) -> bytes:
    return secret if _MASK.fullmatch(secret) else b"x" * len(secret)


def _clean_url(text: bytes, scrubber: Scrubber) -> bytes:
    return _IN_URL.sub(lambda found: found[1] + scrubber.mask_of(found[2]), text)


def _mask(secret: bytes, number: int) -> bytes:
    """Return what stands for a secret: as long as it is."""
    mask = b"scrubbed-%d" % number
    return mask.ljust(len(secret), b"-") if len(mask) <= len(secret) else b"x" * len(secret)


def _secrets(flow: HTTPFlow, scrubber: Scrubber) -> Iterator[bytes]:
    for fields in _all_fields(flow):
        for name, value in fields:
            yield from scrubber.secrets_in(name.lower(), value)
    for text in (flow.request.data.path, *_bodies(flow)):
        yield from (secret for _, secret in _IN_URL.findall(text))


def _all_fields(flow: HTTPFlow) -> Iterator[Iterable[Sequence[bytes]]]:
    yield flow.request.headers.fields
    if flow.response:
        yield flow.response.headers.fields
    for part in _kept_parts(flow):
        yield part["headers"]


def _bodies(flow: HTTPFlow) -> Iterator[bytes]:
    for message in (flow.request, flow.response):
        if message is not None and message.data.content:
            yield message.get_content(strict=False) or b""
    for part in _kept_parts(flow):
        yield b"".join(data for _, data in part["chunks"]) if "chunks" in part else part["body"]


def _kept_parts(flow: HTTPFlow) -> list[Kept]:
    kept = flow.metadata.get(KEY) or {}
    return [kept[name] for name in ("asked", "said") if kept.get(name)]
