"""One request and its answer: what is asked of the listener, in which order, and what leaves."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from mcp_tool_filter.conversation.judged import INVALID_ANSWER, LOST_ANSWER
from mcp_tool_filter.engine.wire import Fault, Message, lines
from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.http.cors import page_of
from mcp_tool_filter.http.exchange import Answered, Passed
from mcp_tool_filter.http.gate import problem_in_source
from mcp_tool_filter.http.head import LONGEST_VALUE, MOST_HEADERS, Head, is_websocket
from mcp_tool_filter.http.links import WITH_URLS, keep_links, leads_away
from mcp_tool_filter.http.listener import Listener
from mcp_tool_filter.http.media_type import is_event_stream
from mcp_tool_filter.http.other_answers import refuse_partial
from mcp_tool_filter.policy.effects import waits
from mcp_tool_filter.policy.verdict import Reason, Reply, Why
from mcp_tool_filter.protocol.messages import (
    INTERNAL_ERROR,
    INVALID_REQUEST,
    UPSTREAM_LOST,
    render_batch,
    render_error,
)
from mcp_tool_filter.protocol.sse import render_event

if TYPE_CHECKING:
    from mcp_tool_filter.engine.client_h1 import H1Client
    from mcp_tool_filter.engine.service import Service
    from mcp_tool_filter.engine.upstream import Upstream

log = logging.getLogger(__name__)
FORBIDDEN = render_error(None, INVALID_REQUEST, "Forbidden: unknown Host or Origin")
FORBIDDEN_SITE = render_error(None, INVALID_REQUEST, "Forbidden: sent by a page of another site")
INVALID_HTTP = render_error(None, INVALID_REQUEST, "Invalid Request")
TOO_LARGE = render_error(None, INVALID_REQUEST, "Request too large")
INTERNAL = render_error(None, INTERNAL_ERROR, "Internal error")
INVALID = render_error(None, INTERNAL_ERROR, INVALID_ANSWER)
LOST = render_error(None, UPSTREAM_LOST, LOST_ANSWER)
_HOP = {
    b"connection",
    b"keep-alive",
    b"proxy-connection",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"content-length",
    b"upgrade",
}
_NOT_ASKED = frozenset(
    _HOP
    | {
        b"host",
        b"accept-encoding",
        b"range",
        b"if-range",
        b"expect",
        b"http2-settings",
        b"sec-websocket-key",
        b"sec-websocket-version",
        b"sec-websocket-extensions",
    }
)
_NOT_ANSWERED = frozenset(_HOP | {b"alt-svc"})
_CONTROL = re.compile(rb"[\r\n\0]")
_SCHEMA = b"inputschema"
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
type Fields = tuple[tuple[bytes, bytes], ...]


class Exchange:
    """One request and its answer."""

    def __init__(self, service: Service, down: H1Client, message: Message) -> None:
        self.service, self.down, self.message = service, down, message
        self.parts: list[bytes] = []
        self.size = 0
        self.body = b""
        self.is_admitted = self.has_all = self.has_begun = self.is_over = self.is_ending = (
            self.is_ours
        ) = False
        self.up: Upstream | None = None
        self.asked = self.stream = self.socket = self.made = self.seat = None
        self.status, self.reason, self.fields, self.answer_body = 0, b"", (), b""
        self.tries = 0
        self.transform = self.address = self.flow = self.said_length = None

    # The request

    def begin(self) -> None:
        self._point("requestheaders", self._admit)

    def _point(self, name: str, go_on: Callable[[], None]) -> None:
        point = self.down.host.point
        if point is None:
            go_on()
        else:
            point(name, self, go_on)

    def _admit(self) -> None:
        m = self.message
        if "source" not in m.known:
            get = lambda wanted: [v.decode("latin-1") for n, v in m.fields if n.lower() == wanted]
            hosts = get(b"host")
            m.known["source"] = problem_in_source(
                self.service.listener.config.allowed_hosts,
                own=self.down.host.own,
                host=hosts[0] if len(hosts) == 1 else None,
                origins=get(b"origin"),
                sites=get(b"sec-fetch-site"),
            )
        if problem := m.known["source"]:
            said = FORBIDDEN_SITE if problem == "Sec-Fetch-Site" else FORBIDDEN
            self.service.listener.tell_refused(
                Reply(said, Reason(Why.FORBIDDEN, detail=str(problem))), self
            )
            return self.answer(Answered(403, said), with_cors=False)
        self.is_admitted = True
        if m.length is not None and m.length > self.service.listener.config.limits.pending:
            return self._refuse_size()
        if self.has_all:
            self._ask()
        elif m.expects:
            self.down.go_ahead()

    def take(self, data: bytes) -> None:
        self.parts.append(data)
        self.size += len(data)
        if self.size > self.service.listener.config.limits.pending and not self.is_over:
            self._refuse_size()

    def _refuse_size(self) -> None:
        self.service.listener.tell_refused(
            Reply(TOO_LARGE, Reason(Why.OVERSIZED, detail="Request too large")), self
        )
        self.answer(Answered(413, TOO_LARGE))

    def end_of_request(self) -> None:
        self.has_all = True
        if self.is_admitted and not self.is_over:
            self._ask()

    def _ask(self) -> None:
        self.body = self.parts[0] if len(self.parts) == 1 else b"".join(self.parts)
        self.parts = []
        self._point("request", self._judge)

    def _judge(self) -> None:
        """Judge the request as it is now: this is the last look before it leaves."""
        m = self.message
        head = m.known.get("head")
        if head is None:
            head = m.known["head"] = Head(m.method, m.target, m.fields, self.down.host.peer)
        try:
            outcome = self.service.listener.judge_request(head, self.body, self)
            if waits(outcome):
                self.service.effects.carry_out(outcome, self._judged_later)
            else:
                self._judged(outcome)
        except Exception:
            log.exception("cannot judge a request")
            self.answer(Answered(500, INTERNAL))

    def _judged_later(self, outcome: object) -> None:
        if self.is_over:
            return
        if isinstance(outcome, Exception):
            log.error("cannot judge a request", exc_info=outcome)
            outcome = Answered(500, INTERNAL)
        self._judged(outcome)
        self.down.host.wake()

    def _judged(self, outcome: Passed | Answered) -> None:
        if isinstance(outcome, Answered):
            if outcome.stream and outcome.body and outcome.stream.send(render_event(outcome.body)):
                outcome = Answered(202)
            return self.answer(outcome)
        self.asked = outcome.exchange
        m, head, known = self.message, self.asked.head, self.message.known
        if b"upgrade" in head.names.places and is_websocket(head):
            self.socket = self.service.listener.open_socket(self.asked)
        if outcome.body is not None:
            self.body = outcome.body
            self.wire_head = None
            self.out_fields = self._fields_for_upstream(head, dict(outcome.headers), replaced=True)
        elif self.socket is not None or "out" not in known:
            self.out_fields = self._fields_for_upstream(head, {}, replaced=False)
            self.wire_head = None
            if self.socket is None:
                known["out"] = self.out_fields
                known["wire"] = b"%b %b HTTP/1.1\r\n%b" % (
                    m.method.encode(),
                    m.target.encode("latin-1"),
                    lines(self.out_fields),
                )
        else:
            self.out_fields, self.wire_head = known["out"], known["wire"]
        if self.made is not None:  # another script answers instead of the upstream
            self.on_head(self.made[0])
            if not self.is_over:
                self.on_data(self.made[1])
                self.on_end()
            return None
        self.down.host.connect(self, fresh=False)

    def _fields_for_upstream(
        self, head: Head, changed: dict[str, str | None], *, replaced: bool
    ) -> list[tuple[bytes, bytes]]:
        listener = self.service.listener
        ours = [(n.encode(), v.encode()) for n, v in listener.headers_for(head)]
        gone = {n.lower() for n, _ in ours} | {n.encode() for n in changed}
        for token in (head.get(b"connection") or "").lower().encode().split(b","):
            gone.add(token.strip())
        if replaced:
            gone.add(b"content-encoding")
        host = head.get(b"host").encode() if listener.keeps_host else self.service.authority
        out = [(b"host", host), (b"accept-encoding", b"identity")]
        out += [f for f in head.headers if (k := f[0].lower()) not in _NOT_ASKED and k not in gone]
        out += [(n.encode(), v.encode()) for n, v in changed.items() if v is not None]
        if self.socket is not None:
            out += [
                (b"connection", b"Upgrade"),
                (b"upgrade", b"websocket"),
                (b"sec-websocket-version", b"13"),
                (b"sec-websocket-key", head.get(b"sec-websocket-key").encode()),
            ]
        return out + ours

    # The upstream

    def connected(self, up: Upstream) -> None:
        self.up = up
        self.tries += 1
        up.begin(self)

    def unreachable(self, why: str) -> None:
        if not self.is_over:
            self._lose(why)

    def upstream_lost(self, *, was_idle: bool) -> None:
        """The connection ended before the answer did."""
        self.up = None
        if self.is_over:
            return None
        if was_idle and not self.status and self.tries < 2 and self._may_repeat():
            return self.down.host.connect(self, fresh=True)
        self._lose("the upstream closed the connection")

    def _may_repeat(self) -> bool:
        """A request may be sent again if running it twice does no harm."""
        return self.message.method in _SAFE or (
            self.asked is not None and "tools/call" not in self.asked.conversation.exchanges.methods
        )

    def _lose(self, why: str) -> None:
        self.failed_because = why
        listener = self.service.listener
        replies: tuple[bytes, ...] = ()
        if self.asked is not None:
            if self.asked.is_legacy and self.message.method != "GET":
                listener.tell_of_loss(self.message.target, self.body)
            else:
                replies = listener.lost_replies(self.asked)
        if not self.has_begun:
            body = (
                LOST
                if not replies
                else replies[0]
                if len(replies) == 1
                else render_batch(list(replies))
            )
            return self.answer(Answered(200 if replies else 502, body), is_error=True)
        if self.stream and replies:
            self.down.data(b"".join(map(render_event, replies)))
        self.cut()

    # The answer

    def on_head(self, m: Message) -> None:
        try:
            self._judge_head(m)
        except Exception as error:
            self.refuse(error)

    def _judge_head(self, m: Message) -> None:
        if m.status == 101 and self.socket is None:
            raise ProtocolError("an upgrade that was not requested")
        listener, asked, known = self.service.listener, self.asked, m.known
        if "fields" not in known:
            known["fields"], known["stays"] = judged_fields(m.status, m.fields, listener)
            get = lambda wanted: ", ".join(
                v.decode("latin-1") for n, v in m.fields if n.lower() == wanted
            )
            known["type"], known["coding"], known["session"] = (
                get(b"content-type"),
                get(b"content-encoding"),
                get(b"mcp-session-id"),
            )
            if _SCHEMA in m.reason.lower():
                m.reason = b""
        self.status, self.reason, self.fields, self.said_length = (
            m.status,
            m.reason,
            known["fields"],
            m.length,
        )
        self.kind, self.coding = known["type"], known["coding"]
        if b"origin" in asked.head.names.places and (page := self._page()):
            is_preflight = (
                self.message.method == "OPTIONS"
                and b"access-control-request-method" in asked.head.names.places
            )
            listener.cors.learn(page, m.status, m.fields, is_preflight=is_preflight)
        listener.note_answer_head(asked, m.status, known["session"] or None)
        if not known["stays"] and asked.waits:
            raise ProtocolError("a redirect that leads away from us")
        if m.status == 101:
            return self._point("responseheaders", lambda: self._point("response", self._switch))
        if (
            is_event_stream(self.kind)
            and m.status not in (204, 304)
            and self.message.method != "HEAD"
        ):
            if self.coding.strip().lower() not in ("", "identity"):
                raise ProtocolError("an event stream in a coding that was not requested")
            refuse_partial(m.status, self.kind)
            send = self.inject if self.message.method == "GET" else None
            self.stream = listener.open_stream(asked, self.message.target, send)
            self.stream.carry_out_with(self.service.effects.carry_out, self._wake)
            self._point("responseheaders", self._begin_stream)

    def _page(self) -> object:
        head = (
            self.asked.head
            if self.asked
            else Head(self.message.method, self.message.target, self.message.fields)
        )
        return page_of(head.get(b"origin"), head.target, has_cookie=b"cookie" in head.names.places)

    def _begin_stream(self) -> None:
        if self.is_over:
            return
        self.has_begun = True
        self.down.begin(self.status, self.reason, self.fields)
        for chunk in self.parts:
            self._feed(chunk)
        self.parts = []
        if self.is_ending and not self.is_over:
            self.on_end()

    def on_data(self, data: bytes) -> None:
        if self.stream is not None and self.has_begun:
            return self._feed(data)
        self.parts.append(data)
        self.size += len(data)
        if len(self.parts) == 1:
            self.size = len(data)
        if self.size > self.service.listener.config.limits.pending:
            self.refuse(ProtocolError("a longer answer than we keep"))

    def _feed(self, data: bytes) -> None:
        if self.is_over:
            return None
        if self.transform is not None:  # another script changes the bytes before we judge them
            made = self.transform(data)
            data = made if isinstance(made, bytes) else b"".join(made)
        seen = self.stream.feed(data, self)
        if self.stream.failure:
            return self.refuse(self.stream.failure)
        if seen:
            self.down.data(seen)

    def _wake(self) -> None:
        """Events that had waited are decided."""
        if self.is_over:
            return
        if seen := self.stream.take():
            self.down.data(seen)
        if self.is_ending and not self.stream.is_waiting:
            self.on_end()
        self.down.host.wake()

    def inject(self, data: bytes) -> bool:
        if self.is_over or not self.has_begun:
            return False
        self.down.data(data)
        self.down.host.wake()
        return True

    def on_end(self) -> None:
        if self.stream is not None:
            self.is_ending = True
            if not self.has_begun or self.stream.is_waiting:
                return None
            last = self.stream.finish(self)
            if self.stream.failure:
                return self.refuse(self.stream.failure)
            self.service.listener.close_stream(self.asked)
            if last:
                self.down.data(last)
            return self._point("response", self._end_stream)
        raw = self.parts[0] if len(self.parts) == 1 else b"".join(self.parts)
        self.parts = []
        self._judge_answer(raw, self._shown)

    def _end_stream(self) -> None:
        if not self.is_over:
            self.down.finish()
            self._done()

    def _judge_answer(self, raw: bytes, go_on: Callable[[], None]) -> None:
        self.answer_body = b"" if self.message.method == "HEAD" else raw
        if self.message.method == "HEAD":
            return go_on()

        def decided(answered: object) -> None:
            if isinstance(answered, Exception):
                log.error("cannot judge an answer", exc_info=answered)
                answered = Answered(502, INVALID)
            if answered is not None:
                self._replace(answered)
            go_on()

        def later(answered: object) -> None:
            if not self.is_over:
                decided(answered)
                self.down.host.wake()

        try:
            decision = self.service.listener.judge_answer(
                self.asked, self.status, self.kind, self.coding, raw, self
            )
        except Exception as error:
            return decided(error)
        if waits(decision):
            self.service.effects.carry_out(decision, later)
        else:
            decided(decision)

    def _replace(self, answered: Answered) -> None:
        gone = (b"content-encoding", b"etag", b"content-range", b"content-type")
        kept = [f for f in self.fields if f[0].lower() not in gone]
        self.status, self.reason, self.answer_body = answered.status, b"", answered.body
        self.fields = (*kept, (b"content-type", answered.content_type.encode()))
        self.kind, self.coding = answered.content_type, ""

    def _shown(self) -> None:
        """The answer is judged: show it to other scripts, and judge their changes again."""
        if self.down.host.point is None:
            return self._deliver()
        shown = (self.status, self.fields, self.answer_body)

        def looked() -> None:
            if self.is_over:
                return None
            if (self.status, self.fields, self.answer_body) == shown or self.is_ours:
                return self._deliver()
            try:
                self.fields, stays = judged_fields(self.status, self.fields, self.service.listener)
                if self.status == 101 or (not stays and self.asked.waits):
                    raise ProtocolError("an answer that leads away from us")
                get = lambda wanted: ", ".join(
                    v.decode("latin-1") for n, v in self.fields if n.lower() == wanted
                )
                self.kind, self.coding = get(b"content-type"), get(b"content-encoding")
                self._judge_answer(self.answer_body, self._deliver)
            except Exception as error:
                self.refuse(error)

        self._point("responseheaders", lambda: self._point("response", looked))

    def _deliver(self) -> None:
        if self.is_over:
            return
        self.down.respond(
            self.status,
            self.reason,
            self.fields,
            self.answer_body,
            is_bare=self.message.method == "HEAD",
        )
        self._done()

    def answer(self, answered: Answered, *, with_cors: bool = True, is_error: bool = False) -> None:
        """Answer ourselves."""
        if self.is_over:
            return None
        self._drop_upstream()
        self.is_ours = True
        self.status, self.reason = answered.status, b""
        self.answer_body = b"" if self.message.method == "HEAD" else answered.body
        self.fields = ((b"content-type", answered.content_type.encode()),) if answered.body else ()
        if (
            with_cors
            and any(n.lower() == b"origin" for n, _ in self.message.fields)
            and (page := self._page())
        ):
            self.fields = (*self.fields, *self.service.listener.cors.headers_for(page))
        ours = (self.status, self.fields, self.answer_body)

        def leave() -> None:
            self.status, self.fields, self.answer_body = ours  # nobody changes our refusals
            self._deliver()

        if self.down.host.point is None:
            return self._deliver()
        if is_error:
            return self._point("error", leave)
        self._point("responseheaders", lambda: self._point("response", leave))

    def refuse(self, error: Exception) -> None:
        if not isinstance(error, ProtocolError | Fault):
            log.error("cannot judge an answer", exc_info=error)
        self._drop_upstream()
        if self.has_begun:
            return self.cut()
        if self.asked is None:
            return self.answer(Answered(502, INVALID))
        self.answer(self.service.listener.invalid_answer(self.asked, str(error), self))

    def kill(self) -> None:
        """The user of mitmproxy has killed the flow."""
        if not self.is_over:
            self.failed_because = "Connection killed."
            self.cut()

    def cut(self) -> None:
        self._end()
        self._point("error", lambda: None)
        self.down.cut()

    def client_left(self) -> None:
        """The client is gone: cancel what it waits for."""
        if not self.is_over:
            self.failed_because = "Client disconnected."
            self._end()
            self._point("error", lambda: None)

    def _switch(self) -> None:
        from mcp_tool_filter.engine.websocket import Socket

        self.seat = Socket(self)
        self.down.host.send(
            self.down.wire.answer(
                101,
                self.reason,
                [*self.fields, (b"connection", b"Upgrade"), (b"upgrade", b"websocket")],
                None,
                chunked=False,
            )
        )

    def _end(self) -> None:
        self.is_over = True
        self._drop_upstream()
        if self.stream is not None:
            self.stream.abandon()
            self.service.listener.close_stream(self.asked)

    def _done(self) -> None:
        self.is_over = True
        self.up = None
        self.down.done()

    def _drop_upstream(self) -> None:
        up, self.up = self.up, None
        if up is not None:
            up.drop()

    failed_because = "cut by the tool filter"


def judged_fields(status: int, fields: Fields, listener: Listener) -> tuple[Fields, bool]:
    """Return the fields of an answer that may pass, and whether it leads nowhere else."""
    values = b"".join([v for _, v in fields])
    if len(fields) > MOST_HEADERS or any(len(v) > LONGEST_VALUE for _, v in fields):
        raise ProtocolError("a header that is too long, or too many of them")
    if _CONTROL.search(values):
        raise ProtocolError("a control character in a header")
    gone = {
        t.strip() for n, v in fields if n.lower() == b"connection" for t in v.lower().split(b",")
    }
    kept = [f for f in fields if (k := f[0].lower()) not in _NOT_ANSWERED and k not in gone]
    if _SCHEMA in values.lower():
        kept = [f for f in kept if _SCHEMA not in f[1].lower()]
    if listener.is_forward or WITH_URLS.isdisjoint(n.lower() for n, _ in kept):
        return tuple(kept), True
    kept = keep_links(kept, listener.names)
    return tuple(kept), not (300 <= status < 400 and leads_away(kept))
