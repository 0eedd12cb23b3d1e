"""Logins: send the token of a stored one with requests, or let clients log in through us.

A stored login's token goes with requests that have no credentials. If the upstream does not accept
it, we renew it and send the request once more; the upstream's challenge never reaches a client,
which would otherwise log in past us.

Where there is none, ``rooms/logins/through`` answers what belongs to a client's login. Its
imports are late: only logins need them.
"""

from __future__ import annotations

import logging
import os
import re
import ssl
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from mcp_tool_filter.core.engine.exchange import Exchange
from mcp_tool_filter.core.engine.steps import Answer
from mcp_tool_filter.core.errors import ProtocolError, StartError
from mcp_tool_filter.core.http.asked import Answered
from mcp_tool_filter.core.http.bodies import decode_body
from mcp_tool_filter.core.http.head import (
    Head,
    RequestNotes,
    is_credential,
    problem_in_fields,
    problem_in_size,
)
from mcp_tool_filter.core.messages.messages import NOT_LOGGED_IN, render_batch, render_error
from mcp_tool_filter.core.messages.sizes import HEAD
from mcp_tool_filter.core.policy.verdict import Reason, Reply, Why
from mcp_tool_filter.core.process.background import in_background
from mcp_tool_filter.core.process.plugs import Plug
from mcp_tool_filter.core.process.site import Site, head_of
from mcp_tool_filter.core.sockets.client import Login
from mcp_tool_filter.core.upstream.target import Target, login_to
from mcp_tool_filter.rooms.logins.logins_through import CALLBACK, without_metadata_urls
from mcp_tool_filter.rooms.logins.metadata import (
    AUTHORIZE,
    REGISTER,
    TOKEN,
    LoginPaths,
)
from mcp_tool_filter.rooms.logins.stored import STORED, fetch_login_documents, registrations_folder

if TYPE_CHECKING:
    from mcp_tool_filter.rooms.logins.discovery import Web
    from mcp_tool_filter.rooms.logins.store import KeptRegistrations
    from mcp_tool_filter.rooms.logins.through import LoginAnswer, Through

log = logging.getLogger(__name__)

_AUTHORIZATION = b"authorization"


@dataclass(slots=True)
class _Sent:
    """The token with which a request was sent."""

    value: str = ""
    was_repeated: bool = False


class OwnLogin:
    """The stored login of one upstream. Its methods are the engine's hooks."""

    def __init__(self, login: Login, site: Site) -> None:
        self._login = login
        self._site = site
        self._listener = site.listener
        self._sent: WeakKeyDictionary[Exchange, _Sent] = WeakKeyDictionary()
        self._last_warning = ""

    def before_sending(self, exchange: Exchange, go_on: Callable[[], None]) -> None:
        """Add the token, once we have one, to a request that gets it."""
        if exchange in self._sent:  # sent again, with the token of its renewal
            return go_on()
        assert exchange.asked
        if self._site.login_for(exchange.asked.head) is None:
            return go_on()
        try:
            value = self._login.value()
        except StartError as error:
            return self._answer_without(exchange, error)
        if value is not None:
            return self._send(exchange, value, go_on)
        return _wait(exchange, self._send_renewed(exchange, self._login.renewed(), go_on))

    def before_answering(self, exchange: Exchange, send_again: Callable[[], None]) -> bool:
        """Keep a refusal of our token from the client, and send the request again with another
        one. False: the client gets the answer."""
        sent, answer = self._sent.get(exchange), exchange.answer
        if sent is None or answer is None or answer.status not in (401, 403):
            return False
        was_repeated, sent.was_repeated = sent.was_repeated, True
        challenges = _all(answer.fields, _CHALLENGE)
        value = self._login.after_refusal(
            answer.status, challenges, sent.value, was_repeated=was_repeated
        )
        _wait(exchange, self._send_renewed(exchange, value, send_again))
        return True

    async def _send_renewed(
        self, exchange: Exchange, value: Awaitable[str], go_on: Callable[[], None]
    ) -> None:
        try:
            renewed = await value
        except StartError as error:
            self._answer_without(exchange, error)
        else:
            if not exchange.is_over:
                self._send(exchange, renewed, go_on)

    def _send(self, exchange: Exchange, value: str, go_on: Callable[[], None]) -> None:
        self._sent.setdefault(exchange, _Sent()).value = value
        kept = [field for field in exchange.out_fields if field[0].lower() != _AUTHORIZATION]
        exchange.out_fields = (*kept, (_AUTHORIZATION, value.encode()))
        exchange.out_head = None  # nobody else gets it
        go_on()

    def _answer_without(self, exchange: Exchange, error: StartError) -> None:
        """Tell a client in one sentence why its request failed."""
        if exchange.is_over:
            return
        sentence = error.one_line
        if sentence != self._last_warning:
            self._last_warning = sentence
            log.warning("%s", sentence)
        exchange.reply(self._answer_saying(exchange, sentence))

    def _answer_saying(self, exchange: Exchange, sentence: str) -> Answered:
        asked, listener = exchange.asked, self._listener
        assert asked
        reply = render_error(None, NOT_LOGGED_IN, sentence)
        listener.tell_refused(Reply(reply, Reason(Why.FORBIDDEN, detail="login")), exchange)
        if asked.is_legacy and (stream := listener.legacy.stream_of(asked.head.target)):
            stream.fail(exchange.body, NOT_LOGGED_IN, sentence)
            return Answered(202)
        ids = asked.conversation.exchanges.take_all()
        replies = [*(render_error(id, NOT_LOGGED_IN, sentence) for id in ids), *asked.owed]
        if not replies:
            return Answered(502, reply)
        return Answered(200, replies[0] if len(replies) == 1 else render_batch(replies))


def _wait(exchange: Exchange, work: Coroutine[None, None, None]) -> None:
    """Run what an exchange waits for; an error in it refuses the exchange."""

    async def finish() -> None:
        try:
            await work
        except Exception as error:
            if not exchange.is_over:
                exchange.fail(error)
        exchange.down.host.wake()

    in_background(finish())


# Of clients, through us

type Fields = tuple[tuple[bytes, bytes], ...]
type MakeTls = Callable[[], ssl.SSLContext]

_PATHS = "|".join(map(re.escape, (AUTHORIZE, TOKEN, REGISTER, CALLBACK)))
_MAY_BE_LOGIN = re.compile(_PATHS + r"|.*/\.well-known/", re.DOTALL).match
_CHALLENGE = b"www-authenticate"
_VALIDATORS = frozenset({b"etag", b"last-modified", b"content-encoding"})
_CONDITIONS = frozenset({b"if-none-match", b"if-modified-since"})
_PREFLIGHT = (
    ("access-control-allow-methods", "GET, POST, OPTIONS"),
    ("access-control-allow-headers", "authorization, content-type, mcp-protocol-version"),
)


class Logins(Plug):
    """The logins of all sites: that of this user, or those of clients through us."""

    def reach(self, target: Target) -> Target:
        return replace(target, logins=STORED)

    def attach(self, site: Site) -> None:
        site.listener.logins = LoginPaths(site.listener.upstream)

    async def open(self, site: Site) -> None:
        if self.proxy.command is None:
            site.login = login_to(site.target)
            await open_logins(site, self.proxy.around.make_tls)


async def open_logins(site: Site, make_tls: MakeTls) -> None:
    """Use the stored login of a site; without any of ours, let clients log in through it."""
    config = site.listener.config
    if site.login is not None:
        own = OwnLogin(site.login, site)
        site.before_sending, site.before_answering = own.before_sending, own.before_answering
    if config.only_mcp:
        for document in await fetch_login_documents(site.target, site.listener.fetched.endpoint):
            site.listener.logins.learn_document(document)
    has_own = site.login is not None or any(
        is_credential(name.lower().encode()) for name, _ in config.upstream_headers
    )
    if has_own:
        site.rewrite_refusal = _hide_where_to_log_in
    elif config.login_through != "off":
        logins = LoginsThrough(site, make_tls)
        site.is_visit = is_visit
        site.may_be_login, site.before_judging = _MAY_BE_LOGIN, logins.before_judging
        site.rewrite_refusal = logins.rewrite_refusal


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
        """Set once a client may have started a login; from then on, documents are rewritten."""

    def may_concern(self, target: str) -> bool:
        """Tell whether a request for this may be part of a login that has begun."""
        through = self._through()
        return _MAY_BE_LOGIN(target) is not None or through.is_resource_document(target)

    def before_judging(self, exchange: Exchange, go_on: Callable[[], None]) -> None:
        """Answer a request that is part of a login; let all others pass."""
        head, through = head_of(exchange), self._through()
        if not through.concerns(head) or problem_in_size(head) or problem_in_fields(head):
            return go_on()
        return _wait(exchange, self._answer(exchange, through, go_on))

    def rewrite_refusal(self, exchange: Exchange) -> None:
        """Make the challenges of an answer name us."""
        answer = exchange.answer
        assert answer
        challenges = _all(answer.fields, _CHALLENGE)
        if not challenges and answer.status == 403:
            return
        through = self._through()
        if self._listener.takes_headers(exchange.head.target):
            through.note_challenges(challenges)
        if challenges:
            ours = our_address(exchange)
            _rewrite_challenges(answer, lambda one: through.rewrite_challenge(one, ours))

    def rewrite_body(self, exchange: Exchange) -> None:
        """Make protected-resource metadata name us."""
        answer, through, target = exchange.answer, self._through(), exchange.head.target
        if answer is None or not 200 <= answer.status < 300:
            return
        if exchange.head.method == "HEAD" or not through.is_resource_document(target):
            return
        coding = answer.get(b"content-encoding")
        document = decode_body(answer.body, coding, limit=HEAD)
        rewritten = through.rewrite_document(document, our_address(exchange))
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
                from mcp_tool_filter.rooms.logins.through import LoginAnswer

                _reply(exchange, LoginAnswer(204, headers=_PREFLIGHT), head)
                return
        elif (said := await through.answer(head, body, our_address(exchange))) is not None:
            if not exchange.is_over:
                _reply(exchange, said, head)
            return
        if exchange.is_over:
            return
        if not coding:
            changed = through.translated(head, raw, our_address(exchange))
            if changed is not None:
                _change(exchange, target=changed[0])
                exchange.body = changed[1]
        go_on()

    def _open_web(self) -> Web:
        """Return an HTTP client configured like the one for the upstream; only https gets our
        certificate."""
        from mcp_tool_filter.rooms.logins.discovery import Web

        tls = self._site.target.tls or self._make_tls()
        return Web(self._listener.upstream, tls=tls, is_for_clients=True)

    def _through(self) -> Through:
        if self._begun is None:
            from mcp_tool_filter.rooms.logins.through import Through

            listener = self._listener
            self._begun = Through(
                listener,
                self._open_web,
                is_plain=listener.config.login_through == "plain",
                kept=_open_registrations(listener.upstream),
            )
            self._site.rewrite_body = self.rewrite_body
            self._site.may_be_login = self.may_concern
        return self._begun


def _hide_where_to_log_in(exchange: Exchange) -> None:
    """The clients of a site with a login must not learn where to log in without us."""
    assert exchange.answer
    _rewrite_challenges(exchange.answer, without_metadata_urls)


def _rewrite_challenges(answer: Answer, rewrite: Callable[[str], str]) -> None:
    answer.fields = tuple(
        (name, rewrite(value.decode("latin-1")).encode("latin-1"))
        if name.lower() == _CHALLENGE
        else (name, value)
        for name, value in answer.fields
    )


def _open_registrations(upstream: str) -> KeptRegistrations | None:
    from mcp_tool_filter.rooms.logins.store import KeptRegistrations

    try:
        return KeptRegistrations(registrations_folder(os.environ), upstream)
    except RuntimeError:  # the user has no home folder
        return None


def _reply(exchange: Exchange, said: LoginAnswer, head: Head) -> None:
    """Answer so that the requesting page may read it: the gate has admitted it."""
    fields = [(name.encode(), value.encode()) for name, value in said.headers]
    if origin := head.get(b"origin"):
        allowed = (b"access-control-allow-origin", origin.encode("latin-1"))
        fields += [allowed, (b"vary", b"Origin")]
    exchange.reply(Answered(said.status, said.body), with_cors=False, fields=tuple(fields))


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
    return tuple(field for field in fields if field[0].lower() not in names)


def our_address(exchange: Exchange) -> str:
    """Return our address as the client calls us: by its Host header, which the gate has admitted,
    and with the server's prefix if we serve several.

    A balancer in front of us may do TLS. We believe the user, who allows an https origin, and no
    header that anybody can send.
    """
    hosts = [value for name, value in exchange.head.fields if name.lower() == b"host"]
    if len(hosts) != 1:
        raise ProtocolError("a request that names no host")
    host, listener = hosts[0].decode("latin-1"), exchange.service.listener
    is_tls = exchange.down.host.is_tls or listener.config.allowed_hosts.has_https(host)
    return f"{'https' if is_tls else 'http'}://{host}{listener.mount.prefix}"
