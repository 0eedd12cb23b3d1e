"""Sends the token of a stored login with requests that bring no credentials of their own.

The token goes to the upstream only: it is never part of a flow, which mitmweb shows and ``-w``
writes. Where the upstream does not accept it, it is renewed, and the request is sent once more;
the upstream's challenge never reaches a client, which would then log in past us.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from mitmproxy.http import HTTPFlow, Response

from mcp_tool_filter.adapters.mitmproxy.streams import add_secretly
from mcp_tool_filter.adapters.oauth.folder import has_logins
from mcp_tool_filter.errors import StartError
from mcp_tool_filter.http.exchange import Answered, HttpExchange
from mcp_tool_filter.http.head import Head
from mcp_tool_filter.http.listener import Listener
from mcp_tool_filter.protocol.messages import ids_in, render_batch, render_error
from mcp_tool_filter.protocol.sse import render_event

if TYPE_CHECKING:
    from mcp_tool_filter.adapters.oauth.credentials import Credentials

log = logging.getLogger(__name__)

NOT_LOGGED_IN = -32010
_AUTHORIZATION = "authorization"


@dataclass(slots=True)
class Sent:
    """What a request was sent with."""

    credentials: Credentials
    value: str = ""
    is_refused: bool = False
    was_repeated: bool = False


class Logins:
    """The login of each listener that has one."""

    def __init__(self) -> None:
        self._by_mode: dict[str, Credentials] = {}
        self._sent: WeakKeyDictionary[HTTPFlow, Sent] = WeakKeyDictionary()
        self._last_warning = ""

    def open(self, spec: str, listener: Listener) -> str | None:
        """Look for the login to a listener's upstream; return its endpoint. Raises StartError."""
        config = listener.config
        if not config.uses_login or not has_logins():
            return None
        from mcp_tool_filter.adapters.oauth.fetching import login_of  # few have a login

        found = login_of(listener.upstream, config.endpoint, config.upstream_headers)
        if found is None:
            return None
        self._by_mode[spec] = found
        return found.endpoint

    def needed_for(self, flow: HTTPFlow, listener: Listener, head: Head) -> Sent | None:
        """Begin to send a request with a login; None if it gets none."""
        if not self._by_mode:
            return None
        credentials = self._by_mode.get(flow.client_conn.proxy_mode.full_spec)
        if (
            credentials is None
            or not listener.config.uses_login
            or not listener.takes_headers(head.target)
            or head.credentials
            or _AUTHORIZATION in flow.request.headers  # the user's own, from upstream_headers
        ):
            return None
        sent = self._sent[flow] = Sent(credentials)
        return sent

    def warn_once(self, text: str) -> None:
        """Log what is wrong with a login, unless that was the last thing that was said of it."""
        if text != self._last_warning:
            self._last_warning = text
            log.warning("%s", text)

    def add(self, flow: HTTPFlow, sent: Sent, value: str) -> None:
        """Send the request with this token."""
        sent.value = value
        add_secretly(flow, _AUTHORIZATION, value)

    def note_refusal(self, flow: HTTPFlow, response: Response) -> bool:
        """Tell whether the upstream has refused our token; its answer is not for the client."""
        sent = self._sent.get(flow)
        if sent is None or not sent.value or response.status_code not in (401, 403):
            return False
        sent.is_refused = True
        return True

    def take_refused(self, flow: HTTPFlow) -> Sent | None:
        """Return what a request was sent with if the upstream has refused it, once."""
        sent = self._sent.get(flow) if self._by_mode else None
        if sent is None or not sent.is_refused:
            return None
        sent.is_refused = False
        return sent


async def renew(sent: Sent, response: Response) -> str:
    """Return another token to send a request with that was refused. Raises StartError."""
    from mcp_tool_filter.adapters.oauth.errors import LoggedOut
    from mcp_tool_filter.adapters.oauth.login import missing_scopes

    challenges = response.headers.get_all("www-authenticate")
    if wanted := missing_scopes(response.status_code, challenges):
        sent.credentials.want_scopes(wanted)
        problem = f"lacks the right to do this ({' '.join(wanted)[:200]})"
        raise LoggedOut(sent.credentials.endpoint, problem)
    if response.status_code == 403:
        raise LoggedOut(sent.credentials.endpoint, "lacks the right to do this")
    if sent.was_repeated:
        raise LoggedOut(sent.credentials.endpoint, "is not accepted")
    sent.was_repeated = True
    return await sent.credentials.renewed(rejected=sent.value)


def answer_without_login(
    flow: HTTPFlow, listener: Listener, exchange: HttpExchange, error: StartError
) -> Answered:
    """Tell a client in one sentence why its request was not sent, or not accepted."""
    sentence = f"{error.what}. {error.why}"
    if exchange.is_legacy and (stream := listener.legacy.stream_of(flow.request.path)):
        ids = stream.conversation.exchanges.take(ids_in(flow.request.raw_content or b""))
        for id in ids:
            stream.send(render_event(render_error(id, NOT_LOGGED_IN, sentence)))
        return Answered(202)
    ids = exchange.conversation.exchanges.take_all()
    replies = [*(render_error(id, NOT_LOGGED_IN, sentence) for id in ids), *exchange.owed]
    if not replies:
        return Answered(502, render_error(None, NOT_LOGGED_IN, sentence))
    return Answered(200, replies[0] if len(replies) == 1 else render_batch(replies))
