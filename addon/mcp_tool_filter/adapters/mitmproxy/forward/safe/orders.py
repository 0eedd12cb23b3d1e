"""Orders to a stream from us, not from a peer: inject bytes, end it, fail it."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from mitmproxy.proxy import commands, events

from mcp_tool_filter.adapters.mitmproxy.forward.safe.failures import Failure

if TYPE_CHECKING:
    from mcp_tool_filter.adapters.mitmproxy.forward.safe.stream import SafeStream

type Steps = Generator[commands.Command, Any, None]
"""What a layer of mitmproxy does next, step by step."""


class Held(Protocol):
    """Something that may hold back bytes of a response."""

    @property
    def is_waiting(self) -> bool: ...

    @property
    def held_bytes(self) -> int: ...


class Injected(bytes):
    """Bytes that we inject into a response; its stream callable can tell them from the
    upstream's."""

    flow_id: str = ""


@dataclass
class Order(events.Event):
    """An order to a stream from us, not from a peer."""

    stream: SafeStream


@dataclass
class Inject(Order):
    """Handle these bytes as if the upstream had sent them."""

    chunk: Injected


@dataclass
class Notice(Order):
    """Check whether the stream must be ended or cut."""


@dataclass
class Lose(Order):
    """Mark the upstream as lost."""

    why: str


@dataclass
class ReadOn(events.Event):
    """Continue to read requests: all answers have been sent."""


@dataclass
class GiveUp(Order):
    """Fail the stream for our own reason."""

    failure: Failure
