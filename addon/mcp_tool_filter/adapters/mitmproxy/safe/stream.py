"""One request and its response: mitmproxy's stream, made to fail closed.

What a stream callable raises cuts the stream; an empty chunk is not mistaken for the end; no
connection becomes a raw tunnel; and a client gets an answer of ours where mitmproxy would write an
HTML page. All of it is one state machine, which is why it stands in one long class.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Generator
from typing import Any
from weakref import WeakValueDictionary

from mitmproxy.http import HTTPFlow, Request, Response
from mitmproxy.proxy import commands, events, layers
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layers.http import (
    DropStream,
    SendHttp,
)
from mitmproxy.proxy.layers.http._base import HttpEvent
from mitmproxy.proxy.layers.http._events import (
    ErrorCode,
    RequestData,
    RequestEndOfMessage,
    RequestHeaders,
    RequestProtocolError,
    RequestTrailers,
    ResponseData,
    ResponseEndOfMessage,
    ResponseHeaders,
    ResponseProtocolError,
    ResponseTrailers,
)
from mitmproxy.proxy.layers.http._hooks import (
    HttpRequestHeadersHook,
    HttpResponseHeadersHook,
    HttpResponseHook,
)
from mitmproxy.proxy.layers.http._http2 import Http2Client
from mitmproxy.proxy.layers.websocket import Fragmentizer, WebsocketLayer
from mitmproxy.utils import human

from mcp_tool_filter.adapters.mitmproxy.safe import last_look
from mcp_tool_filter.adapters.mitmproxy.safe.failures import (
    ErrorAnswer,
    Failure,
    answer_to,
    failure_in,
    is_interim,
)
from mcp_tool_filter.adapters.mitmproxy.safe.installed import installed
from mcp_tool_filter.adapters.mitmproxy.safe.last_look import LookedAtStream, look_at_messages
from mcp_tool_filter.adapters.mitmproxy.safe.orders import (
    GiveUp,
    Held,
    Inject,
    Lose,
    Order,
)
from mcp_tool_filter.observers.once import Once
from mcp_tool_filter.observers.report import shown_url

log = logging.getLogger(__name__)
_once = Once()

type Steps = Generator[commands.Command, Any, None]

_LONGEST_MESSAGE = 20 * 1024 * 1024
_MOST_FRAMES = 100_000
_HEADS = (RequestHeaders, ResponseHeaders)
# mitmproxy would cut a message that we change, also in the middle of a letter.
Fragmentizer.FRAGMENT_SIZE = sys.maxsize

# Streams by the id of their flow; one is forgotten when its HttpLayer drops it.
_streams: WeakValueDictionary[str, SafeStream] = WeakValueDictionary()
# Each hook looks there several times, and the dictionary's own ``get`` is slow.
_kept: dict[str, Callable[[], SafeStream | None]] = _streams.data  # type: ignore[attr-defined]  # typeshed leaves it out


def stream_of(flow: HTTPFlow) -> SafeStream | None:
    """The stream that serves this flow, while it does."""
    kept = _kept.get(flow.id)
    stream = kept() if kept else None
    return stream if stream and stream.flow is flow else None


def open_streams() -> list[SafeStream]:
    """The streams that are not over."""
    return [stream for stream in list(_streams.values()) if not stream.over and stream.flow.live]


class SafeStream(LookedAtStream):
    """One request and the response to it."""

    def __init__(self, context: Context, stream_id: int) -> None:
        super().__init__(context, stream_id)
        self.asked_hosts: tuple[str, ...] = ()
        self.failure: Failure | None = None
        self._given_failure: Failure | None = None  # it fails for a reason of ours
        self.last: bytes | None = None  # what to end it with, at the next opportunity
        self.doomed: str | None = None  # why it will be cut, sooner than that
        self.refusal: Response | None = None  # the answer to a request refused by its head
        self.is_to_repeat = False  # the upstream is to be asked once more
        self.over = False  # the client has had its last byte
        self.held: list[Any] = []  # what the response goes through, once that has been chosen
        self.holds: Held | None = None  # what must leave before the response ends
        self._kept_end: list[HttpEvent] = []  # how the upstream has ended it meanwhile
        self._run_hook = installed.hook_runner(context.client)
        self._upstream_asked = False
        self._headers_sent = False
        self._is_dropped = False  # nobody will ask us anything any more

    @property
    def client_host(self) -> str | None:
        """The host the client asked for; None when it named none, or more than one."""
        hosts = self.asked_hosts
        is_one = len(hosts) == 1 or len({host.lower() for host in hosts}) == 1
        return hosts[0] if is_one else None

    @property
    def takes_bytes(self) -> bool:
        """Would bytes put into the response reach the client?"""
        going_on = not self.over and self.doomed is None and self.last is None
        return going_on and (self.is_streaming or self._will_stream)

    @property
    def is_streaming(self) -> bool:
        """Is the response under way, and not yet ending?"""
        return (
            self.server_state == self.state_stream_response_body
            and not self._paused  # nothing but the response hook, at the end, makes it wait
            and self.child_layer is None
        )

    @property
    def _will_stream(self) -> bool:
        # The responseheaders hook is waiting for something; what comes meanwhile is queued.
        response = self.flow.response
        return (
            self.server_state == self.state_wait_for_response_headers
            and response is not None
            and bool(response.stream)
            and response.status_code != 101
        )

    @property
    def is_made_here(self) -> bool:
        """Is the response another addon's, and the upstream has not been asked?"""
        return not self._upstream_asked

    @property
    def has_begun(self) -> bool:
        """Has the client seen the head of the response?"""
        return self._headers_sent

    @property
    def has_length(self) -> bool:
        """Has the client been told how many bytes the body has?"""
        return self.flow.response is not None and "content-length" in self.flow.response.headers

    def upstream_error(
        self, why: str, code: ErrorCode = ErrorCode.GENERIC_SERVER_ERROR
    ) -> ResponseProtocolError:
        return ResponseProtocolError(self.stream_id, why, code)

    @property
    def held_bytes(self) -> int:
        """Bytes of both messages that are held in memory."""
        size = len(self.request_body_buf) + len(self.response_body_buf)
        flow: HTTPFlow | None = getattr(self, "flow", None)  # there is none before the head
        if flow and not self.over:
            size += len(flow.request.data.content or b"")
            size += len(flow.response.data.content or b"") if flow.response else 0
        if self.holds:
            size += self.holds.held_bytes
        if isinstance(sockets := self.child_layer, WebsocketLayer) and hasattr(
            sockets, "client_ws"
        ):
            size += sum(map(len, [*sockets.client_ws.frame_buf, *sockets.server_ws.frame_buf]))
        return size

    # -- what happens, event by event

    def _handle_event(self, event: events.Event) -> Steps:
        if self.over:
            return
        if self.doomed is None and (self.last is None or not self._can_end):
            yield from self._failing_closed(self._steps, event)
        if self.last is not None and self.doomed is None and self._can_end:
            yield from self._failing_closed(self._end, self.last)
        if self.doomed is not None and not self.over:
            yield from self._abort(self.doomed)
        if self._is_dropped:
            self._let_go()

    def _let_go(self) -> None:
        """Refer to ourselves no more: the flow's bodies would wait for the garbage collector."""
        self.over = True
        self.client_state = self.server_state = nothing
        if self in self.context.layers:
            self.context.layers.remove(self)

    @property
    def _holds_back(self) -> bool:
        return self.holds is not None and self.holds.is_waiting

    @property
    def _can_end(self) -> bool:
        return not self.over and self.server_state in (
            self.state_stream_response_body,
            self.state_consume_response_body,  # of a response that has no body
        )

    def _steps(self, event: events.Event) -> Steps:
        steps: Steps
        match event:
            case Order():
                steps = self._follow(event)
            case ResponseHeaders(response=response) if is_interim(response):
                # mitmproxy takes it for the answer, and the client waits for the real one for ever.
                steps = self._lose(f"HTTP/1 protocol error: a {response.status_code} response")
            case RequestHeaders(request=request):
                self.asked_hosts = hosts_in(request)
                steps = self.client_state(event)
            case ResponseEndOfMessage() | ResponseProtocolError() if self._holds_back:
                self._kept_end.append(event)
                steps = nothing(event)
            case RequestData() | RequestEndOfMessage():  # what comes most often, by a shorter way
                steps = self.client_state(event)
            case ResponseHeaders() | ResponseData() | ResponseEndOfMessage():
                self._keep_callable()
                steps = self.server_state(event)
            case _:
                steps = super()._handle_event(event)
        return steps

    def _keep_callable(self) -> None:
        """Go on with the stream callable that was chosen when the head was judged."""
        response = self.flow.response
        if self.held and response and self.server_state == self.state_stream_response_body:
            response.stream = self.held[-1]

    def _follow(self, order: Order) -> Steps:
        match order:
            case Inject(chunk=chunk):
                if self.server_state == self.state_stream_response_body:
                    self._keep_callable()
                    yield from self.state_stream_response_body(ResponseData(self.stream_id, chunk))
                if self._kept_end and not self._holds_back:
                    kept, self._kept_end = self._kept_end, []
                    for event in kept:
                        yield from self._steps(event)
            case Lose(why=why):
                if self.server_state not in (self.state_done, self.state_errored):
                    yield from self._lose(why)
            case GiveUp(failure=failure):
                if self.server_state not in (self.state_done, self.state_errored):
                    self._given_failure = failure
                    yield from self._lose(failure)

    def _failing_closed[Given](self, begin: Callable[[Given], Steps], given: Given) -> Steps:
        """Pass commands on, but for those that would do harm; end in a cut what raises."""
        reply = None
        try:
            steps = begin(given)
            while True:
                command = steps.send(reply)
                if self.doomed is not None:
                    steps.close()
                    return
                reply = None
                if isinstance(command, SendHttp):
                    if isinstance(command.event, _HEADS) and not self._is_settled(command.event):
                        if (yield from self._look_again(command.event)):
                            steps.close()
                            return
                    elif self._may_send(command.event):
                        if self.added_header is not None or self.masks is not None:
                            command.event = self.for_the_wire(command.event)
                        yield command
                    elif isinstance(command.event, ResponseProtocolError):
                        yield from self._answer(command.event)
                elif isinstance(command, commands.StartHook):
                    yield from self._before(command)
                    # A layer within us has stopped to wait for its own.
                    if command.blocking is not True or not self._run_hook(command):
                        yield command
                    self._hold_on(command)
                    if isinstance(command, HttpRequestHeadersHook) and self._is_refused:
                        steps.close()
                        yield from self._refuse()
                        return
                    if self.is_to_repeat and isinstance(command, HttpResponseHook):
                        steps.close()
                        yield from self._repeat()
                        return
                elif not _says_that_it_streams(command):
                    self._is_dropped |= isinstance(command, DropStream)
                    reply = yield command
        except StopIteration:
            return
        except Exception:
            log.exception("cannot go on with %s", shown_url(self.flow.request.pretty_url))
            self.doomed = "internal error"

    @property
    def _is_refused(self) -> bool:
        return self.refusal is not None and not self.flow.error  # an error has its own answer

    def _refuse(self) -> Steps:
        """Answer before the body is read; what comes of the body is thrown away.

        mitmproxy would collect it first. The answer is sent before other addons can change it.
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
        hook = HttpResponseHook(self.flow)  # for those who only look: mitmweb, a recording
        if not self._run_hook(hook):
            yield hook

    def _repeat(self) -> Steps:
        """Forget the response, of which the client has seen nothing, and ask once more."""
        self.is_to_repeat = False
        self.flow.response = None
        self.held.clear()
        self.server_state = self.state_wait_for_response_headers
        self._leave_number()
        if (yield from self.make_server_connection()):
            yield from self._send_request_again()

    def _leave_number(self) -> None:
        """Let HTTP/2 give the next request a number of its own."""
        http = next(one for one in self.context.layers if isinstance(one, layers.HttpLayer))
        connection = http.connections.get(self.context.server)
        speaker = connection.context.layers[-1] if connection else None
        if isinstance(speaker, Http2Client):
            speaker.our_stream_id.pop(self.stream_id, None)

    def _before(self, hook: commands.StartHook) -> Steps:
        if isinstance(hook, HttpRequestHeadersHook):
            _streams[self.flow.id] = self
        if isinstance(hook, HttpResponseHook) and self._headers_sent:
            yield from self._send_rest(self.last or b"")

    def _look_again(
        self, event: RequestHeaders | ResponseHeaders
    ) -> Generator[commands.Command, Any, bool]:
        """Judge again what another script has changed; True if nothing else is to be sent."""
        look = last_look._look
        assert look
        if isinstance(event, RequestHeaders):
            look.judge_request_again(self.flow)
            if self.flow.response:
                self.refusal = self.flow.response
                yield from self._refuse()
            elif self._is_settled(RequestHeaders(self.stream_id, self.flow.request, False)):
                self._upstream_asked = True
                yield from self._send_request_again()
            else:
                self.doomed = "a request that was not judged"
            return True
        if self.flow.websocket:
            self.doomed = "a changed answer to an upgrade"
            return True
        if self.is_about_to_stream:
            if look.judge_head_again(self.flow):
                self._headers_sent = True
                yield SendHttp(self.for_the_wire(event), self.context.client)
                return False
            yield from self._failing_closed(self._lose, "HTTP/1 protocol error: a changed head")
            return True
        look.judge_answer_again(self.flow)
        if self.is_answer_settled:
            self._headers_sent = True
            yield from self._send_answer_again()
            return False
        self.doomed = "an answer that was not judged"
        return True

    def _may_send(self, event: HttpEvent) -> bool:
        if self._is_said and isinstance(event, ResponseData):
            return False
        match event:
            case RequestHeaders():
                self._upstream_asked = True
            case ResponseHeaders(response=response):
                self._headers_sent = self._headers_sent or response.status_code >= 200
            case ResponseTrailers() | RequestTrailers():
                return False  # nobody has judged them, and HTTP/1 cannot say them
            case ResponseData(data=data):
                installed.meter(len(data))
                return data != b""  # HTTP/1 would write the chunk that says "this was the last"
            case ResponseProtocolError():
                return False
        return True

    def _hold_on(self, hook: commands.Command) -> None:
        """Leave it to no other addon to let bodies pass that nobody has looked at."""
        if isinstance(hook, HttpRequestHeadersHook) and self.flow.request.stream:
            _once.log(log, logging.WARNING, "A script asks to stream requests: not possible here")
            self.flow.request.stream = False
        if isinstance(hook, HttpResponseHeadersHook) and self.held and self.flow.response:
            self.flow.response.stream = self.held[-1]

    def flow_done(self) -> Steps:
        """Never a raw tunnel: what is no WebSocket cannot be judged."""
        assert self.flow.response
        if self.flow.response.status_code == 101 and not self.flow.websocket:
            self.doomed = "refusing to open a raw tunnel"
            return
        yield from super().flow_done()

    def passthrough(self, event: events.Event) -> Steps:
        """Carry what a WebSocket says; mitmproxy would hold a message of any length."""
        try:
            yield from super().passthrough(event)
        except last_look.NotJudged as error:
            _once.log(log, logging.ERROR, "Closed a WebSocket: %s", error)
            yield from self._close_sockets(str(error))
            return
        sockets = self.child_layer
        if not isinstance(sockets, WebsocketLayer) or not hasattr(sockets, "client_ws"):
            return
        look_at_messages(self, sockets)
        most = human.parse_size(self.context.options.body_size_limit) or _LONGEST_MESSAGE
        for end in (sockets.client_ws, sockets.server_ws):
            if len(end.frame_buf) > _MOST_FRAMES or sum(map(len, end.frame_buf)) > most:
                end.frame_buf = [b""]
                yield from self._close_sockets("a message that is too long")

    def _close_sockets(self, why: str) -> Steps:
        code = ErrorCode.PASSTHROUGH_CLOSE
        yield SendHttp(RequestProtocolError(self.stream_id, why, code), self.context.server)
        yield SendHttp(self.upstream_error(why, code), self.context.client)

    # -- errors

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
            yield SendHttp(error, self.context.client)  # it has headers now, so it only hangs up
        else:
            yield SendHttp(ResponseEndOfMessage(self.stream_id), self.context.client)

    def _free(self) -> None:
        """Hold nothing more: the garbage collector would take its time."""
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
        """Could what follows on an HTTP/1 connection be no request?

        The rest of a body that is too large is read, and thrown away: a client that is still
        sending would not see an answer on a connection that is closed.
        """
        request = self.flow.request
        if request.is_http2 or self.client_state == self.state_done:
            return False
        return failure is Failure.REQUEST_MALFORMED or "expect" in request.headers

    # -- orders

    def _end(self, last: bytes) -> Steps:
        # First, for while the response hook waits the upstream may go on talking.
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

    def _leave_upstream(self, why: str) -> Steps:
        if self._upstream_asked and self.server_state not in (self.state_done, self.state_errored):
            error = RequestProtocolError(self.stream_id, why, ErrorCode.CANCEL)
            yield SendHttp(error, self.context.server)


def _says_that_it_streams(command: commands.Command) -> bool:
    """Tell whether it is mitmproxy's line in the log for each response that is streamed."""
    return isinstance(command, commands.Log) and command.message.startswith("Streaming response")


def nothing(_event: events.Event) -> Steps:
    """What a stream does that is over."""
    yield from ()


def hosts_in(request: Request) -> tuple[str, ...]:
    """Every host that a client names: in the target or ``:authority``, then in Host headers."""
    target = [request.authority] if request.authority else []
    return (*target, *request.headers.get_all("host"))
