"""Check that what is sent is exactly what was judged.

Other scripts run before and after ours. They may change or replace what we judged, or keep a hook
from us. So after judging a message we *settle* it: we remember its parts. When the message is sent,
its parts must still be the same objects. Otherwise we judge the message again.
"""

from __future__ import annotations

import logging
from operator import is_
from typing import TYPE_CHECKING, Protocol

from mitmproxy.http import HTTPFlow, Request, Response
from mitmproxy.proxy import commands
from mitmproxy.proxy.layers.http import HttpStream
from mitmproxy.proxy.layers.http._base import HttpEvent
from mitmproxy.proxy.layers.http._events import (
    RequestData,
    RequestHeaders,
    ResponseData,
    ResponseHeaders,
)
from mitmproxy.proxy.layers.websocket import WebsocketConnection, WebsocketLayer
from mitmproxy.websocket import WebSocketMessage
from wsproto.events import Event, Message

if TYPE_CHECKING:
    from mcp_tool_filter.adapters.mitmproxy.forward.safe.masks import FlowMasks

log = logging.getLogger(__name__)

type Parts = tuple[object, ...]


class NotJudged(Exception):
    """A message of a WebSocket must not be sent."""


class LastLook(Protocol):
    """Judges again. Its methods never raise: they answer or refuse, and settle the result."""

    def judge_request_again(self, flow: HTTPFlow) -> None: ...

    def judge_head_again(self, flow: HTTPFlow) -> bool:
        """Judge the head of a stream; return False if it must not be sent."""
        ...

    def judge_answer_again(self, flow: HTTPFlow) -> None: ...

    def may_say(self, flow: HTTPFlow, message: WebSocketMessage) -> bool: ...


_look: LastLook | None = None


def install_last_look(look: LastLook | None) -> None:
    """Use ``look`` whenever something that is not settled is about to be sent."""
    global _look
    _look = look


def parts_of_request(request: Request) -> Parts:
    data = request.data
    return (data.method, data.path, data.headers.fields, data.content)


def parts_of_head(response: Response) -> Parts:
    data = response.data
    return (data.status_code, data.reason, data.headers.fields)


def parts_of_answer(response: Response) -> Parts:
    data = response.data
    return (data.status_code, data.reason, data.headers.fields, data.content)


class LookedAtStream(HttpStream):
    """A stream that sends nothing that is not settled."""

    _settled_request: Parts | None = None
    _settled_head: Parts | None = None
    _settled_answer: Parts | None = None
    settled_message: tuple[WebSocketMessage, bytes] | None = None
    added_header: tuple[str, str] | None = None  # sent to the upstream, never shown in the flow
    masks: FlowMasks | None = None  # the masks that replace secrets in the flow

    def settle_request(self) -> None:
        self._settled_request = parts_of_request(self.flow.request)

    def settle_head(self) -> None:
        if self.flow.response:
            self._settled_head = parts_of_head(self.flow.response)

    def settle_answer(self) -> None:
        if self.flow.response:
            self._settled_answer = parts_of_answer(self.flow.response)

    @property
    def is_answer_settled(self) -> bool:
        settled, response = self._settled_answer, self.flow.response
        if settled is None or response is None:
            return False
        return all(map(is_, settled, parts_of_answer(response)))

    @property
    def is_head_settled(self) -> bool:
        settled, response = self._settled_head, self.flow.response
        if settled is None or response is None:
            return False
        return all(map(is_, settled, parts_of_head(response)))

    @property
    def is_request_settled(self) -> bool:
        settled = self._settled_request
        return settled is not None and all(map(is_, settled, parts_of_request(self.flow.request)))

    @property
    def is_about_to_stream(self) -> bool:
        waits = self.server_state == self.state_wait_for_response_headers
        return waits and self.flow.response is not None and bool(self.flow.response.stream)

    def _is_settled(self, event: RequestHeaders | ResponseHeaders) -> bool:
        """Tell whether a head and its body may be sent unchanged."""
        if _look is None:
            return True
        if isinstance(event, RequestHeaders):
            return event.request is self.flow.request and self.is_request_settled
        if event.response is not self.flow.response:
            return event.response.status_code == 100  # "continue", from mitmproxy itself
        if self.is_about_to_stream and not event.end_stream:
            return self.is_head_settled
        return self.is_answer_settled

    def for_the_wire[Sent: HttpEvent](self, event: Sent) -> Sent | HttpEvent:
        """Return the event to send, with the secrets that the flow does not show."""
        masks, number = self.masks, self.stream_id
        match event:
            case RequestHeaders(request=request):
                if masks is None and self.added_header is None:
                    return event
                request = masks.request_with_secrets(request) if masks else request.copy()
                if self.added_header is not None:
                    name, value = self.added_header
                    request.headers[name] = value
                return RequestHeaders(number, request, event.end_stream)
            case RequestData(data=data) if masks is not None and masks.is_login:
                return RequestData(number, masks.show(data, masks.BODY))
            case ResponseHeaders(response=response) if masks is not None:
                return ResponseHeaders(
                    number, masks.answer_with_secrets(response), event.end_stream
                )
            case ResponseData(data=data) if masks is not None and masks.in_answer:
                return ResponseData(number, masks.show(data, masks.ANSWER))
        return event


def look_at_messages(stream: LookedAtStream, sockets: WebsocketLayer) -> None:
    """Send no message of a WebSocket that is not settled."""
    for end in (sockets.client_ws, sockets.server_ws):
        if type(end) is WebsocketConnection:
            end.__class__ = _LookedAtConnection
            assert isinstance(end, _LookedAtConnection)
            end.stream = stream


class _LookedAtConnection(WebsocketConnection):
    stream: LookedAtStream

    def send2(self, event: Event) -> commands.SendData:
        if isinstance(event, Message) and _look is not None:
            self._check()
        return super().send2(event)

    def _check(self) -> None:
        flow = self.stream.flow
        assert flow.websocket
        message = flow.websocket.messages[-1]
        settled = self.stream.settled_message
        if settled and settled[0] is message and settled[1] is message.content:
            return
        assert _look
        if not _look.may_say(flow, message):
            raise NotJudged("a message that another script has changed may not leave")
        self.stream.settled_message = message, message.content
