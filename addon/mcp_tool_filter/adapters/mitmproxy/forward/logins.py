"""Send the token of a stored login with requests that have no credentials.

The token goes only to the upstream: it is never part of a flow, which mitmweb shows and ``-w``
writes. If the upstream does not accept it, we renew it and send the request once more; the
upstream's challenge never reaches a client, which would otherwise log in past us.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from weakref import WeakKeyDictionary

from mitmproxy.http import HTTPFlow, Response

from mcp_tool_filter.adapters.fetch.target import Target, login_to
from mcp_tool_filter.adapters.mitmproxy.forward.hidden import real_request
from mcp_tool_filter.adapters.mitmproxy.forward.streams import add_secretly
from mcp_tool_filter.adapters.sockets.client import Login
from mcp_tool_filter.errors import StartError
from mcp_tool_filter.http.exchange import Answered, HttpExchange
from mcp_tool_filter.http.head import Head
from mcp_tool_filter.http.listener import Listener
from mcp_tool_filter.policy.verdict import Reason, Reply, Why
from mcp_tool_filter.protocol.messages import NOT_LOGGED_IN, ids_in, render_batch, render_error
from mcp_tool_filter.protocol.sse import render_event

log = logging.getLogger(__name__)

_AUTHORIZATION = "authorization"


@dataclass(slots=True)
class Sent:
    """The login with which a request was sent."""

    login: Login
    value: str = ""
    is_refused: bool = False
    was_repeated: bool = False


class Logins:
    """The login of each listener that has one."""

    def __init__(self) -> None:
        self._by_mode: dict[str, Login] = {}
        self.is_on = False
        """True if there is a login.

        If not, callers may skip the calls for each request and answer.
        """
        self._sent: WeakKeyDictionary[HTTPFlow, Sent] = WeakKeyDictionary()
        self._last_warning = ""

    def open(self, spec: str, target: Target) -> bool:
        """Look for the login of a listener's upstream; return whether there is one.

        Raises StartError.
        """
        login = login_to(target)
        if login is not None:
            self._by_mode[spec] = login
            self.is_on = True
        return login is not None

    def of_mode(self, spec: str) -> Login | None:
        return self._by_mode.get(spec)

    def needed_for(self, flow: HTTPFlow, listener: Listener, head: Head) -> Sent | None:
        """Return the login record for a request; None if it gets no login."""
        if (login := self.login_for(flow, listener, head)) is None:
            return None
        sent = self._sent[flow] = Sent(login)
        return sent

    def login_for(self, flow: HTTPFlow, listener: Listener, head: Head) -> Login | None:
        """Return the login for a request, or for our own message that belongs to it."""
        login = self._by_mode.get(flow.client_conn.proxy_mode.full_spec)
        if (
            login is None
            or not listener.config.uses_login
            or not listener.takes_headers(head.target)
            or head.credentials
            or _AUTHORIZATION in flow.request.headers  # the operator's own, from upstream_headers
        ):
            return None
        return login

    def warn_once(self, text: str) -> None:
        """Log a problem with a login, unless it is the same as the last one."""
        if text != self._last_warning:
            self._last_warning = text
            log.warning("%s", text)

    def add(self, flow: HTTPFlow, sent: Sent, value: str) -> None:
        """Send the request with this token."""
        sent.value = value
        add_secretly(flow, _AUTHORIZATION, value)

    def note_refusal(self, flow: HTTPFlow, response: Response) -> bool:
        """Note and return whether the upstream has refused our token; the client must not see that
        answer."""
        sent = self._sent.get(flow)
        if sent is None or not sent.value or response.status_code not in (401, 403):
            return False
        sent.is_refused = True
        return True

    def take_refused(self, flow: HTTPFlow) -> Sent | None:
        """Return the login record of a refused request, once."""
        sent = self._sent.get(flow)
        if sent is None or not sent.is_refused:
            return None
        sent.is_refused = False
        return sent


async def renew(sent: Sent, response: Response) -> str:
    """Return a new token for a request that was refused. Raises StartError."""
    was_repeated, sent.was_repeated = sent.was_repeated, True
    return await sent.login.after_refusal(
        response.status_code,
        response.headers.get_all("www-authenticate"),
        sent.value,
        was_repeated=was_repeated,
    )


def answer_without_login(
    flow: HTTPFlow, listener: Listener, exchange: HttpExchange, error: StartError
) -> Answered:
    """Return an answer that tells a client in one sentence why its request failed."""
    sentence = f"{error.what}. {error.why}"
    reply = render_error(None, NOT_LOGGED_IN, sentence)
    listener.tell_refused(Reply(reply, Reason(Why.FORBIDDEN, detail="login")), flow)
    if exchange.is_legacy and (stream := listener.legacy.stream_of(real_request(flow).path)):
        ids = stream.conversation.exchanges.take(ids_in(flow.request.raw_content or b""))
        for id in ids:
            stream.send(render_event(render_error(id, NOT_LOGGED_IN, sentence)))
        return Answered(202)
    ids = exchange.conversation.exchanges.take_all()
    replies = [*(render_error(id, NOT_LOGGED_IN, sentence) for id in ids), *exchange.owed]
    if not replies:
        return Answered(502, reply)
    return Answered(200, replies[0] if len(replies) == 1 else render_batch(replies))
