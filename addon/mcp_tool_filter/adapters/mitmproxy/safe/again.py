"""What is said again: what was judged anew, and a request that is sent once more.

A head that is not settled (see ``last_look``) is judged again when it is about to leave. What comes
of that is sent in place of what mitmproxy was about to send.
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

from mcp_tool_filter.adapters.mitmproxy.safe import last_look
from mcp_tool_filter.adapters.mitmproxy.safe.endings import nothing
from mcp_tool_filter.adapters.mitmproxy.safe.last_look import Steps
from mcp_tool_filter.adapters.mitmproxy.safe.upgrades import UpgradedStream

type Instead = tuple[Steps, bool]
"""Other steps than those that were begun, and whether they are checked."""


class RepeatingStream(UpgradedStream):
    """A stream that can say something again."""

    is_to_repeat = False  # the upstream is to be asked once more
    _is_said = False  # the answer has been sent in place of mitmproxy's

    def _note_asked(self, _request: Request) -> None:
        """Do what is due when a request leaves for the upstream."""
        self._upstream_asked = True

    def _look_again(
        self, event: RequestHeaders | ResponseHeaders
    ) -> Generator[commands.Command, Any, Instead | None]:
        """Judge again what another script has changed, and send it, or what comes of it."""
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
        """Return what sends the request, in place of what mitmproxy would do."""
        number, request, upstream = self.stream_id, self.flow.request, self.context.server
        content = request.raw_content or b""
        yield SendHttp(RequestHeaders(number, request, end_stream=not content), upstream)
        if content:
            yield SendHttp(RequestData(number, content), upstream)
        yield SendHttp(RequestEndOfMessage(number), upstream)

    def _send_request_again(self) -> Steps:
        """Send a request that was judged again, in place of what mitmproxy was about to send."""
        for command in self._request_again():
            command.event = self.for_the_wire(command.event)
            yield command

    def _send_answer_again(self) -> Steps:
        """Send an answer that was judged again; mitmproxy then ends it."""
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
        """Forget the response, of which the client has seen nothing, and ask once more."""
        self.is_to_repeat = False
        self.flow.response = None
        self.held.clear()
        self.server_state = self.state_wait_for_response_headers
        self._leave_number()
        if (yield from self.make_server_connection()):
            yield from self._request_again()

    def _leave_number(self) -> None:
        """Let HTTP/2 give the next request a number of its own."""
        http = next(one for one in self.context.layers if isinstance(one, layers.HttpLayer))
        connection = http.connections.get(self.context.server)
        speaker = connection.context.layers[-1] if connection else None
        if isinstance(speaker, Http2Client):
            speaker.our_stream_id.pop(self.stream_id, None)
