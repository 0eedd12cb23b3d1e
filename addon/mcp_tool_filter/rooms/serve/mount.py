"""Where a server is below our address, if we serve several: ``/NAME/mcp`` is its endpoint.

What the client sends is judged and forwarded under the upstream's own paths, and what the upstream
says of its paths leads back to ``/NAME/…``. Metadata of logins has the name behind its well-known
path (RFC 9728, section 3.1; RFC 8414, section 3.1):

>>> split_target("/files/mcp?a=1")
('files', '/mcp?a=1')
>>> split_target("/.well-known/oauth-protected-resource/files/mcp")
('files', '/.well-known/oauth-protected-resource/mcp')

An upstream may have something else at ``/mcp`` than its endpoint, as servers of HTTP+SSE do that
take messages there. Then that is at ``/NAME/-/mcp``:

>>> mount = Mount("/files", "/sse")
>>> mount.outward("/mcp?id=1"), mount.inward("/-/mcp?id=1"), mount.inward("/mcp")
('/files/-/mcp?id=1', '/mcp?id=1', '/sse')

A path that some server could resolve to another one belongs to nobody:

>>> split_target("/files/../linear/mcp"), split_target("//files/mcp"), split_target("/files%2f..")
(None, None, None)

>>> mount = Mount("/files", "/v1/mcp?key=1")
>>> mount.inward("/mcp"), mount.inward("/messages?id=1"), mount.outward("/v1/mcp")
('/v1/mcp?key=1', '/messages?id=1', '/files/mcp')
>>> mount.outward("/.well-known/oauth-protected-resource/v1/mcp")
'/.well-known/oauth-protected-resource/files/mcp'
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from mcp_tool_filter.core.http.places import PathMap
from mcp_tool_filter.core.http.urls import HeaderField, has_host
from mcp_tool_filter.core.policy.config import is_misleading

_TARGET = re.compile(
    r"(?P<document>/\.well-known/[^/?]+)?/(?P<name>[A-Za-z0-9][A-Za-z0-9_.-]*)(?P<rest>[/?].*)?",
    re.DOTALL,
)
_DOCUMENT = re.compile(r"(/\.well-known/[^/?]+)(.*)", re.DOTALL)
_ONE_URL = frozenset({b"location", b"content-location", b"content-base", b"uri"})
_FOR_ALL = frozenset({b"clear-site-data", b"service-worker-allowed"})
"""They would concern what other servers have in a browser."""
# (A link that is not closed ends with the text, so that no character is read twice.)
_IN_LINK = re.compile(r"<([^>]*)(>?)")
_COOKIE_PATH = re.compile(rb"(;[ \t]*path[ \t]*=[ \t]*)(/[^;]*)", re.IGNORECASE)
ENDPOINT: Final = "/mcp"
_OTHER: Final = "/-/mcp"
"""The upstream's own path ``/mcp``, if its endpoint is elsewhere."""


def split_target(target: str) -> tuple[str, str] | None:
    """Return the server that a target names, and its own target there; None if it names none."""
    found = _TARGET.fullmatch(target)
    if found is None or is_misleading(target.partition("?")[0]):
        return None
    document, rest = found["document"] or "", found["rest"] or ""
    if not document and not rest.startswith("/"):
        return None
    return found["name"], document + rest


@dataclass(frozen=True)
class Mount(PathMap):
    """The place of one server."""

    prefix: str
    """Such as ``/files``."""
    endpoint: str = ENDPOINT
    """The path of the MCP endpoint on the upstream, and its query."""

    @property
    def _theirs(self) -> str:
        return self.endpoint.partition("?")[0]

    def inward(self, target: str) -> str:
        """Return the upstream's target for a client's, from which the name is gone already."""
        path, mark, query = target.partition("?")
        if path == ENDPOINT:
            joint = "&" if "?" in self.endpoint else "?"
            return self.endpoint + (joint + query if mark else "")
        if path.endswith(_OTHER) and self._theirs != ENDPOINT:
            return path.removesuffix(_OTHER) + ENDPOINT + mark + query
        if (document := _DOCUMENT.fullmatch(path)) and document[2] == ENDPOINT:
            return document[1] + self._theirs.removesuffix("/") + mark + query
        return target

    def inward_of_whole(self, target: str) -> str | None:
        split = split_target(target)
        return self.inward(split[1]) if split is not None else None

    def outward(self, path: str) -> str:
        """Return our path for one of the upstream."""
        plain, mark, query = path.partition("?")
        document = _DOCUMENT.fullmatch(plain)
        before, plain = document.groups() if document else ("", plain)
        if plain == (self._theirs.removesuffix("/") if before else self._theirs):
            plain = ENDPOINT
        elif plain == ENDPOINT:
            plain = _OTHER
        return before + self.prefix + plain + mark + query

    def url(self, ours: str, path: str) -> str:
        """Return the URL for a path of the upstream; ``ours`` is our address with the prefix."""
        return ours.removesuffix(self.prefix) + self.outward(path)

    def resource(self, path: str) -> str | None:
        """Return the upstream's path of a resource that has this path here; None if it is not the
        upstream's."""
        rest = path.removeprefix(self.prefix)
        if rest == path or rest[:1] not in ("", "/", "?", "#"):
            return None
        return self._theirs if rest == ENDPOINT else self.inward(rest)

    def fields(self, fields: Iterable[HeaderField]) -> list[HeaderField]:
        """Return an answer's fields, with links and cookies that stay below the prefix.

        >>> mount = Mount("/files", "/v1/mcp")
        >>> mount.fields([(b"set-cookie", b"a=b; Path=/v1")])  # our endpoint must get it, too
        [(b'set-cookie', b'a=b; Path=/files/')]
        >>> mount.fields([(b"location", b"/x"), (b"clear-site-data", b'"cookies"')])
        [(b'location', b'/files/x')]
        """
        kept = []
        for name, value in fields:
            key = name.lower()
            if key == b"set-cookie":
                value = _COOKIE_PATH.sub(self._cookie_path, value)
            elif key in _FOR_ALL:
                continue
            elif key in _ONE_URL or key in (b"link", b"refresh"):
                text = self._kept(key, value.decode("latin-1"))
                if text is None:
                    continue
                value = text.encode("latin-1")
            kept.append((name, value))
        return kept

    def _cookie_path(self, found: re.Match[bytes]) -> bytes:
        path = found[2].decode("latin-1").strip()
        is_above = self._theirs.startswith(path.rstrip("/") + "/")
        return found[1] + (self.prefix + "/" if is_above else self.outward(path)).encode("latin-1")

    def _kept(self, name: bytes, value: str) -> str | None:
        if name in _ONE_URL:
            return self._link(value)
        if name == b"refresh":
            return None if "url" in value.lower() else value
        links = [self._link(url) for url, _ in _IN_LINK.findall(value)]
        if None in links:
            return None
        again = iter(links)
        return _IN_LINK.sub(lambda one: f"<{next(again)}{one[2]}", value)

    def _link(self, url: str) -> str | None:
        """Return a link that leads to the same server here; None if it could lead to another."""
        if has_host(url):
            return url
        path = url.partition("?")[0].partition("#")[0]
        if is_misleading(path if path.startswith("/") else f"/{path}") or not url.isprintable():
            return None
        return self.outward(url) if url.startswith("/") else url
