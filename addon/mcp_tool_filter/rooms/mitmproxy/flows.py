"""Show the engine's exchanges as mitmproxy's flows, and take over what others change in them.

The engine decides; a flow is a picture of an exchange, for the other addons, for people and for
recordings. At each of mitmproxy's hooks we first bring the picture up to date, then the others see
it, then we take over what they have changed:

    requestheaders   before the source is checked          a changed head is the head from now on
    request          the body is there; it is judged next  what they change is judged, nothing else
    responseheaders  at the head of a stream; else when    changed headers are judged again
                     the answer is complete and judged
    response         the answer is complete and judged     what they change is judged again
    error            the client or the upstream has left, somebody has killed the flow

A script that answers instead of the upstream has its answer judged like the upstream's.

In this picture masks stand for the secrets: credentials in headers and URLs, and everything secret
in a login (token requests, token answers, redirects with a code). When we take over a change, a
mask becomes its secret again, but only in its original place: a client that sends the mask of
somebody's token in a URL or an argument gets no token for it. A place is the path, a body, or the
headers of one name. The same secret has the same mask in all flows of a process:

>>> from mcp_tool_filter.rooms.secrets.finder import SecretFinder
>>> masks = FlowMasks(SecretFinder())
>>> [(_, hidden)] = masks.hide_fields(((b"Authorization", b"Bearer abc"),))
>>> hidden.startswith(b"Bearer masked-"), masks.show(hidden, b"authorization")
(True, b'Bearer abc')
>>> masks.show(hidden, masks.PATH) == hidden
True
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Iterable
from copy import copy
from types import SimpleNamespace
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import unquote
from weakref import WeakKeyDictionary

from mitmproxy import http
from mitmproxy.connection import Server
from mitmproxy.flow import Error, Flow
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.mode_specs import ReverseMode

from mcp_tool_filter.core.engine.exchange import Exchange
from mcp_tool_filter.core.engine.service import Address, Asking
from mcp_tool_filter.core.engine.steps import Answer
from mcp_tool_filter.core.engine.wire import AnswerHead, RequestHead
from mcp_tool_filter.rooms.logins.logins_through import CALLBACK
from mcp_tool_filter.rooms.logins.metadata import AUTHORIZE, REGISTER, TOKEN
from mcp_tool_filter.rooms.mitmproxy.layer import upstream_of
from mcp_tool_filter.rooms.secrets.names import is_secret_header, is_secret_name
from mcp_tool_filter.rooms.secrets.places import Findings, replace

if TYPE_CHECKING:
    from mcp_tool_filter.core.http.head import Fields
    from mcp_tool_filter.rooms.mitmproxy.connections import Sockets
    from mcp_tool_filter.rooms.mitmproxy.hooks import Hooks
    from mcp_tool_filter.rooms.mitmproxy.layer import EngineLayer
    from mcp_tool_filter.rooms.mitmproxy.shown import ShownExchange
    from mcp_tool_filter.rooms.mitmproxy.views import FlowObserver
    from mcp_tool_filter.rooms.secrets.finder import SecretFinder

log = logging.getLogger(__name__)

_FRAMING = frozenset({b"content-length", b"transfer-encoding"})
_REQUEST = http.Request("", 0, b"", b"", b"", b"", b"", (), None, None, 0.0, None)
_RESPONSE = http.Response(b"", 0, b"", (), None, None, 0.0, None)


class Flows:
    """Shows all exchanges of the process."""

    def __init__(
        self, hooks: Hooks, watch: FlowObserver, sockets: Sockets, received: Callable[[int], None]
    ) -> None:
        """``received`` gets the number of bytes whenever some come."""
        self.hooks = hooks
        self.watch = watch
        self.sockets = sockets
        self.received = received
        self.finder: SecretFinder | None = None
        """Finds the secrets to hide; None if nobody can see flows."""
        self.keeps_host = False
        """The value of mitmproxy's option keep_host_header."""

    def run(self, name: str, exchange: ShownExchange, layer: EngineLayer) -> Awaitable[None] | None:
        """Show an exchange to the other addons; return what to await if one of them waits."""
        picture = exchange.flow
        if not isinstance(picture, Picture):
            picture = exchange.flow = Picture(self, exchange, layer)
        if (show := _SHOW.get(name)) is not None:
            show(picture)
        hooks = self.hooks
        if hooks.reads_secrets and name in _WITH_SECRETS:
            picture.run_with_secrets(name)
        if name == "request" and self.watch.is_watched:
            self.watch.meet(picture.flow, picture.client_host)
        if name == "answered":
            hooks.tell_of_answer(picture.flow)
            return None
        return hooks.run(name, picture.flow)

    def go_on(self, name: str, exchange: ShownExchange, go_on: Callable[[], None]) -> None:
        """Take over what the other addons have changed, and let the engine continue."""
        picture = exchange.flow
        assert isinstance(picture, Picture)
        adopt = _ADOPT.get(name)
        if exchange.is_over and adopt is not None:
            return  # the client has left while they looked
        if name != "error" and _is_killed(picture.flow):
            exchange.kill()
            return
        if adopt is not None:
            adopt(picture)
        if name in _LAST:  # a cycle would keep the bodies for long
            exchange.flow = SimpleNamespace(flow=picture.flow)
        go_on()

    # Connections

    def server_for(self, address: Address, context: Context) -> Server:
        """Return a connection to be opened."""
        is_reverse = isinstance(context.client.proxy_mode, ReverseMode)  # others know no upstream
        shows_clients_name = self.keeps_host and is_reverse and address == upstream_of(context)
        return Server(
            address=(address.host, address.port),
            tls=address.is_tls,
            sni=address.host if address.is_tls and not shows_clients_name else None,
            alpn_offers=(b"http/1.1",) if address.is_tls else (),
        )

    @staticmethod
    def note_server(exchange: Asking, server: Server) -> None:
        picture = exchange.flow
        if isinstance(picture, Picture):
            picture.flow.server_conn = server


class Picture:
    """One exchange as a flow."""

    def __init__(self, flows: Flows, exchange: ShownExchange, layer: EngineLayer) -> None:
        self._flows = flows
        self.exchange = exchange
        self._layer = layer
        context = layer.context
        self._version = b"HTTP/1.1"
        self._authority = exchange.service.authority
        head = exchange.head
        hosts = [value for name, value in head.fields if name.lower() == b"host"]
        self.client_host = hosts[0].decode("latin-1") if len(hosts) == 1 else head.authority or ""
        self._masks = FlowMasks(flows.finder, flows.finder is not None and is_login(exchange))
        self.flow = http.HTTPFlow(context.client, context.server, live=True)
        if self._masks.hides:
            _masks[self.flow] = self._masks
        self._answered_at = 0.0
        self._response: http.Response | None = None
        self._answer: tuple[int, Fields, bytes | None] = (0, (), None)
        self.flow.request = self._make_request(head, context)
        self._request = self._seen_request()
        exchange.tap = self if flows.watch.is_watched else None

    # The request

    def _make_request(self, head: RequestHead, context: Context) -> http.Request:
        upstream = upstream_of(context)
        request = _another(_REQUEST)
        data = request.data
        data.host, data.port = upstream.host, upstream.port
        data.scheme = b"https" if upstream.is_tls else b"http"
        data.method = head.method.encode("latin-1")
        data.path = self._masks.hide_target(head.target.encode("latin-1"))
        data.http_version = self._version if head.is_11 else b"HTTP/1.0"
        fields = self._with_upstreams_host(head.fields)
        data.headers = http.Headers(self._masks.hide_fields(fields))
        data.timestamp_start = time.time()
        return request

    def _with_upstreams_host(self, fields: Fields) -> Fields:
        """Show the upstream's Host, as mitmproxy's reverse proxies do."""
        if self._flows.keeps_host:
            return fields
        return tuple([
            (name, self._authority if name.lower() == b"host" else value) for name, value in fields
        ])  # fmt: skip

    def _seen_request(self) -> tuple[bytes, bytes, Fields]:
        data = self.flow.request.data
        return data.method, data.path, data.headers.fields

    def show_body(self) -> None:
        request = self.flow.request
        request.timestamp_end = time.time()
        request.data.content = self._hide_body(self.exchange.body)

    def _hide_body(self, body: bytes) -> bytes:
        return self._masks.hide_body(body, self._request[2])

    def adopt_head(self) -> None:
        """Take over a changed head and destination; it is judged next."""
        request, exchange = self.flow.request, self.exchange
        seen = self._seen_request()
        if seen != self._request:
            self._request = seen
            method, path, fields = seen
            path = self._masks.show(path, FlowMasks.PATH)
            fields = self._with_clients_host(_unframed(self._masks.show_fields(fields)))
            exchange.change_head(method.decode("latin-1"), path.decode("latin-1"), fields)
        chosen = Address(request.host, request.port, request.scheme == "https")
        if chosen != upstream_of(self._layer.context):
            exchange.address = chosen

    def _with_clients_host(self, fields: Fields) -> Fields:
        """Give the gate the Host that the client sent; a script's own Host goes to the upstream."""
        if self._flows.keeps_host:
            return fields
        before = [f for f in self.exchange.head.fields if f[0].lower() == b"host"]
        shown = [f[1] for f in fields if f[0].lower() == b"host"]
        if len(shown) == 1 and shown[0] != self._authority:
            self.exchange.authority = shown[0]
        kept = [f for f in fields if f[0].lower() != b"host"]
        return (*before, *kept)

    def adopt_early(self) -> None:
        self.adopt_head()
        if self.flow.response is not None:  # a script refuses, as mitmproxy's proxyauth does
            self._made_by_script()

    def adopt_request(self) -> None:
        self.adopt_head()
        content = self.flow.request.data.content
        exchange = self.exchange
        if content != self._hide_body(exchange.body):
            exchange.body = self._masks.show(content or b"", FlowMasks.BODY)
        if self.flow.response is not None:
            self._made_by_script()

    def _made_by_script(self) -> None:
        response = self.flow.response
        assert response
        fields, body = self._fields_in(response), response.raw_content or b""
        head = AnswerHead(response.status_code, response.data.reason, fields)
        self.exchange.made = head, body

    # The answer

    def show_answer_head(self) -> None:
        exchange, answer = self.exchange, self.exchange.answer
        assert answer is not None
        if exchange.asked is not None and exchange.body:  # as it was sent
            self.flow.request.data.content = self._hide_body(exchange.body)
        fields, body = self._seen_answer(answer)
        response = _another(_RESPONSE)
        data = response.data
        data.http_version, data.status_code = self._version, answer.status
        data.reason, data.headers, data.content = answer.reason or b"", http.Headers(fields), body
        data.timestamp_start = self._answered_at or time.time()
        if exchange.stream is not None:
            response.stream = True
        self.flow.response = self._response = response
        self._answer = answer.status, fields, body

    def _seen_answer(self, answer: Answer) -> tuple[Fields, bytes | None]:
        fields = answer.fields
        body: bytes | None = None
        if self.exchange.stream is None:
            body = answer.body
            if answer.status not in (204, 304):
                fields = (*fields, (b"content-length", b"%d" % len(body)))
        fields = self._masks.hide_fields(fields, in_answer=True)
        if body:
            body = self._masks.hide_body(body, fields, in_answer=True)
        return fields, body

    def _put_answer(self, response: http.Response, answer: Answer) -> None:
        fields, body = self._seen_answer(answer)
        if (answer.status, fields, body) == self._answer:
            return
        response.status_code, response.data.reason = answer.status, answer.reason or b""
        response.headers.fields, response.data.content = fields, body

    def adopt_answer_head(self) -> None:
        response, exchange = self.flow.response, self.exchange
        if response is None:
            return
        if exchange.stream is None:
            if callable(response.stream):
                response.data.content = _through(response.stream, response.data.content or b"")
        elif response is not self._response:
            self._adopt_whole(response)  # another answer, and not a stream
        else:
            if callable(response.stream):
                exchange.stream.transform = response.stream
            if (response.status_code, response.headers.fields) != self._answer[:2]:
                exchange.change_stream_head(response.status_code, self._fields_in(response))

    def show_answer(self) -> None:
        if self.flow.response is None and self.exchange.answer is not None:
            self.show_answer_head()  # its stream turned out to be MCP when its head had passed
        if self.flow.response is not None:
            self.flow.response.timestamp_end = time.time()

    def adopt_answer(self) -> None:
        response, exchange = self.flow.response, self.exchange
        if response is None or exchange.stream is not None:
            return
        now = response.status_code, response.headers.fields, response.data.content
        if now != self._answer:
            self._adopt_whole(response)

    def _adopt_whole(self, response: http.Response) -> None:
        """Take over an answer; it is judged again."""
        body = self._masks.show(response.raw_content or b"", FlowMasks.ANSWER)
        self.exchange.change_answer(
            response.status_code, response.data.reason, self._fields_in(response), body
        )

    def _fields_in(self, response: http.Response) -> Fields:
        return self._masks.show_fields(_unframed(response.headers.fields), in_answer=True)

    def settle(self) -> None:
        """Show the answer as the client got it."""
        exchange = self.exchange
        self.flow.live = False
        response, answer = self.flow.response, exchange.answer
        if response is not None and answer is not None and exchange.stream is None:
            self._put_answer(response, answer)
        self._end()

    def show_error(self) -> None:
        self.flow.error = self.flow.error or Error(self.exchange.why)
        self.flow.live = False
        self._end()

    def _end(self) -> None:
        if self._flows.watch.is_watched:
            self._flows.watch.finish(self.flow)

    # Secrets

    def run_with_secrets(self, name: str) -> None:
        """Let mitmproxy's addons for credentials have the real headers."""
        flow = self.flow
        self._turn_fields(name, self._masks.show_fields)
        self._flows.hooks.run_with_secrets(name, flow)
        self._turn_fields(name, self._masks.hide_fields)
        if self._masks.hides and (login := flow.metadata.get("proxyauth")):
            flow.metadata["proxyauth"] = (login[0], "masked")

    def _turn_fields(self, name: str, turn: Callable[..., Fields]) -> None:
        request, response = self.flow.request.headers, self.flow.response
        request.fields = turn(request.fields)
        if name == "response" and response is not None:
            response.headers.fields = turn(response.headers.fields, in_answer=True)

    # What the engine lets us see: the upstream's answer before our changes, what the client gets

    def head(self, status: int, fields: Fields) -> None:
        self._answered_at = time.time()
        fields = self._masks.hide_fields(fields, in_answer=True)
        self._flows.watch.note_head(self.flow, status, fields)

    def data(self, data: bytes) -> None:
        if data:
            data = self._masks.hide_body(data, self._answer[1], in_answer=True)
        self._flows.watch.note_chunk(self.flow, data)

    def said(self, data: bytes) -> None:
        self._flows.watch.note_said(self.flow, data)


def flow_of(origin: object) -> http.HTTPFlow | None:
    """Return the flow of an exchange, which observers get as the origin of a message."""
    picture = origin.flow if isinstance(origin, Exchange) else None
    flow: http.HTTPFlow | None = getattr(picture, "flow", None)
    return flow


def shown_request(flow: http.HTTPFlow) -> tuple[bytes, Fields, bytes]:
    """Return target, fields and body of a flow's request with its secrets, so far as we know."""
    data = flow.request.data
    masks = _masks.get(flow, _NO_MASKS)
    return (
        masks.show(data.path, FlowMasks.PATH),
        masks.show_fields(data.headers.fields),
        masks.show(data.content or b"", FlowMasks.BODY),
    )


def hidden_target(flow: http.HTTPFlow, target: str) -> str:
    """Return a URL's path and query as the flow shows them."""
    masks = _masks.get(flow, _NO_MASKS)
    return masks.hide_target(target.encode("latin-1")).decode("latin-1")


def _another[M: (http.Request, http.Response)](message: M) -> M:
    """Return a copy to be filled in.

    A new message of mitmproxy checks the type of each part. That is slow, and for each None it
    leaves an exception that keeps all callers, and their bodies, until garbage collection.
    """
    made = copy(message)
    made.data = copy(message.data)
    return made


def _unframed(fields: Fields) -> Fields:
    return tuple([field for field in fields if field[0].lower() not in _FRAMING])


def _is_killed(flow: Flow) -> bool:
    return flow.error is not None and flow.error.msg == Error.KILLED_MESSAGE


def _through(stream: Callable[[bytes], Iterable[bytes] | bytes], content: bytes) -> bytes:
    made = [stream(content), stream(b"")]
    return b"".join(one if isinstance(one, bytes) else b"".join(one) for one in made)


_masks: WeakKeyDictionary[Flow, FlowMasks] = WeakKeyDictionary()
"""Kept for the case that the user replays a flow."""
_WITH_SECRETS = frozenset({"requestheaders", "request", "response"})
_LAST = frozenset({"answered", "error"})
_SHOW: dict[str, Callable[[Picture], None]] = {
    "request": Picture.show_body,
    "responseheaders": Picture.show_answer_head,
    "response": Picture.show_answer,
    "answered": Picture.settle,
    "error": Picture.show_error,
}
_ADOPT: dict[str, Callable[[Picture], None]] = {
    "requestheaders": Picture.adopt_early,
    "request": Picture.adopt_request,
    "responseheaders": Picture.adopt_answer_head,
    "response": Picture.adopt_answer,
}


_KEY = secrets.token_bytes(32)
_IN_ANSWER = b"answer:"  # prefix of header names in answers
_MASK = re.compile(rb"masked-[A-Za-z0-9_-]{22}")
_LOGIN_PATHS = frozenset({AUTHORIZE, TOKEN, REGISTER})
_FORM = b"application/x-www-form-urlencoded"
_NOT_TOKENS = frozenset({b"mcp-session-id", b"last-event-id"})
_WITH_URLS = frozenset({b"location", b"refresh", b"link"})
_PARAMETER = re.compile(rb"[?&]([^=&#?]{1,200}+)=([^&#]++)")
_LONGEST_BODY = 256 * 1024  # bytes; a longer body is hidden completely


def is_login(exchange: Exchange) -> bool:
    """Tell whether the bodies of a request and of its answer may hold secrets."""
    head, listener = exchange.head, exchange.service.listener
    path, fields = head.target.partition("?")[0], head.fields
    if path in _LOGIN_PATHS or path.startswith(CALLBACK):
        return True
    if any(n.lower() == b"content-type" and v.lower().startswith(_FORM) for n, v in fields):
        return True
    return not listener.takes_headers(head.target) and listener.logins.has(head.method, head.target)


class FlowMasks:
    """The masks of one flow."""

    PATH: ClassVar = b":path"
    BODY: ClassVar = b":body"
    ANSWER: ClassVar = b":answer"

    def __init__(self, finder: SecretFinder | None, is_login: bool = False) -> None:
        """Without a ``finder`` nothing is hidden. ``is_login``: bodies may hold secrets, too."""
        self._finder, self.is_login = finder, is_login
        self._secrets: dict[tuple[bytes, bytes], bytes] = {}
        """The secrets by place and mask."""
        self._places: set[bytes] = set()

    @property
    def hides(self) -> bool:
        return self._finder is not None

    # Hiding

    def hide_target(self, target: bytes) -> bytes:
        """Hide the secrets in a URL; session ids stay, because they lead to a stream."""
        if self._finder is None:
            return target
        if self.is_login:
            found = self._finder.in_url(target.decode("latin-1"))
            return self._hide(target, found, self.PATH)
        return _PARAMETER.sub(self._hide_parameter, target) if b"?" in target else target

    def _hide_parameter(self, found: re.Match[bytes]) -> bytes:
        if not is_secret_name(unquote(found[1].decode("latin-1"))):
            return found[0]
        start = found.start(2) - found.start()
        return found[0][:start] + self._hide_all(found[2], self.PATH)

    def hide_fields(self, fields: Fields, *, in_answer: bool = False) -> Fields:
        """Hide the credentials in headers, and in an answer of a login the URLs."""
        if (finder := self._finder) is None:
            return fields
        return tuple([
            (name, self._hide_value(finder, name, value, in_answer)) for name, value in fields
        ])  # fmt: skip

    def _hide_value(
        self, finder: SecretFinder, name: bytes, value: bytes, in_answer: bool
    ) -> bytes:
        key = name.lower()
        plain = key.decode("latin-1")
        if key not in _NOT_TOKENS and is_secret_header(plain):
            found = finder.in_header(plain, value.decode("latin-1"))
        elif in_answer and self.is_login and key in _WITH_URLS:
            found = finder.in_url(value.decode("latin-1"))
        else:
            return value
        return self._hide(value, found, (_IN_ANSWER if in_answer else b"") + key)

    def hide_body(self, body: bytes, fields: Fields, *, in_answer: bool = False) -> bytes:
        """Hide the secrets in the body of a login."""
        if self._finder is None or not self.is_login or not body:
            return body
        place = self.ANSWER if in_answer else self.BODY
        kind, coding = (
            b", ".join(v for n, v in fields if n.lower() == name).decode("latin-1")
            for name in (b"content-type", b"content-encoding")
        )
        if coding or len(body) > _LONGEST_BODY:
            return self._hide_all(body, place)
        found = self._finder.in_body(body, kind)
        return self._hide_all(body, place) if found.unread else self._hide(body, found, place)

    def _hide(self, data: bytes, found: Findings, place: bytes) -> bytes:
        text = data.decode("latin-1")
        hidden = replace(
            text, found.secrets, lambda one: self._mask(text[one.start : one.end], place)
        )
        return hidden.encode("latin-1")

    def _hide_all(self, data: bytes, place: bytes) -> bytes:
        return self._mask(data.decode("latin-1"), place).encode()

    def _mask(self, text: str, place: bytes) -> str:
        raw = text.encode("latin-1")
        if (place, raw) in self._secrets:  # a mask itself
            return text
        digest = hmac.digest(_KEY, raw, hashlib.sha256)[:16]
        mask = b"masked-" + base64.urlsafe_b64encode(digest).rstrip(b"=")
        self._secrets[place, mask] = raw
        self._places.add(place)
        return mask.decode()

    # Showing

    def show(self, data: bytes, place: bytes) -> bytes:
        """Restore the secrets that were hidden in this place."""
        if place not in self._places:
            return data
        return _MASK.sub(lambda found: self._secrets.get((place, found[0]), found[0]), data)

    def show_fields(self, fields: Fields, *, in_answer: bool = False) -> Fields:
        if not self._places:
            return fields
        side = _IN_ANSWER if in_answer else b""
        return tuple([(name, self.show(value, side + name.lower())) for name, value in fields])


_NO_MASKS = FlowMasks(None)
