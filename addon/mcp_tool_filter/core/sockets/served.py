"""A request and its answer as values, for what is asked in this process, and for small servers."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass

type ServedFields = Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class ServedRequest:
    """A request; its header names are in lower case."""

    method: str
    target: str
    headers: ServedFields
    body: bytes = b""
    own: str = ""
    """Our address to which the client has connected."""

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]

    def header(self, name: bytes) -> str | None:
        """Return the first header of this name (in lower case)."""
        return next((value.decode("latin-1") for key, value in self.headers if key == name), None)


@dataclass(frozen=True, slots=True)
class ServedResponse:
    status: int
    headers: ServedFields = ()
    body: bytes | AsyncIterator[bytes] = b""


type AnswerRequest = Callable[[ServedRequest], Awaitable[ServedResponse]]
