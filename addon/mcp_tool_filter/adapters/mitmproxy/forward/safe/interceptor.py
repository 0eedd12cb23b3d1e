"""The interface that decides for the streams of a forward proxy. The tool filter installs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from mitmproxy.http import HTTPFlow, Request
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layers.http import HTTPMode

from mcp_tool_filter.http.recognise import BodyReader, Treatment

type Chunks = Callable[[bytes], list[bytes]]
"""What ``flow.response.stream`` expects."""


class Interceptor(Protocol):
    """Decides about each request of a forward proxy."""

    def look_at_head(
        self, context: Context, mode: HTTPMode, request: Request, *, has_body: bool
    ) -> Treatment | BodyReader:
        """Return what happens to a request, or a reader that finds out from the body."""
        ...

    def prepare_other(self, flow: HTTPFlow) -> None:
        """Make the few necessary changes to a request that is not MCP."""
        ...

    def look_at_answer(self, flow: HTTPFlow) -> Chunks | None:
        """Return a stream callable that looks for MCP in the answer to other traffic, or None."""
        ...

    def look_at_message(self, flow: HTTPFlow) -> None:
        """Judge the newest message of a WebSocket if it carries MCP."""
        ...

    def is_direct(self, host: str) -> bool:
        """Tell whether the proxy behind us is left out for a host."""
        ...

    def note_answer(self, flow: HTTPFlow) -> None:
        """Note the head of an answer to MCP, to learn where MCP endpoints are."""
        ...


_interceptor: Interceptor | None = None


def install_interceptor(interceptor: Interceptor | None) -> None:
    """Use this interceptor for all requests of forward proxies."""
    global _interceptor
    _interceptor = interceptor


def interceptor() -> Interceptor | None:
    """Return the installed interceptor."""
    return _interceptor


def is_direct(host: str) -> bool:
    """Tell whether the proxy behind us is left out for a host."""
    return _interceptor is not None and _interceptor.is_direct(host)
