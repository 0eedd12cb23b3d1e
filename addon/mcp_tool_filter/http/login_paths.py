"""Know the paths on the upstream that belong to logins.

Two kinds are known beforehand: metadata documents under ``/.well-known/``, and the default paths of
MCP 2025-03-26. We learn the others from those documents, from challenges and from redirects:

>>> paths = LoginPaths("http://localhost:3000")
>>> paths.learn_document(b'{"token_endpoint":"http://localhost:3000/oauth/token"}')
>>> paths.has("POST", "/oauth/token"), paths.has("GET", "/admin")
(True, False)
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from mcp_tool_filter.http.guard import UpstreamNames, kept_with_us
from mcp_tool_filter.policy.config import is_misleading, plain_path

_DOCUMENT = re.compile(
    r"(?:/[^?]*)?/\.well-known/"
    r"(?:oauth-protected-resource|oauth-authorization-server|openid-configuration|jwks(?:\.json)?)"
    r"(?:/[^?]*)?"
)
_USUAL = frozenset({"/authorize", "/token", "/register"})  # MCP 2025-03-26, section 2.3.3
_NAMES_A_PATH = re.compile(r".*_endpoint|jwks_uri")
_IN_CHALLENGE = re.compile(r'resource_metadata\s*=\s*"?([^",\s]{1,2048})', re.IGNORECASE)
_READS_ONLY = ("GET", "HEAD", "OPTIONS")
_MOST_PATHS = 64
_LONGEST_PATH = 1024
_LONGEST_DOCUMENT = 64 * 1024


class LoginPaths:
    """The login paths of one upstream."""

    def __init__(self, upstream: str) -> None:
        self._upstream = UpstreamNames(upstream)
        self._named: dict[str, None] = {}

    def has(self, method: str, target: str) -> bool:
        """Tell whether a request is part of a login."""
        if is_login_document(target):
            return method in _READS_ONLY
        path = plain_path(target)
        return path in self._named or path in _USUAL

    def learn_document(self, body: bytes) -> None:
        """Learn the paths in a metadata document; ignore anything else."""
        if len(body) > _LONGEST_DOCUMENT:
            return
        try:
            document = json.loads(body)
        except (ValueError, RecursionError):
            return
        if isinstance(document, dict):
            for name, value in document.items():
                if isinstance(value, str) and _NAMES_A_PATH.fullmatch(name):
                    self._learn(value)

    def learn_head(self, target: str, locations: Sequence[str], challenges: Sequence[str]) -> None:
        """Learn from an answer's head where a login continues, and where its metadata is."""
        for challenge in challenges:
            for url in _IN_CHALLENGE.findall(challenge):
                self._learn(url)
        if self.has("GET", target):
            for location in locations:
                self._learn(location)

    def _learn(self, url: str) -> None:
        kept = kept_with_us(url, self._upstream)
        if kept is None or not kept.startswith("/") or len(kept) > _LONGEST_PATH:
            return
        path = plain_path(kept.partition("#")[0])
        if not is_misleading(path) and len(self._named) < _MOST_PATHS:
            self._named[path] = None


def is_login_document(target: str) -> bool:
    """Tell whether clients look for login metadata at this path.

    >>> is_login_document("/.well-known/oauth-protected-resource/mcp")
    True
    """
    path = target.partition("?")[0]
    return _DOCUMENT.fullmatch(path) is not None and not is_misleading(path)
