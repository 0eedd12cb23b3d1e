"""One request and its response: mitmproxy's stream, made to fail closed.

An exception in a stream callable cuts the stream; an empty chunk is not mistaken for the end; and
nothing is sent that was not judged. ``endings`` ends a stream when something goes wrong,
``upgrades`` handles what follows an answer of 101, ``again`` handles messages that were changed
after we judged them.

mitmproxy's streams yield their next steps from a generator. ``_run`` checks each step before it is
taken. It also replaces ``Layer.handle_event``, which would look at each step again: it pauses the
stream while a step waits for something.
"""

from __future__ import annotations

import logging
from collections.abc import Generator
from typing import Any, NamedTuple
from weakref import ref

from mitmproxy.http import HTTPFlow, Request
from mitmproxy.proxy import commands, events
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layers.http import DropStream, SendHttp
from mitmproxy.proxy.layers.http._events import (
    RequestData,
    RequestEndOfMessage,
    RequestHeaders,
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

from mcp_tool_filter.adapters.mitmproxy.forward.safe.again import Instead, RepeatingStream
from mcp_tool_filter.adapters.mitmproxy.forward.safe.endings import nothing
from mcp_tool_filter.adapters.mitmproxy.forward.safe.failures import is_interim
from mcp_tool_filter.adapters.mitmproxy.forward.safe.installed import installed
from mcp_tool_filter.adapters.mitmproxy.forward.safe.orders import (
    GiveUp,
    Inject,
    Lose,
    Order,
    Steps,
)
from mcp_tool_filter.observers.redaction.shown import shown_url
from mcp_tool_filter.observers.verdict_log import Once

log = logging.getLogger(__name__)
_once = Once()

_OF_REQUESTS = (RequestData, RequestEndOfMessage)
_OF_RESPONSES = (ResponseData, ResponseEndOfMessage, ResponseHeaders)
_LOOKED_AT = (
    RequestHeaders,
    ResponseHeaders,
    ResponseProtocolError,
    RequestTrailers,
    ResponseTrailers,
)
_NO_STREAMING = "A script wants to stream requests: this is not possible here"

# All streams, as weak references; flows refer to their stream weakly too. A stream is gone when its
# layer drops it.
_streams: set[ref[SafeStream]] = set()
_flows: Any = HTTPFlow
_flows.kept_stream = type(None)  # returns None, like a dead weak reference


def stream_of(flow: HTTPFlow) -> SafeStream | None:
    """Return the stream of this flow, while there is one."""
    return flow.kept_stream()  # type: ignore[attr-defined, no-any-return]  # ours, see above


def open_streams() -> list[SafeStream]:
    """Return the streams that are not over."""
    kept = [reference() for reference in list(_streams)]
    return [stream for stream in kept if stream and not stream.over and stream.flow.live]


class Paused(NamedTuple):
    """Like mitmproxy's ``Paused``, for steps that ``SafeStream._run`` continues."""

    command: commands.Command
    steps: Steps
    is_checked: bool


class SafeStream(RepeatingStream):
    """One request and its response."""

    def __init__(self, context: Context, stream_id: int) -> None:
        super().__init__(context, stream_id)
        self.asked_hosts: tuple[str, ...] = ()
        self._is_cut = False  # the stream is being cut, and nothing is checked any more
        self._run_hook = installed.hook_runner(context.client)

    @property
    def client_host(self) -> str | None:
        """The host that the client named; None if it named none, or more than one."""
        hosts = self.asked_hosts
        is_one = len(hosts) == 1 or len({host.lower() for host in hosts}) == 1
        return hosts[0] if is_one else None

    @property
    def held_bytes(self) -> int:
        """Bytes of both messages in memory."""
        size = len(self.request_body_buf) + len(self.response_body_buf) + self.socket_bytes
        flow: HTTPFlow | None = getattr(self, "flow", None)  # no flow before the head
        if flow and not self.over:
            size += len(flow.request.data.content or b"")
            size += len(flow.response.data.content or b"") if flow.response else 0
        if self.holds:
            size += self.holds.held_bytes
        return size

    # -- events

    def handle_event(self, event: events.Event) -> Steps:
        paused: Any = self._paused
        if paused is None:
            if self.child_layer is None:
                return self._handle_event(event)
        elif type(paused) is Paused:
            if getattr(event, "command", None) is paused.command:
                return self._go_on(event, paused)
            self._paused_event_queue.append(event)
            return nothing(event)
        return super().handle_event(event)

    def _handle_event(self, event: events.Event) -> Steps:
        return nothing(event) if self.over else self._run(event)

    def _go_on(self, event: Any, paused: Paused) -> Steps:
        """Continue the steps that waited for this event; then handle the events queued
        meanwhile."""
        self._paused = None
        instead = self._after(paused.command) if paused.is_checked else None
        if instead is None:
            yield from self._run(event, (paused.steps, paused.is_checked), event.reply)
        else:
            paused.steps.close()
            yield from self._run(event, instead)
        while self._paused_event_queue and not self._paused:
            yield from self.handle_event(self._paused_event_queue.popleft())

    def _steps(self, event: events.Event) -> Steps:
        if isinstance(event, _OF_REQUESTS):
            steps: Steps = self.client_state(event)
        elif isinstance(event, _OF_RESPONSES):
            steps = self._steps_of_response(event)
        elif isinstance(event, RequestHeaders):
            self.asked_hosts = hosts_in(event.request)
            steps = self.client_state(event)
        elif isinstance(event, Order):
            steps = self._follow(event)
        elif isinstance(event, ResponseProtocolError) and self._holds_back:
            self._kept_end.append(event)
            steps = nothing(event)
        else:
            steps = super()._handle_event(event)
        return steps

    def _steps_of_response(
        self, event: ResponseHeaders | ResponseData | ResponseEndOfMessage
    ) -> Steps:
        if isinstance(event, ResponseHeaders):
            if event.response.data.status_code < 200 and is_interim(event.response):
                # mitmproxy would take it for the answer, and the client would wait forever for the
                # real one.
                status = event.response.status_code
                return self._lose(f"HTTP/1 protocol error: a {status} response")
        elif self._holds_back and isinstance(event, ResponseEndOfMessage):
            self._kept_end.append(event)
            return nothing(event)
        if self.held:
            self._keep_callable()
        steps: Steps = self.server_state(event)
        return steps

    def _keep_callable(self) -> None:
        """Restore the stream callable that was chosen when the head was judged."""
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

    # -- steps

    def _run(self, event: events.Event, begun: Instead | None = None, reply: Any = None) -> Steps:
        """Take the steps that follow from an event, or that were begun; cut the stream if one
        raises."""
        try:
            is_checked = True
            if begun is not None:
                steps, is_checked = begun
            elif self.doomed is not None or (self.last is not None and self._can_end):
                steps = nothing(event)  # only end the stream
            else:
                steps = self._steps(event)
            while True:
                try:
                    command = steps.send(reply)
                except StopIteration:
                    if self.last is None or self.doomed is not None or not self._can_end:
                        break
                    steps, is_checked, reply = self._end(self.last), True, None
                    continue
                reply = instead = None
                if not is_checked:
                    is_due = not (isinstance(command, commands.StartHook) and self._is_run(command))
                elif self.doomed is not None:
                    steps.close()
                    break
                elif type(command) is SendHttp:
                    if not isinstance(command.event, _LOOKED_AT):
                        if self._prepare_to_send(command):
                            yield command
                        continue
                    is_due = False
                    instead = yield from self._send_head(command)
                elif isinstance(command, commands.StartHook):
                    if type(command) is HttpResponseHook and self._headers_sent:
                        yield from self._send_rest(self.last or b"")
                    self._before(command)
                    is_due = not self._is_run(command)
                    if not is_due or command.blocking is not True:
                        instead = self._after(command)
                else:
                    is_due = not _says_that_it_streams(command)
                    self._is_dropped |= type(command) is DropStream
                if is_due:
                    if command.blocking is True:
                        command.blocking = self
                        paused: Any = Paused(command, steps, is_checked)
                        self._paused = paused
                        yield command
                        return
                    yield command
                if instead is not None:
                    steps.close()
                    steps, is_checked = instead
        except Exception:
            if self._is_cut:
                raise
            log.exception(
                "internal error: cannot continue with %s", shown_url(self.flow.request.pretty_url)
            )
            self.doomed = "internal error"
        if self.doomed is not None and not self.over:
            self._is_cut = True
            yield from self._run(event, (self._abort(self.doomed), False))
        elif self._is_dropped:
            self._let_go()

    def _is_run(self, hook: commands.StartHook) -> bool:
        """Run a hook now, if possible. (An inner layer waits for its own hooks.)"""
        return hook.blocking is True and self._run_hook(hook)

    def _before(self, hook: commands.StartHook) -> None:
        if type(hook) is HttpRequestHeadersHook:
            self._remember()

    def _remember(self) -> None:
        """Make the flow refer to this stream."""
        kept: Any = self.flow
        kept.kept_stream = reference = ref(self, _streams.discard)
        _streams.add(reference)

    def _after(self, hook: commands.Command) -> Instead | None:
        """Act on what a hook has changed; return the steps to take instead, if any."""
        kind, flow = type(hook), self.flow
        if kind is HttpRequestHeadersHook:
            if flow.request.stream:  # bodies that we have not judged
                _once.log(log, logging.WARNING, _NO_STREAMING)
                flow.request.stream = False
            if self._is_refused:
                return self._refuse(), False
        elif kind is HttpResponseHeadersHook:
            if self.held and flow.response:
                flow.response.stream = self.held[-1]
        elif self.is_to_repeat and kind is HttpResponseHook:
            return self._repeat(), True
        return None

    # -- sending

    def _prepare_to_send(self, command: SendHttp) -> bool:
        """Restore the secrets in a command that sends no head; return False if it must not be
        sent."""
        sent = command.event
        if type(sent) is ResponseData:
            installed.meter(len(sent.data))
            if self._is_said or sent.data == b"":
                return False  # HTTP/1 would write an empty chunk, which means the end
        if self.masks is not None:
            command.event = self.for_the_wire(sent)
        return True

    def _send_head(self, command: SendHttp) -> Generator[commands.Command, Any, Instead | None]:
        """Send a head as it was judged; return the steps to take instead, if any."""
        head = command.event
        if isinstance(head, ResponseProtocolError):
            yield from self._answer(head)
        elif isinstance(head, RequestHeaders | ResponseHeaders):  # trailers were not judged
            if not self._is_settled(head):
                return (yield from self._look_again(head))
            if isinstance(head, RequestHeaders):
                self._note_asked(head.request)
            elif head.response.data.status_code >= 200:
                self._headers_sent = True
            if self.masks is not None or self.added_header is not None:
                command.event = self.for_the_wire(head)
            yield command
        return None


def _says_that_it_streams(command: commands.Command) -> bool:
    """Tell whether this is mitmproxy's log line for each streamed response."""
    return isinstance(command, commands.Log) and command.message.startswith("Streaming response")


def hosts_in(request: Request) -> tuple[str, ...]:
    """Return every host that a client names: in the target or ``:authority``, then in Host
    headers."""
    target = [request.authority] if request.authority else []
    return (*target, *request.headers.get_all("host"))
