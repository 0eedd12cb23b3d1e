"""Sets of paths on the upstream, as users write them.

>>> paths = parse_paths(["/files/*,/mcp"], option="header_paths")
>>> [paths.has(target) for target in ("/files/a?b", "/mcp/", "/mcp/x", "/files/../admin")]
[True, True, False, False]
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from mcp_tool_filter.errors import InvalidOption

_MISLEADING = re.compile(r"//|/\.{1,2}(?:[/;]|$)|\\|%2[ef]|%5c|%25|;", re.IGNORECASE)
_PATH = re.compile(r"/[!-)+-~]*\*?|\*")  # a star only at the end


@dataclass(frozen=True, slots=True)
class Paths:
    """Single paths, with or without a last slash, and all paths below some (``/files/*``)."""

    single: frozenset[str] = frozenset()
    below: tuple[str, ...] = ()

    def has(self, target: str) -> bool:
        """Tell whether a request's target is in the set; its query does not matter."""
        if plain_path(target) in self.single:
            return True
        path = target.partition("?")[0]
        return path.startswith(self.below) and not is_misleading(path)


def is_misleading(path: str) -> bool:
    """Tell whether some server could resolve the path to a different one."""
    return _MISLEADING.search(path) is not None


def plain_path(target: str) -> str:
    """Return the path of a target, without its query and without a trailing slash.

    >>> plain_path("/mcp/?a=1"), plain_path("/")
    ('/mcp', '/')
    """
    path = target.partition("?")[0]
    return path[:-1] if path.endswith("/") and len(path) > 1 else path


def parse_paths(values: Sequence[str], *, option: str) -> Paths:
    """Parse a user's paths; commas separate several. Raises InvalidOption."""
    given = [path.strip() for value in values for path in value.split(",")]
    texts = [path for path in given if path]
    for text in texts:
        if not _PATH.fullmatch(text) or "?" in text or "#" in text:
            why = "It must be a path such as /files, all paths below one (/files/*), or * for all"
            raise InvalidOption(option, text, why=why)
    below = tuple("/" if text == "*" else text[:-1] for text in texts if text.endswith("*"))
    return Paths(frozenset(plain_path(text) for text in texts if not text.endswith("*")), below)
