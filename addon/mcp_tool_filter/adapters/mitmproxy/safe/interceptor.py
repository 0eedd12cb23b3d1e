"""What decides for the streams of a forward proxy. The tool filter installs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from mitmproxy.http import HTTPFlow, Request
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layers.http import HTTPMode

from mcp_tool_filter.http.interception.body import BodyReader, Treatment

type Chunks = Callable[[bytes], list[bytes]]
"""What ``flow.response.stream`` expects."""


class Interceptor(Protocol):
    """What is asked about each request of a forward proxy."""

    def look_at_head(
        self, context: Context, mode: HTTPMode, request: Request, *, has_body: bool
    ) -> Treatment | BodyReader:
        """Tell what a request is, or return what finds it out from the body."""
        ...

    def prepare_other(self, flow: HTTPFlow) -> None:
        """Change what must be changed of a request that is not MCP, which is next to nothing."""
        ...

    def look_at_answer(self, flow: HTTPFlow) -> Chunks | None:
        """Return what looks for MCP in the answer to other traffic; None if it just passes."""
        ...

    def look_at_message(self, flow: HTTPFlow) -> None:
        """Judge the newest message of a WebSocket if MCP is spoken there."""
        ...

    def is_direct(self, host: str) -> bool:
        """Tell whether the proxy behind us is left out for a host."""
        ...

    def note_answer(self, flow: HTTPFlow) -> None:
        """Remember where MCP is spoken: here is the head of an answer to MCP."""
        ...


_interceptor: Interceptor | None = None


def install_interceptor(interceptor: Interceptor | None) -> None:
    """Ask this one about each request of a forward proxy."""
    global _interceptor
    _interceptor = interceptor


def interceptor() -> Interceptor | None:
    """Return the one that is installed."""
    return _interceptor


def is_direct(host: str) -> bool:
    """Tell whether the proxy behind us is left out for a host."""
    return _interceptor is not None and _interceptor.is_direct(host)
