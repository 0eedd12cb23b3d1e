"""The rules of a process: read from their file, carried out by one host, reloaded when they change.

This module is imported only if there is a rules file.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress

from mcp_tool_filter.adapters.effects.offline import OfflineHost
from mcp_tool_filter.adapters.effects.rule_host import RuleHost, Sender
from mcp_tool_filter.adapters.effects.rule_state import StateInMemory, open_state
from mcp_tool_filter.adapters.effects.rules_file import StillWritten, UnreadableRules, WatchedRules
from mcp_tool_filter.conversation.policy_in_force import RulesAtWork, SessionAtWork
from mcp_tool_filter.errors import StartError
from mcp_tool_filter.policy.rules.link import RulesLink
from mcp_tool_filter.policy.rules.model import Policy

log = logging.getLogger(__name__)

_TRIES = 100
_LOOK_EVERY = 0.25  # seconds


def _read_complete(file: WatchedRules) -> Policy:
    """Read a file that should not change just now. Raises StartError."""
    for _ in range(_TRIES):
        with suppress(StillWritten):
            return file.read()
    raise UnreadableRules(file.path, "It is being written all the time")


class RulesInForce:
    """The rules of one rules file."""

    def __init__(
        self,
        path: str,
        send_copy: Sender | None = None,
        *,
        copies: str = "",
        is_offline: bool = False,
    ) -> None:
        """Raises StartError if the file cannot be used.

        The ids of copies that rules send begin with ``copies``. If ``is_offline``, nothing is sent
        and nothing waits.
        """
        self.path = path
        self._file = WatchedRules(path)
        self.policy = _read_complete(self._file)
        if is_offline:
            self.host: RuleHost = OfflineHost(StateInMemory())
        else:
            self.host = RuleHost(open_state(self.policy.state), send_copy)
        self.links: list[RulesLink] = []
        self._salt = secrets.token_bytes(32)
        self._copies = copies
        self._warn(self.policy)

    @property
    def names(self) -> tuple[str, ...]:
        """The ids of the rules, in order of evaluation."""
        return tuple(rule.id for rule in self.policy.rules) if self.policy.enabled else ()

    def at_work(self, link: RulesLink) -> RulesAtWork:
        """Return what the rules have done at one listener."""
        metrics = sorted(self.host.counters())
        sessions = tuple(SessionAtWork(*one) for one in link.sessions_at_work())
        return RulesAtWork(tuple(self._hits(link)), tuple(metrics), sessions)

    def _hits(self, link: RulesLink) -> Iterator[tuple[str, int]]:
        methods = tuple(self.policy.interceptors) if self.policy.enabled else ()
        yield from ((name, link.hits[name]) for name in (*methods, *self.names))

    def link(self, upstream: str, operator: Callable[[], bytes] = bytes) -> RulesLink:
        """Return the link for a listener; ``operator`` returns the credentials that we add."""
        link = RulesLink(
            self.policy,
            self.host.at_once,
            upstream=upstream,
            operator=operator,
            salt=self._salt,
            copies=self._copies,
        )
        self.links.append(link)
        return link

    def replace_file(self, path: str) -> None:
        """Use another file from now on. If it raises StartError, nothing has changed."""
        file = WatchedRules(path)
        self._adopt(_read_complete(file))
        self._file, self.path = file, path

    async def watch(self) -> None:
        """Reload the file whenever it changes, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_EVERY)
            if self._file.has_changed():
                await self.read_again()

    async def read_again(self) -> None:
        """Reload the file; keep the old rules if that fails."""
        try:
            policy = await asyncio.to_thread(self._file.read)
            self._adopt(policy)
        except StillWritten:
            return  # we shall see that it has changed
        except StartError as error:
            log.error("The old rules stay in force.\n%s", error)
            return
        except Exception:
            log.exception("The old rules stay in force: the file cannot be read")
            return
        log.info("Read the rules file %s again: %d rules", self.path, len(policy.rules))

    async def close(self) -> None:
        await self.host.close()

    def _adopt(self, policy: Policy) -> None:
        if policy.state != self.policy.state:
            state = open_state(policy.state)
            self.host.replace_state(state)
        self.policy = policy
        self.host.forget_warnings()
        for link in self.links:
            link.adopt(policy)
        self._warn(policy)

    def _warn(self, policy: Policy) -> None:
        for warning in policy.warnings:
            log.warning("Rules: %s", warning)
