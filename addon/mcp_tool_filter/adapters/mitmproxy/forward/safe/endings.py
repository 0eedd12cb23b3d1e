"""End a stream in other ways than mitmproxy would.

A client gets our answer instead of mitmproxy's HTML page; a request may be refused by its head; and
we may end a stream, cut it, or mark its upstream as lost.
"""

from __future__ import annotations

import logging
from typing import Any

from mitmproxy.http import Response
from mitmproxy.proxy import events
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layers.http import DropStream, SendHttp
from mitmproxy.proxy.layers.http._base import HttpEvent
from mitmproxy.proxy.layers.http._events import (
    ErrorCode,
    RequestProtocolError,
    ResponseData,
    ResponseEndOfMessage,
    ResponseHeaders,
    ResponseProtocolError,
)
from mitmproxy.proxy.layers.http._hooks import HttpResponseHook

from mcp_tool_filter.adapters.mitmproxy.forward.safe.failures import (
    ErrorAnswer,
    Failure,
    answer_to,
    failure_in,
)
from mcp_tool_filter.adapters.mitmproxy.forward.safe.last_look import LookedAtStream
from mcp_tool_filter.adapters.mitmproxy.forward.safe.orders import Held, Steps

log = logging.getLogger(__name__)


class EndingStream(LookedAtStream):
    """A stream with these endings."""

    failure: Failure | None = None
    _given_failure: Failure | None = None  # our own reason to fail the stream
    last: bytes | None = None  # the bytes to end it with, at the next opportunity
    doomed: str | None = None  # why it will be cut, before ``last`` is sent
    refusal: Response | None = None  # the answer to a request refused by its head
    over = False  # the client has received the last byte
    holds: Held | None = None  # held-back bytes that must be sent before the response ends
    _upstream_asked = False
    _headers_sent = False
    _is_dropped = False  # mitmproxy has dropped the stream

    def __init__(self, context: Context, stream_id: int) -> None:
        super().__init__(context, stream_id)
        self.held: list[Any] = []  # the stream callable, once chosen
        self._kept_end: list[HttpEvent] = []  # the response's end, until all bytes are sent

    # -- state

    @property
    def takes_bytes(self) -> bool:
        """Tell whether bytes injected into the response would reach the client."""
        going_on = not self.over and self.doomed is None and self.last is None
        return going_on and (self.is_streaming or self._will_stream)

    @property
    def is_streaming(self) -> bool:
        """Tell whether the response is under way and not yet ending."""
        return (
            self.server_state == self.state_stream_response_body
            and not self._paused  # only the response hook, at the end, pauses it
            and self.child_layer is None
        )

    @property
    def _will_stream(self) -> bool:
        # The responseheaders hook is waiting; meanwhile events are queued.
        response = self.flow.response
        return (
            self.server_state == self.state_wait_for_response_headers
            and response is not None
            and bool(response.stream)
            and response.status_code != 101
        )

    @property
    def is_made_here(self) -> bool:
        """Tell whether another addon made the response without asking the upstream."""
        return not self._upstream_asked

    @property
    def has_begun(self) -> bool:
        """Tell whether the head of the response has been sent."""
        return self._headers_sent

    @property
    def has_length(self) -> bool:
        """Tell whether the response announces the length of its body."""
        return self.flow.response is not None and "content-length" in self.flow.response.headers

    @property
    def _holds_back(self) -> bool:
        return self.holds is not None and self.holds.is_waiting

    @property
    def _can_end(self) -> bool:
        return not self.over and self.server_state in (
            self.state_stream_response_body,
            self.state_consume_response_body,  # the response has no body
        )

    # -- errors

    def upstream_error(
        self, why: str, code: ErrorCode = ErrorCode.GENERIC_SERVER_ERROR
    ) -> ResponseProtocolError:
        return ResponseProtocolError(self.stream_id, why, code)

    def handle_protocol_error(self, event: RequestProtocolError | ResponseProtocolError) -> Steps:
        ours = self.doomed is not None
        if isinstance(event, ResponseProtocolError) and self.context.client.connected and not ours:
            self.failure = self._given_failure or failure_in(event)
        yield from super().handle_protocol_error(event)

    def _answer(self, error: ResponseProtocolError) -> Steps:
        """Send our answer instead of mitmproxy's."""
        self.over = self._is_dropped = True
        self._free()
        failure = self._given_failure or failure_in(error)
        answer = self._ask(failure) if failure else None
        if answer is None or (self._headers_sent and self.has_length):
            yield SendHttp(error, self.context.client)
            return
        if self._headers_sent:
            yield from self._send_rest(answer.last)
        else:
            yield from self._send_all(answer.response)
        self.flow.live = False
        yield DropStream(self.stream_id)
        if self._must_hang_up(failure):
            yield SendHttp(error, self.context.client)  # headers are sent: this only hangs up
        else:
            yield SendHttp(ResponseEndOfMessage(self.stream_id), self.context.client)

    def _free(self) -> None:
        """Drop the bodies now: garbage collection could take long."""
        self.request_body_buf.clear()
        self.response_body_buf.clear()
        self._kept_end.clear()
        self.held.clear()
        self.holds = None
        if self.flow.response:
            self.flow.response.stream = False

    def _ask(self, failure: Failure) -> ErrorAnswer | None:
        try:
            return answer_to(self.flow, failure)
        except Exception:
            log.exception("no answer to %s", failure)
            return None

    def _send_all(self, response: Response) -> Steps:
        yield SendHttp(ResponseHeaders(self.stream_id, response), self.context.client)
        if self.flow.request.method.upper() != "HEAD":
            yield from self._send_rest(response.raw_content or b"")

    def _send_rest(self, data: bytes) -> Steps:
        if data:
            yield SendHttp(ResponseData(self.stream_id, data), self.context.client)

    def _must_hang_up(self, failure: Failure | None) -> bool:
        """Tell whether the next bytes of an HTTP/1 connection might not be a request.

        We read and discard the rest of a body that is too large: a client that is still sending
        would not see the answer if we closed the connection.
        """
        request = self.flow.request
        if request.is_http2 or self.client_state == self.state_done:
            return False
        return failure is Failure.REQUEST_MALFORMED or "expect" in request.headers

    # -- refusals

    @property
    def _is_refused(self) -> bool:
        return self.refusal is not None and not self.flow.error  # an error gets its own answer

    def _refuse(self) -> Steps:
        """Answer before the body is read, and discard the body.

        mitmproxy would collect the body first. The answer is sent before other addons can change
        it.
        """
        assert self.refusal
        response = self.flow.response = self.refusal
        self.over = self._is_dropped = True
        self.flow.live = False
        yield from self._send_all(response)
        yield DropStream(self.stream_id)
        if self._must_hang_up(None):
            yield SendHttp(self.upstream_error("refused"), self.context.client)
        else:
            yield SendHttp(ResponseEndOfMessage(self.stream_id), self.context.client)
        yield HttpResponseHook(self.flow)  # only for viewers: mitmweb, a recording

    # -- orders

    def _end(self, last: bytes) -> Steps:
        # First, because the upstream may continue to send while the response hook waits.
        yield from self._leave_upstream("the response was ended")
        if self.server_state == self.state_consume_response_body:
            self.response_body_buf.clear()
            self.response_body_buf += last
        yield from self.server_state(ResponseEndOfMessage(self.stream_id))
        self.over = True

    def _lose(self, why: str) -> Steps:
        yield from self._leave_upstream(why)
        yield from self.handle_protocol_error(self.upstream_error(why))

    def _abort(self, why: str) -> Steps:
        yield from self._leave_upstream(why)
        yield from self.handle_protocol_error(self.upstream_error(why, ErrorCode.KILL))
        self.over = True
        if self._is_dropped:
            self._let_go()

    def _leave_upstream(self, why: str) -> Steps:
        if self._upstream_asked and self.server_state not in (self.state_done, self.state_errored):
            error = RequestProtocolError(self.stream_id, why, ErrorCode.CANCEL)
            yield SendHttp(error, self.context.server)

    def _let_go(self) -> None:
        """Remove references to ourselves, so that the flow's bodies need no garbage collection."""
        self.over = True
        self.client_state = self.server_state = nothing
        if self in self.context.layers:
            self.context.layers.remove(self)


def nothing(_event: events.Event) -> Steps:
    """The event handler of a stream that is over."""
    yield from ()
