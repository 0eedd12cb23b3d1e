"""Send again: messages that were judged again, and requests that are repeated.

A head that is not settled (see ``last_look``) is judged again when it is about to be sent. The
result is sent instead of what mitmproxy was about to send.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

from mitmproxy.http import Request
from mitmproxy.proxy import commands, layers
from mitmproxy.proxy.layers.http import SendHttp
from mitmproxy.proxy.layers.http._events import (
    RequestData,
    RequestEndOfMessage,
    RequestHeaders,
    ResponseData,
    ResponseHeaders,
)
from mitmproxy.proxy.layers.http._http2 import Http2Client

from mcp_tool_filter.adapters.mitmproxy.forward.safe import last_look
from mcp_tool_filter.adapters.mitmproxy.forward.safe.endings import nothing
from mcp_tool_filter.adapters.mitmproxy.forward.safe.orders import Steps
from mcp_tool_filter.adapters.mitmproxy.forward.safe.upgrades import UpgradedStream

type Instead = tuple[Steps, bool]
"""Steps to take instead of those begun, and whether to check them."""


class RepeatingStream(UpgradedStream):
    """A stream that can send something again."""

    is_to_repeat = False  # the request must be sent once more
    _is_said = False  # our answer has been sent instead of mitmproxy's

    def _note_asked(self, _request: Request) -> None:
        """Called when a request is sent to the upstream."""
        self._upstream_asked = True

    def _look_again(
        self, event: RequestHeaders | ResponseHeaders
    ) -> Generator[commands.Command, Any, Instead | None]:
        """Judge again what another script has changed, and send the result."""
        look = last_look._look
        assert look
        if isinstance(event, RequestHeaders):
            look.judge_request_again(self.flow)
            if self.flow.response:
                self.refusal = self.flow.response
                return self._refuse(), False
            if self.is_request_settled:
                self._note_asked(self.flow.request)
                return self._send_request_again(), False
            self.doomed = "a request that was not judged"
        elif self.flow.websocket:
            self.doomed = "a changed answer to an upgrade"
        elif self.is_about_to_stream:
            if not look.judge_head_again(self.flow):
                return self._lose("HTTP/1 protocol error: a changed head"), True
            self._headers_sent = True
            yield SendHttp(self.for_the_wire(event), self.context.client)
        else:
            look.judge_answer_again(self.flow)
            if self.is_answer_settled:
                self._headers_sent = True
                yield from self._send_answer_again()
            else:
                self.doomed = "an answer that was not judged"
        return (nothing(event), True) if self.doomed is not None else None

    def _request_again(self) -> Iterator[SendHttp]:
        """Return the commands that send the request, instead of mitmproxy's."""
        number, request, upstream = self.stream_id, self.flow.request, self.context.server
        content = request.raw_content or b""
        yield SendHttp(RequestHeaders(number, request, end_stream=not content), upstream)
        if content:
            yield SendHttp(RequestData(number, content), upstream)
        yield SendHttp(RequestEndOfMessage(number), upstream)

    def _send_request_again(self) -> Steps:
        """Send a request that was judged again, instead of what mitmproxy was about to send."""
        for command in self._request_again():
            command.event = self.for_the_wire(command.event)
            yield command

    def _send_answer_again(self) -> Steps:
        """Send an answer that was judged again; mitmproxy then ends the stream."""
        response = self.flow.response
        assert response
        self._is_said = True
        content = response.raw_content or b""
        head = ResponseHeaders(self.stream_id, response, end_stream=not content)
        yield SendHttp(self.for_the_wire(head), self.context.client)
        if content:
            data = ResponseData(self.stream_id, content)
            yield SendHttp(self.for_the_wire(data), self.context.client)

    def _repeat(self) -> Steps:
        """Drop the response, of which the client has seen nothing, and send the request once
        more."""
        self.is_to_repeat = False
        self.flow.response = None
        self.held.clear()
        self.server_state = self.state_wait_for_response_headers
        self._leave_number()
        if (yield from self.make_server_connection()):
            yield from self._request_again()

    def _leave_number(self) -> None:
        """Make HTTP/2 use a new stream number for the next request."""
        http = next(one for one in self.context.layers if isinstance(one, layers.HttpLayer))
        connection = http.connections.get(self.context.server)
        speaker = connection.context.layers[-1] if connection else None
        if isinstance(speaker, Http2Client):
            speaker.our_stream_id.pop(self.stream_id, None)
