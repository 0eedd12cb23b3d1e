"""Send the token of a stored login with requests that have no credentials.

If the upstream does not accept it, we renew it and send the request once more; the upstream's
challenge never reaches a client, which would otherwise log in past us.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from mcp_tool_filter.adapters.background import in_background
from mcp_tool_filter.adapters.sockets.client import Login
from mcp_tool_filter.engine.exchange import Answer, Exchange
from mcp_tool_filter.errors import StartError
from mcp_tool_filter.http.exchange import Answered
from mcp_tool_filter.http.head import Head
from mcp_tool_filter.http.listener import Listener
from mcp_tool_filter.policy.verdict import Reason, Reply, Why
from mcp_tool_filter.protocol.messages import NOT_LOGGED_IN, ids_in, render_batch, render_error
from mcp_tool_filter.protocol.sse import render_event

log = logging.getLogger(__name__)

_AUTHORIZATION = b"authorization"


def login_for(login: Login | None, listener: Listener, head: Head) -> Login | None:
    """Return the login for a request, or for our own message that belongs to it."""
    if (
        login is None
        or not listener.config.uses_login
        or head.credentials
        or not listener.takes_headers(head.target)
        or any(name.lower() == "authorization" for name, _ in listener.headers_for(head))
    ):
        return None
    return login


@dataclass(slots=True)
class _Sent:
    """The token with which a request was sent."""

    value: str
    was_repeated: bool = False


class OwnLogin:
    """The stored login of one upstream. Its methods are the engine's hooks."""

    def __init__(self, login: Login, listener: Listener) -> None:
        self._login = login
        self._listener = listener
        self._sent: WeakKeyDictionary[Exchange, _Sent] = WeakKeyDictionary()
        self._last_warning = ""

    def before_sending(self, exchange: Exchange, go_on: Callable[[], None]) -> None:
        """Add the token, once we have one, to a request that gets it."""
        if exchange in self._sent:  # sent again, with the token of its renewal
            return go_on()
        assert exchange.asked
        if login_for(self._login, self._listener, exchange.asked.head) is None:
            return go_on()
        try:
            value = self._login.value()
        except StartError as error:
            return self._answer_without(exchange, error)
        if value is not None:
            return self._send(exchange, value, go_on)
        return _wait(exchange, self._send_renewed(exchange, go_on))

    def before_answering(self, exchange: Exchange, send_again: Callable[[], None]) -> bool:
        """Keep a refusal of our token from the client, and send the request again with another
        one. False: the client gets the answer."""
        sent, answer = self._sent.get(exchange), exchange.answer
        if sent is None or answer is None or answer.status not in (401, 403):
            return False
        _wait(exchange, self._renew(exchange, sent, answer, send_again))
        return True

    async def _send_renewed(self, exchange: Exchange, go_on: Callable[[], None]) -> None:
        try:
            value = await self._login.renewed()
        except StartError as error:
            self._answer_without(exchange, error)
        else:
            if not exchange.is_over:
                self._send(exchange, value, go_on)

    async def _renew(
        self, exchange: Exchange, sent: _Sent, answer: Answer, send_again: Callable[[], None]
    ) -> None:
        was_repeated, sent.was_repeated = sent.was_repeated, True
        challenges = [
            value.decode("latin-1")
            for name, value in answer.fields
            if name.lower() == b"www-authenticate"
        ]
        try:
            value = await self._login.after_refusal(
                answer.status, challenges, sent.value, was_repeated=was_repeated
            )
        except StartError as error:
            self._answer_without(exchange, error)
        else:
            if not exchange.is_over:
                sent.value = value
                exchange.add_field(_AUTHORIZATION, value.encode())
                send_again()

    def _send(self, exchange: Exchange, value: str, go_on: Callable[[], None]) -> None:
        self._sent[exchange] = _Sent(value)
        exchange.add_field(_AUTHORIZATION, value.encode())
        go_on()

    def _answer_without(self, exchange: Exchange, error: StartError) -> None:
        """Tell a client in one sentence why its request failed."""
        if exchange.is_over:
            return
        sentence = f"{error.what}. {error.why}"
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
            for id in stream.conversation.exchanges.take(ids_in(exchange.body)):
                stream.send(render_event(render_error(id, NOT_LOGGED_IN, sentence)))
            return Answered(202)
        ids = asked.conversation.exchanges.take_all()
        replies = [*(render_error(id, NOT_LOGGED_IN, sentence) for id in ids), *asked.owed]
        if not replies:
            return Answered(502, reply)
        return Answered(200, replies[0] if len(replies) == 1 else render_batch(replies))


def _wait(exchange: Exchange, work: Coroutine[None, None, None]) -> None:
    """Run what an exchange waits for; an error in it answers the exchange."""
    in_background(finish(exchange, work))


async def finish(exchange: Exchange, work: Coroutine[None, None, None]) -> None:
    """Await work for an exchange; if it raises, refuse the exchange."""
    try:
        await work
    except Exception as error:
        if not exchange.is_over:
            exchange.fail(error)
    exchange.down.host.wake()
