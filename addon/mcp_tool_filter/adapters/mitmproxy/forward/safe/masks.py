"""Replace the secrets in a flow by masks; only the wire gets the secrets.

Anyone who looks at a flow (mitmweb, ``-w``, another script) sees masks. When the message is sent,
each secret is restored, but only in its original place: a client that sends the mask of somebody's
token in a URL or an argument gets no token for it. A place is the path, a body, or the headers of
one name. The same secret has the same mask in all flows of a process:

>>> masks = FlowMasks()
>>> from mcp_tool_filter.observers.redaction.finder import SecretFinder
>>> found = SecretFinder().in_header("authorization", "Bearer abc")
>>> hidden = masks.hide(b"Bearer abc", found, b"authorization")
>>> hidden.startswith(b"Bearer masked-"), masks.show(hidden, b"authorization")
(True, b'Bearer abc')
>>> masks.show(hidden, masks.PATH) == hidden
True
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from typing import ClassVar

from mitmproxy.http import Request, Response

from mcp_tool_filter.observers.redaction.places import Findings, replace

_KEY = secrets.token_bytes(32)
_IN_ANSWER = b"answer:"  # prefix of header names in answers
_MASK = re.compile(rb"masked-[A-Za-z0-9_-]{22}")


class FlowMasks:
    """The masks of one flow."""

    PATH: ClassVar = b":path"
    BODY: ClassVar = b":body"
    ANSWER: ClassVar = b":answer"
    __slots__ = ("_secrets", "headers", "in_answer", "is_login")

    def __init__(self) -> None:
        self._secrets: dict[tuple[bytes, bytes], bytes] = {}
        """The secrets by place and mask."""
        self.headers: set[bytes] = set()
        """The places of headers with masks."""
        self.is_login = False
        """True if its bodies may contain secrets."""
        self.in_answer = False
        """True if the body of its answer has masks."""

    def hide(self, data: bytes, found: Findings, place: bytes) -> bytes:
        """Replace each secret that was found by a mask."""
        text = data.decode("latin-1")
        hidden = replace(
            text, found.secrets, lambda one: self._mask(text[one.start : one.end], place)
        )
        return hidden.encode("latin-1")

    def place_of(self, message: Request | Response, header: bytes) -> bytes:
        """Return the place of a header, and note that it has masks."""
        place = (_IN_ANSWER if isinstance(message, Response) else b"") + header.lower()
        self.headers.add(place)
        return place

    def hide_all(self, data: bytes, place: bytes) -> bytes:
        """Replace all of the data by one mask."""
        return self._mask(data.decode("latin-1"), place).encode() if data else data

    def _mask(self, text: str, place: bytes) -> str:
        raw = text.encode("latin-1")
        if (place, raw) in self._secrets:  # a mask itself
            return text
        digest = hmac.digest(_KEY, raw, hashlib.sha256)[:16]
        mask = b"masked-" + base64.urlsafe_b64encode(digest).rstrip(b"=")
        self._secrets[place, mask] = raw
        return mask.decode()

    def show(self, data: bytes, place: bytes) -> bytes:
        """Restore the secrets that were hidden in this place."""
        return _MASK.sub(lambda found: self._secrets.get((place, found[0]), found[0]), data)

    def request_with_secrets(self, request: Request) -> Request:
        """Return a copy of a request with its secrets."""
        real = request.copy()
        real.data.path = self.show(real.data.path, self.PATH)
        self._show_headers(real, b"")
        if self.is_login:
            self._show_content(real, self.BODY)
        return real

    def answer_with_secrets(self, response: Response) -> Response:
        """Return a copy of an answer with its secrets."""
        real = response.copy()
        self._show_headers(real, _IN_ANSWER)
        if self.in_answer:
            self._show_content(real, self.ANSWER)
        return real

    def _show_headers(self, message: Request | Response, side: bytes) -> None:
        message.headers.fields = tuple(
            (
                name,
                self.show(value, place)
                if (place := side + name.lower()) in self.headers
                else value,
            )
            for name, value in message.headers.fields
        )

    def _show_content(self, message: Request | Response, place: bytes) -> None:
        if not (content := message.data.content):
            return
        whole = message.data.content = self.show(content, place)
        if len(whole) != len(content) and "content-length" in message.headers:
            message.headers["content-length"] = str(len(whole))
