"""Decide on a client's HTTP request: forward it, or answer it ourselves."""

from __future__ import annotations

import hmac
from functools import partial
from typing import assert_never

from mcp_tool_filter.conversation.conversation import Conversation
from mcp_tool_filter.conversation.judged import Judged
from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.http.codings import decode_body, looks_like_json
from mcp_tool_filter.http.cors import page_of
from mcp_tool_filter.http.exchange import Answered, HttpExchange, Passed, refused
from mcp_tool_filter.http.head import (
    WITHOUT_BODY,
    Head,
    headers_after,
    problem_in_body,
)
from mcp_tool_filter.http.identity import asker_in, credentials_in, identity_in, is_like_the_fetch
from mcp_tool_filter.http.legacy import LegacyStream
from mcp_tool_filter.http.mirrored import param_headers_after
from mcp_tool_filter.http.one_upstream import OneUpstream
from mcp_tool_filter.policy.effects import Decision, then
from mcp_tool_filter.policy.exchange import Client, Session, Via
from mcp_tool_filter.policy.verdict import Drop, Forward, Reason, Reply, Rewrite, Verdict, Why
from mcp_tool_filter.protocol.limits import OverLimit, Transport
from mcp_tool_filter.protocol.messages import INVALID_REQUEST, ids_in, parse_message, render_error
from mcp_tool_filter.protocol.sse import render_event

NOT_SERVED = render_error(None, INVALID_REQUEST, "Not found: only the MCP endpoint is served here")
_STATUS = {
    Why.MALFORMED: 400,
    Why.MISMATCH: 400,
    Why.FORBIDDEN: 403,
}

type Outcome = Passed | Answered


class JudgesRequests(OneUpstream):
    """Decides on each request before the upstream sees any of it."""

    __slots__ = ()

    def judge_request(self, head: Head, raw: bytes, origin: object = None) -> Decision[Outcome]:
        """Decide on a request before the upstream sees any of it.

        ``origin`` is the host's own object.
        """
        if problem := head.problem:
            detail, is_oversized = problem
            why = Why.OVERSIZED if is_oversized else Why.MALFORMED
            return self._refuse(detail, origin, why=why)
        config = self.policy.config
        if config.only_mcp and not self.serves(head.method, head.target):
            self.tell_refused(Reply(NOT_SERVED, Reason(Why.FORBIDDEN, detail="path")), origin)
            return Answered(404, NOT_SERVED)
        limit = config.limits.message
        try:
            if len(raw) > limit:
                raise OverLimit(f"more than {limit} bytes")
            coding = head.said.coding
            body = decode_body(raw, coding, limit=limit) if coding else raw
        except OverLimit as error:
            exchange = self._exchange_for(head)
            too_large = exchange.conversation.oversized_from_client(raw, str(error), origin)
            return self._carry_out(exchange, raw, raw, too_large)
        except ProtocolError as error:
            return self._refuse(str(error), origin)
        if not body or head.method in WITHOUT_BODY:
            return self._judge_without_message(head, raw, origin)
        exchange = self._exchange_for(head)
        judged = exchange.conversation.from_client(body, origin, exchange)
        if isinstance(judged, Judged):
            return self._carry_out(exchange, raw, body, judged)
        return then(judged, partial(self._carry_out, exchange, raw, body))

    def _judge_without_message(self, head: Head, raw: bytes, origin: object) -> Outcome:
        is_endpoint = self._is_endpoint(head.target)
        if why := problem_in_body(head, raw, is_endpoint=is_endpoint, limits=self.config.limits):
            return self._refuse(why, origin, raw)
        client = self._client_of(head)
        exchange = HttpExchange(Conversation(self.policy, client), head, is_endpoint)
        self._note_asker(exchange, client.session)
        return Passed(exchange)

    def _carry_out(
        self, exchange: HttpExchange, raw: bytes, body: bytes, judged: Judged
    ) -> Outcome:
        endpoints = self.legacy.endpoints
        stream = self.legacy.stream_of(exchange.head.target) if endpoints else None
        match judged.verdict:
            case Forward():
                return Passed(exchange, body if body is not raw and looks_like_json(raw) else None)
            case Rewrite(text, _, owed):
                exchange.owed = self._pay(stream, owed)
                return Passed(exchange, text, self._headers_after(exchange.head, text, judged))
            case Reply(text, reason):
                if reason.why is Why.OVERSIZED and not ids_in(text):
                    return Answered(413, text)
                status = _STATUS.get(reason.why, 200)
                return Answered(status, text, stream if status == 200 else None)
            case Drop():
                return Answered(202)
            case unexpected:
                assert_never(unexpected)

    def _headers_after(
        self, head: Head, text: bytes, judged: Judged
    ) -> tuple[tuple[str, str | None], ...]:
        """Return the headers that must change to agree with a rewritten body."""
        changed = headers_after(head, text, self.config.limits)
        params = {
            name.decode().lower(): value.decode("latin-1")
            for name, value in head.headers
            if name.lower().startswith(b"mcp-param-")
        }
        message = parse_message(text, self.config.limits)
        return (*changed, *param_headers_after(params, message, judged.snapshot.allowed))

    def _exchange_for(self, head: Head) -> HttpExchange:
        """Return an exchange with what we know about the client."""
        policy, said, target = self.policy, head.said, head.target
        is_legacy = target in self.legacy.endpoints
        is_endpoint = is_legacy or target == policy.fetched.endpoint
        stream = self.legacy.stream_of(target) if is_legacy else None
        if stream is not None:
            conversation = stream.conversation
        else:
            conversation = Conversation(policy, self._client_of(head))
        exchange = HttpExchange(conversation, head, is_endpoint, (), is_legacy)
        if stream is not None:
            exchange.page = stream.page
        exchange.announces = said.method is not None or said.name is not None
        client = conversation.client
        is_unknown = client.session is None and client.claimed_session
        if not (is_endpoint and head.names.are_harmless) or self.keeps_host or is_unknown:
            self._note_asker(exchange, client.session)
        return exchange

    def _client_of(self, head: Head) -> Client:
        """Return the client of a request, with its session if we know it."""
        said = head.said
        id = said.session_id or None
        session = self.sessions.get(id, self.policy.clock()) if id else None
        client = Client(Via.HTTP, session, None if session else said.revision, claimed_session=id)
        if self.policy.links:
            self._describe(client, head)
        return client

    def _describe(self, client: Client, head: Head) -> None:
        """Add what only links need: the client's credentials and address."""
        client.identity = credentials_in(head)
        client.asker = partial(asker_in, head)
        client.address = head.address
        client.upstream_has_sessions = self.fetched.sessions

    def _note_asker(self, exchange: HttpExchange, session: Session | None) -> None:
        """Note whether the upstream can distinguish the client from us; a session keeps this.

        A session that we do not know (we were restarted, or have forgotten it) is an asker of its
        own: we cannot tell what list its client got.
        """
        config, head = self.policy.config, exchange.head
        replaced = config.header_names if config.header_override else frozenset()
        known = False
        if b"origin" in head.names.places:
            page = page_of(head.get(b"origin"), head.target, has_cookie=False)
            known = page is not None and self.cors.is_allowed(page)
        is_like = is_like_the_fetch(head, replaced=replaced, known_origin=known)
        is_elsewhere = self._is_elsewhere(head)
        exchange.is_like_the_fetch = is_like and not self.keeps_host and not is_elsewhere
        if session and not exchange.is_like_the_fetch:
            session.is_like_the_fetch = False
        client = exchange.conversation.client
        identity = b""
        if not exchange.is_like_the_fetch:
            identity = identity_in(head, head.target if is_elsewhere else "")
            if self.keeps_host:
                identity += b"\nhost:" + (head.get(b"host") or "").encode("latin-1")
        if client.session is None and client.claimed_session:
            identity += b"\nsession:" + client.claimed_session.encode("latin-1")
        client.credential = self._hash_of(identity) if identity else ""

    def _is_elsewhere(self, head: Head) -> bool:
        """Tell whether the URL could make the upstream list other tools.

        Some upstreams identify users by the URL; some have several servers, each at its own path.
        But the older transport never has the same path as the newer one.
        """
        fetched, target = self.policy.fetched, head.target
        if self._is_endpoint(target):
            return False
        is_newer = fetched.transport is not Transport.LEGACY_SSE
        return not (is_newer and head.method == "GET" and "?" not in target)

    def _hash_of(self, identity: bytes) -> str:
        """Hash the asker's identity, so that credentials do not stay in our memory."""
        return hmac.digest(self._hash_key, identity, "sha256")[:16].hex()

    def _pay(self, stream: LegacyStream | None, owed: tuple[bytes, ...]) -> tuple[bytes, ...]:
        """Send the owed replies on the client's stream, if it has one; return those still owed."""
        if stream is None:
            return owed
        for reply in owed:
            stream.send(render_event(reply))
        return ()

    def tell_refused(self, verdict: Verdict, origin: object = None) -> None:
        """Tell the observers about a request that was refused by its head."""
        Conversation(self.policy).refuse_from_client(verdict, 0, origin)

    def _refuse(
        self, detail: str, origin: object, body: bytes = b"", why: Why = Why.MALFORMED
    ) -> Answered:
        reply = refused(body, why, detail, self.config.limits)
        self.tell_refused(reply, origin)
        return Answered(431 if why is Why.OVERSIZED else _STATUS[why], reply.text)
