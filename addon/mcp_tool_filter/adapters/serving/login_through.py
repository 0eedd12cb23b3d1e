"""Let clients log in through us: pass requests to ``adapters/oauth/through``, send its answers.

Its imports are late: only logins need them.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from mcp_tool_filter.adapters.background import in_background
from mcp_tool_filter.adapters.serving.logins import finish
from mcp_tool_filter.adapters.serving.site import Site, head_of
from mcp_tool_filter.engine.exchange import Exchange
from mcp_tool_filter.engine.wire import RequestNotes
from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.http.bodies import decode_body
from mcp_tool_filter.http.exchange import JSON, Answered
from mcp_tool_filter.http.head import Head, is_credential, problem_in_fields, problem_in_size
from mcp_tool_filter.http.logins_through import (
    AUTHORIZE,
    CALLBACK,
    REGISTER,
    TOKEN,
    without_metadata_urls,
)

if TYPE_CHECKING:
    from mcp_tool_filter.adapters.oauth.store import KeptRegistrations
    from mcp_tool_filter.adapters.oauth.through import LoginAnswer, Through
    from mcp_tool_filter.adapters.oauth.web import Web

type Fields = tuple[tuple[bytes, bytes], ...]
type MakeTls = Callable[[], ssl.SSLContext]

_USUAL = (AUTHORIZE, TOKEN, REGISTER, CALLBACK, "/.well-known/")
_CHALLENGE = b"www-authenticate"
_VALIDATORS = frozenset({b"etag", b"last-modified", b"content-encoding"})
_CONDITIONS = frozenset({b"if-none-match", b"if-modified-since"})
_PREFLIGHT = (
    ("access-control-allow-methods", "GET, POST, OPTIONS"),
    ("access-control-allow-headers", "authorization, content-type, mcp-protocol-version"),
)


def open_logins(site: Site, make_tls: MakeTls) -> None:
    """Let clients log in through a site, unless it has a login of its own."""
    config = site.listener.config
    has_own = site.login is not None or any(
        is_credential(name.lower().encode()) for name, _ in config.upstream_headers
    )
    if has_own:
        site.rewrite_head = _hide_where_to_log_in
    elif config.login_through != "off":
        logins = LoginsThrough(site, make_tls)
        site.is_visit = is_visit
        site.may_be_login, site.before_judging = logins.may_concern, logins.before_judging
        site.rewrite_head = logins.rewrite_head
        site.rewrite_body = logins.rewrite_body


def is_visit(exchange: Exchange) -> bool:
    """Tell whether a browser comes from or goes to a login, so that other sites may lead it
    here."""
    message = exchange.head
    path = message.target.partition("?")[0]
    return (
        message.method == "GET"
        and (path == AUTHORIZE or path.startswith(CALLBACK))
        and _all(message.fields, b"sec-fetch-mode") == ["navigate"]
        and _all(message.fields, b"sec-fetch-dest") == ["document"]
    )


class LoginsThrough:
    """The logins through one site. Its methods are the engine's hooks."""

    def __init__(self, site: Site, make_tls: MakeTls) -> None:
        self._site, self._listener, self._make_tls = site, site.listener, make_tls
        self._begun: Through | None = None
        """Set once a client may have started a login. Until then, no document has to be
        rewritten."""

    def may_concern(self, target: str) -> bool:
        """Tell whether a request for this may be part of a login."""
        if target.startswith(_USUAL) or "/.well-known/" in target:
            return True
        return self._begun is not None and self._begun.is_resource_document(target)

    def before_judging(self, exchange: Exchange, go_on: Callable[[], None]) -> None:
        """Answer a request that is part of a login; let all others pass."""
        head, through = head_of(exchange), self._through()
        if not through.concerns(head) or problem_in_size(head) or problem_in_fields(head):
            return go_on()
        return in_background(finish(exchange, self._answer(exchange, through, go_on)))

    def rewrite_head(self, exchange: Exchange) -> None:
        """Make the challenges of an answer name us."""
        answer = exchange.answer
        if answer is None or answer.status not in (401, 403):
            return
        challenges = _all(answer.fields, _CHALLENGE)
        if not challenges and answer.status == 403:
            return
        through = self._through()
        if self._listener.takes_headers(exchange.head.target):
            through.note_challenges(challenges)
        if challenges:
            named = iter(through.rewrite_challenges(challenges, _our_origin(exchange)))
            answer.fields = tuple(
                (name, next(named).encode("latin-1")) if name.lower() == _CHALLENGE else (name, one)
                for name, one in answer.fields
            )

    def rewrite_body(self, exchange: Exchange) -> None:
        """Make protected-resource metadata name us."""
        answer, through, target = exchange.answer, self._begun, exchange.head.target
        if answer is None or through is None or not 200 <= answer.status < 300:
            return
        if exchange.head.method == "HEAD" or not through.is_resource_document(target):
            return
        limit = self._listener.config.limits.message
        document = decode_body(answer.body, answer.get(b"content-encoding"), limit=limit)
        rewritten = through.rewrite_document(document, _our_origin(exchange))
        if rewritten is not None:
            answer.fields = _without(answer.fields, _VALIDATORS)
            answer.body = rewritten

    async def _answer(
        self, exchange: Exchange, through: Through, go_on: Callable[[], None]
    ) -> None:
        head, raw = head_of(exchange), exchange.body
        if through.is_resource_document(head.target):
            _change(exchange, fields=_without(head.headers, _CONDITIONS))
        coding = head.get(b"content-encoding") or ""
        body = decode_body(raw, coding, limit=self._listener.config.limits.message)
        if head.method == "OPTIONS":
            is_ours = not through.is_resource_document(head.target) and await through.find()
            if is_ours and not exchange.is_over:
                from mcp_tool_filter.adapters.oauth.through import LoginAnswer

                _reply(exchange, LoginAnswer(204, headers=_PREFLIGHT), head)
                return
        elif (said := await through.answer(head, body, _our_origin(exchange))) is not None:
            if not exchange.is_over:
                _reply(exchange, said, head)
            return
        if exchange.is_over:
            return
        if not coding:
            changed = through.translated(head, raw, _our_origin(exchange))
            if changed is not None:
                _change(exchange, target=changed[0])
                exchange.body = changed[1]
        go_on()

    def _open_web(self) -> Web:
        """Return an HTTP client configured like the one for the upstream; only https gets our
        certificate."""
        from mcp_tool_filter.adapters.oauth.web import Web

        tls = self._site.target.tls or self._make_tls()
        return Web(self._listener.upstream, tls=tls, is_for_clients=True)

    def _through(self) -> Through:
        if self._begun is None:
            from mcp_tool_filter.adapters.oauth.through import Through

            listener = self._listener
            self._begun = Through(
                listener,
                self._open_web,
                is_plain=listener.config.login_through == "plain",
                kept=_open_registrations(listener.upstream),
            )
        return self._begun


def _hide_where_to_log_in(exchange: Exchange) -> None:
    """The clients of a site with a login must not learn where to log in without us."""
    answer = exchange.answer
    if answer is not None and answer.status in (401, 403):
        answer.fields = tuple(
            (name, without_metadata_urls(value.decode("latin-1")).encode("latin-1"))
            if name.lower() == _CHALLENGE
            else (name, value)
            for name, value in answer.fields
        )


def _open_registrations(upstream: str) -> KeptRegistrations | None:
    from mcp_tool_filter.adapters.oauth.store import KeptRegistrations
    from mcp_tool_filter.adapters.upstream.target import registrations_folder

    try:
        return KeptRegistrations(registrations_folder(os.environ), upstream)
    except RuntimeError:  # the user has no home folder
        return None


def _our_origin(exchange: Exchange) -> str:
    """Return our origin as the client calls us: by its Host header, which the gate has admitted."""
    hosts = _all(exchange.head.fields, b"host")
    if len(hosts) != 1:
        raise ProtocolError("a request that names no host")
    return f"{'https' if exchange.down.host.is_tls else 'http'}://{hosts[0]}"


def _reply(exchange: Exchange, said: LoginAnswer, head: Head) -> None:
    """Answer so that the requesting page may read it: the gate has admitted it."""
    fields = [(name.encode(), value.encode()) for name, value in said.headers]
    if origin := head.get(b"origin"):
        allowed = (b"access-control-allow-origin", origin.encode("latin-1"))
        fields += [allowed, (b"vary", b"Origin")]
    kinds = [value.decode() for name, value in fields if name == b"content-type"]
    answered = Answered(said.status, said.body, content_type=kinds[0] if kinds else JSON)
    others = tuple(one for one in fields if one[0] != b"content-type")
    exchange.reply(answered, with_cors=False, fields=others)


def _change(exchange: Exchange, *, target: str | None = None, fields: Fields | None = None) -> None:
    """Change the head of a request; what was decided on the old one is forgotten."""
    head = exchange.head
    exchange.head = replace(
        head,
        target=head.target if target is None else target,
        fields=head.fields if fields is None else fields,
        notes=RequestNotes(),
    )


def _all(fields: Fields, name: bytes) -> list[str]:
    return [value.decode("latin-1") for one, value in fields if one.lower() == name]


def _without(fields: Fields, names: frozenset[bytes]) -> Fields:
    return tuple(one for one in fields if one[0].lower() not in names)
