"""The rules of a process: load them from a file, attach them to the sites, send what they order.

The rule engine is imported only if there is a rules file.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

from mcp_tool_filter.errors import InvalidOption

if TYPE_CHECKING:
    from mcp_tool_filter.adapters.rules.carry_out import Effects
    from mcp_tool_filter.adapters.rules.file import RulesInForce
    from mcp_tool_filter.adapters.serving.site import Site
    from mcp_tool_filter.adapters.serving.upstream_posts import UpstreamPosts
    from mcp_tool_filter.policy.rule_effects import WriteLog


class Rules:
    """The rules of all sites."""

    def __init__(self, effects: Effects, enter_log: Callable[[WriteLog], None]) -> None:
        self._effects = effects
        self._enter_log = enter_log
        self._posts: UpstreamPosts | None = None
        self._watch: asyncio.Task[None] | None = None
        self.command: tuple[str, bytes] | None = None
        """The command in front of which we are, and what identifies its user."""
        self.is_offline = False
        """True in a replay: rules must not send anything."""
        self._is_running = False
        self.in_force: RulesInForce | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return self.in_force.names if self.in_force else ()

    def adopt(self, path: str, sites: Iterable[Site]) -> None:
        """Use a rules file. If it raises StartError, nothing has changed."""
        if self.in_force is None:
            if path:
                self._begin(path, sites)
        elif not path:
            why = "Rules cannot be removed at run time: set enabled: false in the file"
            raise InvalidOption("rules", path, why=why)
        elif path != self.in_force.path:
            self.in_force.replace_file(path)

    def attach(self, site: Site) -> None:
        """Attach the rules to a site, after its tool filter."""
        if self.in_force:
            policy = site.listener.policy
            url = site.listener.upstream + site.listener.fetched.endpoint
            upstream, user = self.command or (url, b"")
            link = self.in_force.link(upstream, partial(_operator, site, user))
            policy.links = (*policy.links, link)
            policy.rules_at_work = partial(self.in_force.at_work, link)
            if self._posts:
                policy.answer_upstream = self._posts.answer

    def begin(self) -> None:
        """Start to watch the file."""
        self._is_running = True
        if self.in_force and self._watch is None and not self.is_offline:
            self._watch = asyncio.get_running_loop().create_task(self.in_force.watch())

    async def close(self) -> None:
        """End, after the last webhooks have arrived, or after a time limit."""
        if self._watch:
            self._watch.cancel()
        if self._posts:
            self._posts.done()
        if self.in_force:
            await self.in_force.close()

    def _begin(self, path: str, sites: Iterable[Site]) -> None:
        from mcp_tool_filter.adapters.rules.file import RulesInForce
        from mcp_tool_filter.adapters.serving.upstream_posts import UpstreamPosts

        if self.is_offline:
            self.in_force = RulesInForce(path, is_offline=True)
        else:
            posts = UpstreamPosts()
            self.in_force = RulesInForce(path, posts.send_copy, copies=posts.id_prefix)
            self._posts = posts
            self.in_force.host.enter_log = self._enter_log
        self._effects.rule_host = self.in_force.host
        for site in sites:
            self.attach(site)
        if self._is_running:
            self.begin()


def _operator(site: Site, user: bytes) -> bytes:
    """Return the credentials that the operator adds to a site's messages."""
    headers = site.listener.config.upstream_headers
    if not headers and site.login is None:
        return user
    from mcp_tool_filter.adapters.rules.state import credentials_we_add

    return user + credentials_we_add(headers, site.login)
