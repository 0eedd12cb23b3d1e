"""Let clients log in through us: pass flows to ``adapters/oauth/through``, and send its answers."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from mitmproxy import ctx
from mitmproxy.http import HTTPFlow, Response
from mitmproxy.proxy.mode_specs import ReverseMode

from mcp_tool_filter.adapters.mitmproxy.forward.listeners import target_of
from mcp_tool_filter.adapters.mitmproxy.forward.streams import client_host
from mcp_tool_filter.adapters.sockets.tls import make_tls_context
from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.http.codings import decode_body
from mcp_tool_filter.http.head import Head, is_credential, problem_in_fields, problem_in_size
from mcp_tool_filter.http.listener import Listener
from mcp_tool_filter.http.login_through.documents import without_metadata_urls
from mcp_tool_filter.http.login_through.paths import AUTHORIZE, CALLBACK, REGISTER, TOKEN

if TYPE_CHECKING:
    from mcp_tool_filter.adapters.oauth.store import KeptRegistrations
    from mcp_tool_filter.adapters.oauth.through import Through
    from mcp_tool_filter.adapters.oauth.web import Web

_USUAL = (AUTHORIZE, TOKEN, REGISTER, CALLBACK, "/.well-known/")
_CHALLENGE = "www-authenticate"
_VALIDATORS = ("etag", "last-modified", "content-encoding")
_CONDITIONS = ("if-none-match", "if-modified-since")
_PREFLIGHT = (
    ("access-control-allow-methods", "GET, POST, OPTIONS"),
    ("access-control-allow-headers", "authorization, content-type, mcp-protocol-version"),
)


class LoginsThrough:
    """The logins through each listener that has no stored login."""

    def __init__(self) -> None:
        self._listeners: dict[str, tuple[ReverseMode, Listener]] = {}
        self._begun: dict[str, Through] = {}
        self.has_begun = False
        """True once a client may have started a login.

        Until then, no answer has to be rewritten.
        """
        self._logged_in: set[str] = set()
        """Listeners with a login: their clients must not learn where to log in without us."""

    def open(self, mode: ReverseMode, listener: Listener, *, has_login: bool) -> None:
        """Let clients log in through a listener, unless it has a stored login.

        The imports are late: only logins need them.
        """
        config = listener.config
        has_own = has_login or any(
            is_credential(name.lower().encode()) for name, _ in config.upstream_headers
        )
        if has_own:
            self._logged_in.add(mode.full_spec)
        elif config.login_through != "off":
            self._listeners[mode.full_spec] = mode, listener

    def _through(self, flow: HTTPFlow) -> Through | None:
        spec = flow.client_conn.proxy_mode.full_spec
        if (begun := self._begun.get(spec)) is not None or spec not in self._listeners:
            return begun
        from mcp_tool_filter.adapters.oauth.through import Through

        mode, listener = self._listeners[spec]
        is_plain = listener.config.login_through == "plain"
        kept = _open_registrations(listener.upstream)
        self.has_begun = True
        begun = self._begun[spec] = Through(
            listener, partial(_open_web, mode, listener), is_plain=is_plain, kept=kept
        )
        return begun

    def asked(self, flow: HTTPFlow, head: Head) -> Through | None:
        """Return the login helper if a request may be part of a login."""
        spec, target = flow.client_conn.proxy_mode.full_spec, head.target
        if not (target.startswith(_USUAL) or "/.well-known/" in target):
            begun = self._begun.get(spec)
            return begun if begun and begun.is_resource_document(target) else None
        through = self._through(flow)
        if through is None or not through.concerns(head):
            return None
        return None if problem_in_size(head) or problem_in_fields(head) else through

    def is_visit(self, flow: HTTPFlow) -> bool:
        """Tell whether a browser comes from or goes to a login, so that other sites may lead it
        here."""
        if flow.client_conn.proxy_mode.full_spec not in self._listeners:
            return False
        headers, path = flow.request.headers, flow.request.path.partition("?")[0]
        return (
            flow.request.method == "GET"
            and (path == AUTHORIZE or path.startswith(CALLBACK))
            and headers.get("sec-fetch-mode") == "navigate"
            and headers.get("sec-fetch-dest") == "document"
        )

    async def answer(
        self, flow: HTTPFlow, through: Through, head: Head, raw: bytes
    ) -> Response | None:
        """Answer instead of the authorization server; None if the upstream should answer."""
        for name in _CONDITIONS if through.is_resource_document(head.target) else ():
            flow.request.headers.pop(name, None)
        limit = through.listener.config.limits.message
        coding = head.get(b"content-encoding") or ""
        body = decode_body(raw, coding, limit=limit)
        if head.method == "OPTIONS":
            is_ours = not through.is_resource_document(head.target) and await through.find()
            return _response(204, b"", _PREFLIGHT, head) if is_ours else None
        said = await through.answer(head, body, _our_origin(flow))
        return None if said is None else _response(said.status, said.body, said.headers, head)

    def translate(self, flow: HTTPFlow, through: Through, head: Head, raw: bytes) -> Head | None:
        """Make a login request name the upstream; return the new head, or None if nothing
        changes."""
        if head.get(b"content-encoding"):
            return None
        changed = through.translated(head, raw, _our_origin(flow))
        if changed is None:
            return None
        flow.request.path, flow.request.content = changed
        return replace(head, target=changed[0])

    def rewrite_head(self, flow: HTTPFlow, response: Response) -> None:
        """Make the challenges of an answer name us."""
        if response.status_code not in (401, 403):
            return
        challenges = response.headers.get_all(_CHALLENGE)
        if challenges and flow.client_conn.proxy_mode.full_spec in self._logged_in:
            kept = map(without_metadata_urls, challenges)
            response.headers.set_all(_CHALLENGE, list(kept))
        through = self._through(flow)
        if through is None or (not challenges and response.status_code == 403):
            return
        if through.listener.takes_headers(flow.request.path):
            through.note_challenges(challenges)
        if challenges:
            rewritten = through.rewrite_challenges(challenges, _our_origin(flow))
            response.headers.set_all(_CHALLENGE, rewritten)

    def rewrite_body(self, flow: HTTPFlow, response: Response) -> None:
        """Make protected-resource metadata name us."""
        through = self._begun.get(flow.client_conn.proxy_mode.full_spec)
        is_well = 200 <= response.status_code < 300
        if through is None or not is_well or flow.request.method == "HEAD":
            return
        if not through.is_resource_document(flow.request.path):
            return
        coding = ", ".join(response.headers.get_all("content-encoding"))
        limit = through.listener.config.limits.message
        document = decode_body(response.raw_content or b"", coding, limit=limit)
        rewritten = through.rewrite_document(document, _our_origin(flow))
        if rewritten is not None:
            for name in _VALIDATORS:
                response.headers.pop(name, None)
            response.content = rewritten


def _open_registrations(upstream: str) -> KeptRegistrations | None:
    from mcp_tool_filter.adapters.oauth.folder import registrations_folder
    from mcp_tool_filter.adapters.oauth.store import KeptRegistrations

    try:
        return KeptRegistrations(registrations_folder(os.environ), upstream)
    except RuntimeError:  # the user has no home folder
        return None


def _open_web(mode: ReverseMode, listener: Listener) -> Web:
    """Return an HTTP client configured like the one for the upstream; only https gets our
    certificate."""
    from mcp_tool_filter.adapters.oauth.web import Web

    options = ctx.options
    tls = target_of(mode, listener.config, options).tls or make_tls_context(
        insecure=options.ssl_insecure,
        trusted_ca=options.ssl_verify_upstream_trusted_ca,
        trusted_confdir=options.ssl_verify_upstream_trusted_confdir,
    )
    return Web(listener.upstream, tls=tls, is_for_clients=True)


def _our_origin(flow: HTTPFlow) -> str:
    """Return our origin as the client calls us: by its Host header, which the gate has admitted."""
    host = client_host(flow)
    if host is None:
        raise ProtocolError("a request that names no host")
    return f"{'https' if flow.client_conn.tls else 'http'}://{host}"


def _response(status: int, body: bytes, said: Iterable[tuple[str, str]], head: Head) -> Response:
    """Return an answer that the requesting page may read: the gate has admitted it."""
    headers = [(name.encode(), value.encode()) for name, value in said]
    if origin := head.get(b"origin"):
        allowed = (b"access-control-allow-origin", origin.encode("latin-1"))
        headers += [allowed, (b"vary", b"Origin")]
    return Response.make(status, b"" if head.method == "HEAD" else body, headers)
