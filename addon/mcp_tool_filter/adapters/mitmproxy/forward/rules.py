"""The rules of a proxy: load them from a file, and attach them to the listeners.

The rule engine is imported only if there is a rules file.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from mcp_tool_filter.errors import InvalidOption

if TYPE_CHECKING:
    from mcp_tool_filter.adapters.effects.carry_out import Effects
    from mcp_tool_filter.adapters.effects.rules_file import RulesInForce
    from mcp_tool_filter.adapters.mitmproxy.forward.listeners import Listeners
    from mcp_tool_filter.adapters.mitmproxy.forward.logins import Logins
    from mcp_tool_filter.adapters.mitmproxy.forward.upstream_posts import UpstreamPosts
    from mcp_tool_filter.http.listener import Listener
    from mcp_tool_filter.policy.rule_effects import WriteLog


class Rules:
    """The rules of the tool filter."""

    def __init__(
        self,
        listeners: Listeners,
        effects: Effects,
        logins: Logins,
        enter_log: Callable[[WriteLog], None],
    ) -> None:
        self._listeners = listeners
        self._enter_log = enter_log
        self._logins = logins
        self._effects = effects
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

    def adopt(self, path: str) -> None:
        """Use a rules file. If it raises StartError, nothing has changed."""
        if self.in_force is None:
            if path:
                self._begin(path)
        elif not path:
            why = "Rules cannot be removed at run time: set enabled: false in the file"
            raise InvalidOption("rules", path, why=why)
        elif path != self.in_force.path:
            self.in_force.replace_file(path)

    def attach(self, listener: Listener) -> None:
        """Attach the rules to a listener, after its tool filter."""
        if self.in_force:
            upstream, user = self.command or (listener.upstream + listener.fetched.endpoint, b"")
            link = self.in_force.link(upstream, partial(self._operator, listener, user))
            listener.policy.links = (*listener.policy.links, link)
            listener.policy.rules_at_work = partial(self.in_force.at_work, link)
            if self._posts:
                listener.policy.answer_upstream = self._posts.answer

    def _operator(self, listener: Listener, user: bytes) -> bytes:
        """Return the credentials that the operator adds to a listener's messages."""
        headers = listener.config.upstream_headers
        if not headers and not self._logins.is_on:
            return user
        from mcp_tool_filter.adapters.effects.rule_state import credentials_we_add

        specs = (spec for spec, one in self._listeners.by_mode.items() if one is listener)
        return user + credentials_we_add(headers, self._logins.of_mode(next(specs, "")))

    def running(self) -> None:
        """Start to watch the file."""
        self._is_running = True
        if self.in_force and self._watch is None and not self.is_offline:
            self._watch = asyncio.get_running_loop().create_task(self.in_force.watch())

    def done(self) -> asyncio.Task[None] | None:
        """End; the task ends when the last webhooks have arrived, or after a time limit."""
        if self._watch:
            self._watch.cancel()
        if self._posts:
            self._posts.done()
        if self.in_force is None:
            return None
        return asyncio.get_running_loop().create_task(self.in_force.close())

    def _begin(self, path: str) -> None:
        from mcp_tool_filter.adapters.effects.rules_file import RulesInForce
        from mcp_tool_filter.adapters.mitmproxy.forward.upstream_posts import UpstreamPosts

        if self.is_offline:
            self.in_force = RulesInForce(path, is_offline=True)
        else:
            posts = UpstreamPosts(self._listeners.find, self._logins)
            self.in_force = RulesInForce(path, posts.send_copy, copies=posts.id_prefix)
            self._posts = posts
            self.in_force.host.enter_log = self._enter_log
        self._effects.rule_host = self.in_force.host
        for listener in self._listeners.by_mode.values():
            self.attach(listener)
        if self._is_running:
            self.running()
