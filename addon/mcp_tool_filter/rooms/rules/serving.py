"""The rules of a process: load them from a file, attach them to the sites, send what they order.

The engine forwards the clients' messages. Our own (copies that rules send, and replies to the
upstream's requests) go out on our own connections, with the headers of the request they belong to.

The rule engine is imported only if there is a rules file.
"""

from __future__ import annotations

import asyncio
import shlex
from functools import partial
from typing import TYPE_CHECKING

from mcp_tool_filter.cli.report import lines_about_rules
from mcp_tool_filter.core.engine.exchange import Exchange
from mcp_tool_filter.core.errors import InvalidOption
from mcp_tool_filter.core.http.head import NOT_SENT, headers_after
from mcp_tool_filter.core.messages.messages import parse_message
from mcp_tool_filter.core.policy.situation import Client, Via
from mcp_tool_filter.core.process.plugs import Plug
from mcp_tool_filter.core.process.site import Site, head_of, site_of
from mcp_tool_filter.core.upstream.target import open_client

if TYPE_CHECKING:
    from mcp_tool_filter.core.policy.config import Config
    from mcp_tool_filter.core.process.proxy import Proxy
    from mcp_tool_filter.core.sockets.client import Headers
    from mcp_tool_filter.rooms.rules.copies import Copies
    from mcp_tool_filter.rooms.rules.file import RulesInForce
    from mcp_tool_filter.rooms.rules.rule_effects import SendCopy


# Headers of the client's connection or framing, which differ for our message.
_NOT_COPIED = frozenset({*NOT_SENT, b"content-encoding", b"last-event-id", b"origin"})
_FOR_STRANGERS = frozenset({
    b"content-type", b"accept", b"mcp-protocol-version", b"mcp-method", b"mcp-name",
})  # fmt: skip


class Rules(Plug):
    """The rules of all sites."""

    def __init__(self, proxy: Proxy) -> None:
        super().__init__(proxy)
        self._copies: Copies | None = None
        self._watch: asyncio.Task[None] | None = None
        self.in_force: RulesInForce | None = None

    def adopt(self, config: Config) -> None:
        path = config.rules
        if self.in_force is None:
            if path:
                self._load(path)
        elif not path:
            why = "Rules cannot be removed at run time: set enabled: false in the file"
            raise InvalidOption("rules", path, why=why)
        elif path != self.in_force.path:
            self.in_force.replace_file(path)

    def attach(self, site: Site) -> None:
        """Attach the rules to a site, after its tool filter."""
        if self.in_force:
            policy = site.listener.policy
            upstream, user = site.listener.upstream + site.listener.fetched.endpoint, b""
            if (command := self.proxy.command) is not None:
                from mcp_tool_filter.rooms.rules.credentials import credentials_of_command

                upstream = shlex.join(command.words)
                user = credentials_of_command(command.environment, command.folder)
            link = self.in_force.link(upstream, partial(_operator, site, user))
            policy.links = (*policy.links, link)
            policy.rules_at_work = partial(self.in_force.at_work, link)
            if self._copies:
                policy.answer_upstream = self._answer

    def begin(self) -> None:
        """Start to watch the file."""
        if self.in_force and self._watch is None and not self.proxy.around.is_offline:
            self._watch = asyncio.get_running_loop().create_task(self.in_force.watch())

    def report(self, _site: Site) -> list[str]:
        return lines_about_rules(self.in_force.names) if self.in_force else []

    async def close(self) -> None:
        """End, after the last webhooks have arrived, or after a time limit."""
        if self._watch:
            self._watch.cancel()
        if self._copies:
            self._copies.done()
        if self.in_force:
            await self.in_force.close()

    def _load(self, path: str) -> None:
        from mcp_tool_filter.rooms.rules.copies import Copies
        from mcp_tool_filter.rooms.rules.file import RulesInForce

        if self.proxy.around.is_offline:
            self.in_force = RulesInForce(path, is_offline=True)
        else:
            copies = self._copies = Copies(self._copy_to_upstream)
            self.in_force = RulesInForce(path, self._send_copy, copies=copies.id_prefix)
            self.in_force.host.enter_log = self.proxy.plugs.note
        self.proxy.effects.room_host = self.in_force.host

    def _send_copy(self, effect: SendCopy) -> None:
        """Send a copy of a request; a server other than the upstream gets no credentials of the
        client."""
        exchange = effect.origin
        if self._copies and isinstance(exchange, Exchange):
            text = f"{effect.head}0{effect.tail}".encode()
            self._copies.send(effect, _headers_of(exchange, text, _FOR_STRANGERS))

    def _answer(self, text: bytes, origin: object, client: Client) -> None:
        """Send our reply to a request of the upstream that came on a stream."""
        if not (self._copies and isinstance(origin, Exchange)):
            return
        site, path = site_of(origin), origin.head.target
        if client.via is Via.LEGACY_SSE:
            streams = (
                legacy for legacy in site.listener.legacy if legacy.conversation.client is client
            )
            path = next((stream.target for stream in streams), path)
        self._copies.begin(_post(site, origin, path, text))

    def _copy_to_upstream(self, text: bytes, effect: SendCopy) -> None:
        exchange = effect.origin
        assert isinstance(exchange, Exchange)
        if self._copies:
            post = _post(site_of(exchange), exchange, exchange.head.target, text)
            self._copies.begin(post)


def _operator(site: Site, user: bytes) -> bytes:
    """Return the credentials that the operator adds to a site's messages."""
    headers = site.listener.config.upstream_headers
    if not headers and site.login is None:
        return user
    from mcp_tool_filter.rooms.rules.credentials import credentials_we_add

    return user + credentials_we_add(headers, site.login)


async def _post(site: Site, exchange: Exchange, path: str, text: bytes) -> None:
    from mcp_tool_filter.rooms.rules.copies import post_and_forget

    listener, head = site.listener, head_of(exchange)
    headers = list(_headers_of(exchange, text))
    names = {name for name, _ in headers}
    for name, value in listener.headers_for(head):
        if name.lower().encode() not in names:
            headers.append((name.encode(), value.encode()))
    client = open_client(site.target, site.login_for(head), headers)
    await post_and_forget(client, path, text)


def _headers_of(exchange: Exchange, text: bytes, only: frozenset[bytes] | None = None) -> Headers:
    """Return a request's headers for another message, with the headers that mirror its body."""
    from mcp_tool_filter.rooms.rules.copies import with_usual

    head, limits = head_of(exchange), exchange.service.listener.config.limits
    message = parse_message(text, limits)
    changed = {name.encode(): value for name, value in headers_after(head, message, {})}
    headers = [(name.lower(), value) for name, value in head.headers]
    headers = [header for header in headers if header[0] not in changed]
    headers += [(name, value.encode()) for name, value in changed.items() if value is not None]
    is_get = head.method.upper() == "GET"  # its Accept differs from a POST's
    return with_usual([
        (name, value)
        for name, value in headers
        if name not in _NOT_COPIED
        and (only is None or name in only)
        and not (is_get and name == b"accept")
    ])  # fmt: skip
