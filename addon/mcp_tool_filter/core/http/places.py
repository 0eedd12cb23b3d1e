"""Where clients find an upstream, and which of its paths are no MCP, as far as rooms know.

An only upstream has its own paths here, and nobody knows anything about logins. The rooms that know
more (several servers below one address; logins) put their own values into the ``Listener``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from mcp_tool_filter.core.http.urls import HeaderField


class PathMap:
    """The place of an only upstream: its own paths."""

    prefix = ""
    """Such as ``/files``; empty for an only upstream."""

    def inward(self, target: str) -> str:
        """Return the upstream's target for a client's, from which the prefix is gone already."""
        return target

    def inward_of_whole(self, target: str) -> str | None:
        """Do the same for a target with its prefix; None if that is another one."""
        return target

    def outward(self, path: str) -> str:
        """Return our path for one of the upstream."""
        return path

    def url(self, ours: str, path: str) -> str:
        """Return the URL for a path of the upstream; ``ours`` is our address with the prefix."""
        return ours + path

    def resource(self, path: str) -> str | None:
        """Return the upstream's path of a resource that has this path here; None if it is not the
        upstream's."""
        return path

    def fields(self, fields: Iterable[HeaderField]) -> list[HeaderField]:
        """Return an answer's fields, with links and cookies that stay below the prefix."""
        return list(fields)


ALONE: Final = PathMap()


def _is_of_nobody(_path: str) -> bool:
    return False


class KnownPaths:
    """The paths of logins, which clients need although they are no MCP; here, none is known."""

    def __init__(self) -> None:
        self.is_of_other: Callable[[str], bool] = _is_of_nobody
        """Tells whether another server of the origin has this path: it is no login path here."""

    def has(self, _method: str, _target: str) -> bool:
        """Tell whether a request is part of a login."""
        return False

    def is_document(self, _target: str) -> bool:
        """Tell whether clients look for login metadata at this path."""
        return False

    def learn_document(self, body: bytes) -> None:
        """Learn the paths in a metadata document; ignore anything else."""

    def learn_head(
        self, method: str, target: str, locations: Sequence[str], challenges: Sequence[str]
    ) -> None:
        """Learn from an answer's head where a login continues, and where its metadata is."""
