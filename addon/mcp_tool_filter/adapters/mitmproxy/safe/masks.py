"""Masks that stand in a flow in place of its secrets; only the wire gets the secrets.

Whoever looks at a flow (mitmweb, ``-w``, another script) sees masks. What is sent has the secrets
again, and only where they were: whoever has seen the mask of somebody's token, and sends it in an
argument, gets no token for it. The same secret has the same mask in all flows of a process:

>>> masks = Masks()
>>> hidden = masks.hide(b"Bearer abc", Finder().in_header("authorization", "Bearer abc"))
>>> hidden.startswith(b"Bearer masked-"), masks.show(hidden)
(True, b'Bearer abc')
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets

from mitmproxy.http import Request, Response

from mcp_tool_filter.observers.redaction.finder import Finder as Finder  # also for the example
from mcp_tool_filter.observers.redaction.findings import Findings, replace

_KEY = secrets.token_bytes(32)
_MASK = re.compile(rb"masked-[A-Za-z0-9_-]{22}")


class Masks:
    """The masks of one flow."""

    __slots__ = ("_secrets", "headers", "in_answer", "is_login")

    def __init__(self) -> None:
        self._secrets: dict[bytes, bytes] = {}
        self.headers: set[bytes] = set()
        """The headers that have masks, in lower case."""
        self.is_login = False
        """Its bodies may hold secrets."""
        self.in_answer = False
        """The body of its answer has masks."""

    def hide(self, data: bytes, found: Findings) -> bytes:
        """Put a mask in the place of each secret that was found."""
        text = data.decode("latin-1")
        hidden = replace(text, found.secrets, lambda one: self._mask(text[one.start : one.end]))
        return hidden.encode("latin-1")

    def hide_all(self, data: bytes) -> bytes:
        """Put one mask in the place of everything."""
        return self._mask(data.decode("latin-1")).encode() if data else data

    def _mask(self, text: str) -> str:
        raw = text.encode("latin-1")
        if raw in self._secrets:  # a mask itself
            return text
        digest = hmac.digest(_KEY, raw, hashlib.sha256)[:16]
        mask = b"masked-" + base64.urlsafe_b64encode(digest).rstrip(b"=")
        self._secrets[mask] = raw
        return mask.decode()

    def show(self, data: bytes) -> bytes:
        """Put the secrets back in their places."""
        return _MASK.sub(lambda found: self._secrets.get(found[0], found[0]), data)

    def request_with_secrets(self, request: Request) -> Request:
        """Return a copy of a request as it goes to the upstream, or came from the client."""
        real = request.copy()
        real.data.path = self.show(real.data.path)
        self._show_headers(real)
        if self.is_login:
            self._show_content(real)
        return real

    def answer_with_secrets(self, response: Response) -> Response:
        """Return a copy of an answer as it goes to the client."""
        real = response.copy()
        self._show_headers(real)
        if self.in_answer:
            self._show_content(real)
        return real

    def _show_headers(self, message: Request | Response) -> None:
        message.headers.fields = tuple(
            (name, self.show(value) if name.lower() in self.headers else value)
            for name, value in message.headers.fields
        )

    def _show_content(self, message: Request | Response) -> None:
        if not (content := message.data.content):
            return
        whole = message.data.content = self.show(content)
        if len(whole) != len(content) and "content-length" in message.headers:
            message.headers["content-length"] = str(len(whole))
