"""Rewrite headers of an answer that contain URLs, so that none leads a client past us.

>>> upstream = UpstreamNames("http://localhost:3000")
>>> keep_links([(b"location", b"http://127.0.0.1:3000/a"), (b"alt-svc", b"h3")], upstream)
[(b'location', b'/a')]
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from mcp_tool_filter.http.guard import UpstreamNames, has_host, kept_with_us, may_lead_round

type HeaderField = tuple[bytes, bytes]

_ONE_URL = frozenset({
    b"location", b"content-location", b"content-base", b"uri",
    b"sourcemap", b"x-sourcemap", b"x-accel-redirect",
})  # fmt: skip
WITH_URLS = frozenset({*_ONE_URL, b"alt-svc", b"refresh", b"link"})
"""The names of these headers, in lower case."""
_REFRESH = re.compile(
    r"(?P<time>[\s0-9.]*+[;,]?+\s*+(?:url\s*+=\s*+)?+)(?P<url>.*)", re.IGNORECASE | re.DOTALL
)
_QUOTED_OR_PLAIN = re.compile(r"""[^\s"',;=]++""")


def keep_links(fields: Iterable[HeaderField], upstream: UpstreamNames) -> list[HeaderField]:
    """Return the fields with URLs that lead to us or elsewhere, but not to the upstream past us."""
    kept = []
    for name, value in fields:
        key = name.lower()
        if key not in WITH_URLS:
            kept.append((name, value))
        elif (text := _kept_value(key, value, upstream)) is not None:
            kept.append((name, text))
    return kept


def leads_away(fields: Iterable[HeaderField]) -> bool:
    """Tell whether a redirect with these fields leads away from us."""
    return any(name.lower() == b"location" and has_host(_text(value)) for name, value in fields)


def _kept_value(name: bytes, value: bytes, upstream: UpstreamNames) -> bytes | None:
    """Return the value that may pass; None to remove the header."""
    if name == b"alt-svc":
        return None
    text = _text(value)
    if name in _ONE_URL:
        kept = kept_url(text, upstream)
    elif name == b"refresh":
        kept = _kept_refresh(text, upstream)
    else:
        kept = _kept_link(text, upstream)
    return value if kept == text else None if kept is None else _bytes(kept)


def kept_url(url: str, upstream: UpstreamNames) -> str | None:
    """Return a URL that leads to us or elsewhere; None if it may lead past us.

    >>> upstream = UpstreamNames("http://localhost:3000")
    >>> kept_url("http://[::1]:3000", upstream), kept_url("http://local\\u00adhost:3000", upstream)
    ('/', None)
    """
    if not has_host(url):
        return url
    kept = kept_with_us(url, upstream)
    if kept is not None and not has_host(kept):
        return kept
    return None if may_lead_round(url, upstream) else url


def _kept_refresh(value: str, upstream: UpstreamNames) -> str | None:
    """Judge ``5; url=…``, whose URL may be quoted."""
    if (match := _REFRESH.match(value)) is None:
        return None
    time, url = match["time"], match["url"]
    quote = url[:1] if url[:1] in ("'", '"') else ""
    bare = url[1:].partition(quote)[0] if quote else url
    kept = kept_url(bare, upstream)
    if kept is None or (kept == bare and _may_hold_url(value, upstream)):
        return None
    return value if kept == bare else time + kept


def _kept_link(value: str, upstream: UpstreamNames) -> str | None:
    """Judge ``<…>; rel=…, <…>``: each URL, and anything else that could be taken for one."""
    written = []
    for number, piece in enumerate(value.split("<")):
        url, closing, parameters = piece.partition(">") if number else ("", "", piece)
        if number and not closing:
            return None
        kept = kept_url(url, upstream) if number else ""
        if kept is None or _may_hold_url(parameters, upstream):
            return None
        written.append(f"<{kept}>{parameters}" if number else parameters)
    return "".join(written)


def _may_hold_url(parameters: str, upstream: UpstreamNames) -> bool:
    if ":" not in parameters and "/" not in parameters and "\\" not in parameters:
        return False
    return any(may_lead_round(word, upstream) for word in _QUOTED_OR_PLAIN.findall(parameters))


def _text(value: bytes) -> str:
    """Decode a header: as UTF-8, or as Latin-1 if it is not UTF-8."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _bytes(text: str) -> bytes:
    return text.encode()
