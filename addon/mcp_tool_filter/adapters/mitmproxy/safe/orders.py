"""What we, no peer, want of a stream: bytes put into it, its end, its failure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from mitmproxy.proxy import events

from mcp_tool_filter.adapters.mitmproxy.safe.failures import Failure

if TYPE_CHECKING:
    from mcp_tool_filter.adapters.mitmproxy.safe.stream import SafeStream


class Held(Protocol):
    """What may hold back bytes of a response."""

    @property
    def is_waiting(self) -> bool: ...

    @property
    def held_bytes(self) -> int: ...


class Injected(bytes):
    """What we put into a response ourselves; its stream callable can tell it from upstream's."""

    flow_id: str = ""


@dataclass
class Order(events.Event):
    """Something that we, no peer, want of a stream."""

    stream: SafeStream


@dataclass
class Inject(Order):
    """Take these bytes as if they had come from the upstream."""

    chunk: Injected


@dataclass
class Notice(Order):
    """Notice that the stream is to be ended, or is doomed."""


@dataclass
class Lose(Order):
    """Mark the upstream as lost."""

    why: str


@dataclass
class ReadOn(events.Event):
    """Read further requests: what was said has been sent."""


@dataclass
class GiveUp(Order):
    """Let the stream fail for a reason of ours."""

    failure: Failure
