"""Remember what the upstream lets web pages read, so that our own answers allow exactly the same.

A browser shows an answer to a page of another origin only if the answer's CORS headers allow it.
The upstream decides that. We keep its last CORS headers for each origin and path:

>>> memory = CorsMemory()
>>> page = Page("http://localhost:6274", "/mcp")
>>> memory.learn(page, 200, [(b"Access-Control-Allow-Origin", b"*"), (b"Server", b"x")])
>>> memory.headers_for(page)
((b'access-control-allow-origin', b'*'),)
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass

from mcp_tool_filter.policy.config import plain_path

_ALLOW_ORIGIN = b"access-control-allow-origin"
_OF_ANSWERS = frozenset({
    _ALLOW_ORIGIN, b"access-control-allow-credentials", b"access-control-expose-headers",
})  # fmt: skip
_MOST_PAGES = 256
_LONGEST = 4096  # bytes that are kept for one page

type Fields = tuple[tuple[bytes, bytes], ...]


@dataclass(frozen=True, slots=True)
class Page:
    """The origin of a web page, and the path that it requests."""

    origin: str
    path: str
    """Without its query."""
    has_cookie: bool = False
    """Some upstreams send ``*`` only to requests without a cookie."""


def page_of(origin: str | None, target: str, *, has_cookie: bool) -> Page | None:
    """Return the page that sends the request; None if it is not a page, or too long to remember."""
    if origin is None or len(origin) + len(target) > _LONGEST:
        return None
    return Page(origin, plain_path(target), has_cookie)


@dataclass(slots=True)
class _Learned:
    from_answer: Fields | None = None
    from_preflight: Fields | None = None

    @property
    def fields(self) -> Fields:
        """The headers of the last answer; before any answer, those of the preflight."""
        return self.from_preflight or () if self.from_answer is None else self.from_answer


class CorsMemory:
    """The CORS headers by page. It forgets the least recently used."""

    def __init__(self) -> None:
        self._learned: OrderedDict[Page, _Learned] = OrderedDict()

    def learn(
        self,
        page: Page,
        status: int,
        headers: Iterable[tuple[bytes, bytes]],
        *,
        is_preflight: bool = False,
    ) -> None:
        """Keep the upstream's CORS headers, all from one answer: we never mix two answers."""
        fields = tuple(_cors_fields(headers))
        if status >= 500 and not fields:
            return  # frameworks forget CORS on their error pages
        if sum(len(name) + len(value) for name, value in fields) > _LONGEST:
            fields = ()
        if page not in self._learned and not fields:
            return
        learned = self._learned.setdefault(page, _Learned())
        self._learned.move_to_end(page)
        if is_preflight:
            learned.from_preflight = fields
        else:
            learned.from_answer = fields
        while len(self._learned) > _MOST_PAGES:
            self._learned.popitem(last=False)

    def headers_for(self, page: Page) -> Fields:
        """Return the CORS headers for our own answer to a page."""
        learned = self._learned.get(page)
        if learned is None:
            return ()
        self._learned.move_to_end(page)
        return learned.fields

    def is_allowed(self, page: Page) -> bool:
        """Tell whether the upstream has let this page read its answers."""
        return any(name == _ALLOW_ORIGIN for name, _ in self.headers_for(page))

    def __len__(self) -> int:
        return len(self._learned)


def _cors_fields(headers: Iterable[tuple[bytes, bytes]]) -> Iterable[tuple[bytes, bytes]]:
    for name, value in headers:
        plain = name.lower()
        if plain in _OF_ANSWERS:
            yield plain, value
        elif plain == b"vary" and _names_origin(value):
            yield b"vary", b"Origin"


def _names_origin(vary: bytes) -> bool:
    return any(token.strip().lower() in (b"origin", b"*") for token in vary.split(b","))
