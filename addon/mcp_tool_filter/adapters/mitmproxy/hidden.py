"""Keep secrets out of flows that people can see: in mitmweb, in a recording, in a terminal.

The engine sends what the client sent. A flow is only a picture of it, in which masks stand for the
secrets: credentials in headers and URLs, and everything secret in a login (token requests, token
answers, redirects with a code). What another addon or a user changes in the picture is taken over,
and then a mask becomes its secret again, but only in its original place: a client that sends the
mask of somebody's token in a URL or an argument gets no token for it. A place is the path, a body,
or the headers of one name. The same secret has the same mask in all flows of a process:

>>> from mcp_tool_filter.observers.redaction.finder import SecretFinder
>>> masks = Masks(SecretFinder())
>>> [(_, hidden)] = masks.hide_fields(((b"Authorization", b"Bearer abc"),))
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
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import unquote

from mcp_tool_filter.http.login_metadata import AUTHORIZE, REGISTER, TOKEN
from mcp_tool_filter.http.logins_through import CALLBACK
from mcp_tool_filter.observers.redaction.names import is_secret_header, is_secret_name
from mcp_tool_filter.observers.redaction.places import Findings, replace

if TYPE_CHECKING:
    from mcp_tool_filter.http.head import Fields
    from mcp_tool_filter.http.listener import Listener
    from mcp_tool_filter.observers.redaction.finder import SecretFinder

_KEY = secrets.token_bytes(32)
_IN_ANSWER = b"answer:"  # prefix of header names in answers
_MASK = re.compile(rb"masked-[A-Za-z0-9_-]{22}")
_LOGIN_PATHS = frozenset({AUTHORIZE, TOKEN, REGISTER})
_FORM = b"application/x-www-form-urlencoded"
_NOT_TOKENS = frozenset({b"mcp-session-id", b"last-event-id"})
_WITH_URLS = frozenset({b"location", b"refresh", b"link"})
_PARAMETER = re.compile(rb"[?&]([^=&#?]{1,200}+)=([^&#]++)")
_LONGEST_BODY = 256 * 1024  # bytes; a longer body is hidden completely


def is_login(method: str, target: str, fields: Fields, listener: Listener) -> bool:
    """Tell whether the bodies of a request and of its answer may hold secrets."""
    path = target.partition("?")[0]
    if path in _LOGIN_PATHS or path.startswith(CALLBACK):
        return True
    if any(n.lower() == b"content-type" and v.lower().startswith(_FORM) for n, v in fields):
        return True
    return not listener.takes_headers(target) and listener.logins.has(method, target)


class Masks:
    """The masks of one flow."""

    PATH: ClassVar = b":path"
    BODY: ClassVar = b":body"
    ANSWER: ClassVar = b":answer"
    __slots__ = ("_finder", "_places", "_secrets", "is_login")

    def __init__(self, finder: SecretFinder, *, is_login: bool = False) -> None:
        self._finder = finder
        self._secrets: dict[tuple[bytes, bytes], bytes] = {}
        """The secrets by place and mask."""
        self._places: set[bytes] = set()
        self.is_login = is_login

    # Hiding

    def hide_target(self, target: bytes) -> bytes:
        """Hide the secrets in a URL; session ids stay, because they lead to a stream."""
        if self.is_login:
            found = self._finder.in_url(target.decode("latin-1"))
            return self._hide(target, found, self.PATH)
        return _PARAMETER.sub(self._hide_parameter, target) if b"?" in target else target

    def _hide_parameter(self, found: re.Match[bytes]) -> bytes:
        if not is_secret_name(unquote(found[1].decode("latin-1"))):
            return found[0]
        start = found.start(2) - found.start()
        return found[0][:start] + self._hide_all(found[2], self.PATH)

    def hide_fields(self, fields: Fields, *, in_answer: bool = False) -> Fields:
        """Hide the credentials in headers, and in an answer of a login the URLs."""
        return tuple([(name, self._hide_value(name, value, in_answer)) for name, value in fields])

    def _hide_value(self, name: bytes, value: bytes, in_answer: bool) -> bytes:
        key = name.lower()
        plain = key.decode("latin-1")
        if key not in _NOT_TOKENS and is_secret_header(plain):
            found = self._finder.in_header(plain, value.decode("latin-1"))
        elif in_answer and self.is_login and key in _WITH_URLS:
            found = self._finder.in_url(value.decode("latin-1"))
        else:
            return value
        return self._hide(value, found, (_IN_ANSWER if in_answer else b"") + key)

    def hide_body(self, body: bytes, fields: Fields, *, in_answer: bool = False) -> bytes:
        """Hide the secrets in the body of a login."""
        if not self.is_login or not body:
            return body
        place = self.ANSWER if in_answer else self.BODY
        kind, coding = (
            b", ".join(v for n, v in fields if n.lower() == name).decode("latin-1")
            for name in (b"content-type", b"content-encoding")
        )
        if coding or len(body) > _LONGEST_BODY:
            return self._hide_all(body, place)
        found = self._finder.in_body(body, kind)
        return self._hide_all(body, place) if found.unread else self._hide(body, found, place)

    def _hide(self, data: bytes, found: Findings, place: bytes) -> bytes:
        text = data.decode("latin-1")
        hidden = replace(
            text, found.secrets, lambda one: self._mask(text[one.start : one.end], place)
        )
        return hidden.encode("latin-1")

    def _hide_all(self, data: bytes, place: bytes) -> bytes:
        return self._mask(data.decode("latin-1"), place).encode()

    def _mask(self, text: str, place: bytes) -> str:
        raw = text.encode("latin-1")
        if (place, raw) in self._secrets:  # a mask itself
            return text
        digest = hmac.digest(_KEY, raw, hashlib.sha256)[:16]
        mask = b"masked-" + base64.urlsafe_b64encode(digest).rstrip(b"=")
        self._secrets[place, mask] = raw
        self._places.add(place)
        return mask.decode()

    # Showing

    def show(self, data: bytes, place: bytes) -> bytes:
        """Restore the secrets that were hidden in this place."""
        if place not in self._places:
            return data
        return _MASK.sub(lambda found: self._secrets.get((place, found[0]), found[0]), data)

    def show_fields(self, fields: Fields, *, in_answer: bool = False) -> Fields:
        side = _IN_ANSWER if in_answer else b""
        return tuple([(name, self.show(value, side + name.lower())) for name, value in fields])
