"""Keep secrets out of flows that people can see: in mitmweb, in a recording, in a terminal.

These are the credentials in headers and URLs, and everything secret in a login: token requests,
token answers, and redirects with a code. We do nothing if nobody can see flows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import unquote
from weakref import WeakKeyDictionary

from mitmproxy import ctx
from mitmproxy.http import HTTPFlow, Request, Response

from mcp_tool_filter.adapters.mitmproxy.forward.safe.stream import SafeStream, stream_of
from mcp_tool_filter.http.listener import Listener
from mcp_tool_filter.http.login_through.paths import AUTHORIZE, CALLBACK, REGISTER, TOKEN

if TYPE_CHECKING:
    from mcp_tool_filter.adapters.mitmproxy.forward.safe.masks import FlowMasks
    from mcp_tool_filter.observers.redaction.finder import SecretFinder

_USUAL = frozenset({AUTHORIZE, TOKEN, REGISTER})
_NOT_TOKENS = frozenset({"mcp-session-id", "last-event-id"})
_PARAMETER = re.compile(rb"[?&]([^=&#?]{1,200}+)=([^&#]++)")
_FORM = "application/x-www-form-urlencoded"
_masks: WeakKeyDictionary[HTTPFlow, FlowMasks] = WeakKeyDictionary()
"""Kept even after a flow's stream is over: a rule may still send a copy."""
_LONGEST_BODY = 256 * 1024  # bytes; a longer body is hidden completely


class Hidden:
    """Hides the secrets in the flows of all listeners."""

    def __init__(self, listeners: Mapping[str, Listener]) -> None:
        self._listeners = listeners
        self._finder: SecretFinder | None = None  # set only while somebody could see flows
        self.is_on = False
        """True if somebody can see flows. If not, callers may skip all calls."""
        self.was_on = False
        """True if it was ever on: flows may contain masks."""

    def configure(self, *, shows_secrets: bool) -> None:
        """Check whether somebody can see flows now."""
        if shows_secrets or not _is_watched():
            self._finder = None
        elif self._finder is None:
            from mcp_tool_filter.observers.redaction.finder import SecretFinder

            self._finder = SecretFinder()
        self.is_on = self._finder is not None
        self.was_on |= self.is_on

    # Requests

    def hide_head(self, flow: HTTPFlow) -> None:
        """Hide the secrets in the head of a new request."""
        if self._finder is None or (stream := stream_of(flow)) is None:
            return
        request = flow.request
        if self._is_login(flow, request):
            masks = _masks_of(stream)
            masks.is_login = True
            found = self._finder.in_url(request.data.path.decode("latin-1"))
            request.data.path = masks.hide(request.data.path, found, masks.PATH)
        elif b"?" in request.data.path:
            request.data.path = _without_secret_parameters(request.data.path, stream)
        self._hide_headers(request, stream)

    def _is_login(self, flow: HTTPFlow, request: Request) -> bool:
        path = request.path.partition("?")[0]
        if path in _USUAL or path.startswith(CALLBACK):
            return True
        if request.headers.get("content-type", "").lower().startswith(_FORM):
            return True
        listener = self._listeners.get(flow.client_conn.proxy_mode.full_spec)
        return (
            listener is not None
            and not listener.takes_headers(request.path)
            and listener.logins.has(request.method, request.path)
        )

    def hide_body(self, flow: HTTPFlow) -> None:
        """Hide the secrets in the body of a login request."""
        if self._finder is None or (stream := stream_of(flow)) is None:
            return
        if stream.masks is not None and stream.masks.is_login:
            self._hide_content(flow.request, stream.masks)

    def hide_added(self, flow: HTTPFlow) -> None:
        """Hide the secrets that we have added to the head of a request."""
        if self._finder is not None and (stream := stream_of(flow)) is not None:
            self._hide_headers(flow.request, stream)

    # Answers

    def hidden_head(self, flow: HTTPFlow, response: Response) -> Response:
        """Return a copy of an answer with the secrets in its head hidden."""
        if self._finder is None or (stream := stream_of(flow)) is None:
            return response
        seen = response.copy()
        self._hide_answer_headers(seen, stream)
        if seen.headers.fields == response.headers.fields:
            return response
        return Response.make(response.status_code, b"", seen.headers)

    def hide_answer_head(self, flow: HTTPFlow) -> None:
        """Hide the secrets in the head of an answer that has been judged."""
        if self._finder is not None and flow.response and (stream := stream_of(flow)):
            self._hide_answer_headers(flow.response, stream)

    def hidden_body(self, flow: HTTPFlow, response: Response) -> bytes:
        """Return the body of an answer with its secrets hidden; the answer does not change."""
        stream = stream_of(flow) if self._finder is not None else None
        if stream is None or stream.masks is None or not stream.masks.is_login:
            return response.raw_content or b""
        copy = response.copy()
        self._hide_content(copy, stream.masks)
        return copy.raw_content or b""

    def hide_answer(self, flow: HTTPFlow) -> None:
        """Hide the secrets in the body of a login answer, after it has been judged."""
        if self._finder is None or not flow.response or (stream := stream_of(flow)) is None:
            return
        self._hide_answer_headers(flow.response, stream)
        if stream.masks is not None and stream.masks.is_login and not flow.response.stream:
            self._hide_content(flow.response, stream.masks)
            stream.masks.in_answer = True

    def show_answer(self, flow: HTTPFlow) -> None:
        """Restore the secrets in an answer that must be judged again."""
        stream = stream_of(flow)
        if stream is not None and stream.masks is not None and flow.response:
            real = stream.masks.answer_with_secrets(flow.response)
            flow.response.headers.fields = real.headers.fields
            flow.response.data.content = real.data.content

    # Parts

    def _hide_headers(self, message: Request | Response, stream: SafeStream) -> None:
        from mcp_tool_filter.observers.redaction.names import is_secret_header

        assert self._finder
        hidden = []
        for name, value in message.headers.fields:
            plain = name.decode("latin-1").lower()
            if plain not in _NOT_TOKENS and is_secret_header(plain):
                found = self._finder.in_header(plain, value.decode("latin-1"))
                masks = _masks_of(stream)
                hidden.append((name, masks.hide(value, found, masks.place_of(message, name))))
            else:
                hidden.append((name, value))
        if stream.masks is not None:
            message.headers.fields = tuple(hidden)

    def _hide_answer_headers(self, response: Response, stream: SafeStream) -> None:
        assert self._finder
        self._hide_headers(response, stream)
        if (masks := stream.masks) is None or not masks.is_login:
            return
        for name in ("location", "refresh", "link"):
            said = response.headers.get_all(name)
            if said:
                place = masks.place_of(response, name.encode())
                hidden = [_hidden_url(one, self._finder, masks, place) for one in said]
                response.headers.set_all(name, hidden)

    def _hide_content(self, message: Request | Response, masks: FlowMasks) -> None:
        assert self._finder
        content = message.data.content
        if not content:
            return
        place = masks.ANSWER if isinstance(message, Response) else masks.BODY
        kind, coding = (message.headers.get(f"content-{one}", "") for one in ("type", "encoding"))
        if coding or len(content) > _LONGEST_BODY:
            message.data.content = masks.hide_all(content, place)
            return
        found = self._finder.in_body(content, kind)
        unread = bool(found.unread)
        message.data.content = (
            masks.hide_all(content, place) if unread else masks.hide(content, found, place)
        )


def real_request(flow: HTTPFlow) -> Request:
    """Return a request with its secrets, which may be masked in the flow."""
    masks = _masks.get(flow) if _masks else None
    return flow.request if masks is None else masks.request_with_secrets(flow.request)


def _masks_of(stream: SafeStream) -> FlowMasks:
    if stream.masks is None:
        from mcp_tool_filter.adapters.mitmproxy.forward.safe.masks import FlowMasks

        stream.masks = _masks[stream.flow] = FlowMasks()
    return stream.masks


def _hidden_url(url: str, finder: SecretFinder, masks: FlowMasks, place: bytes) -> str:
    raw = url.encode("utf-8", "surrogateescape")
    found = finder.in_url(raw.decode("latin-1"))
    return masks.hide(raw, found, place).decode("utf-8", "surrogateescape")


def _without_secret_parameters(path: bytes, stream: SafeStream) -> bytes:
    """Hide parameters with secret names, except session ids, which lead to a stream."""
    from mcp_tool_filter.observers.redaction.names import is_secret_name

    def hide(found: re.Match[bytes]) -> bytes:
        if not is_secret_name(unquote(found[1].decode("latin-1"))):
            return found[0]
        start, masks = found.start(2) - found.start(), _masks_of(stream)
        return found[0][:start] + masks.hide_all(found[2], masks.PATH)

    return _PARAMETER.sub(hide, path)


def _is_watched() -> bool:
    """Tell whether anything but us can see flows."""
    addons, options = ctx.master.addons, ctx.options
    prints = addons.get("dumper") is not None and getattr(options, "flow_detail", 0) > 0
    writes = getattr(options, "save_stream_file", None) or getattr(options, "hardump", None)
    return prints or bool(writes) or addons.get("view") is not None
