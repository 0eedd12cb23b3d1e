"""The rules of a session over stdio. The rule engine is imported when the shape reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from mcp_tool_filter.cli.line_session import LineSession, SendCopy

if TYPE_CHECKING:
    from mcp_tool_filter.core.policy.situation import Link
    from mcp_tool_filter.core.sockets.client import Login
    from mcp_tool_filter.rooms.rules.file import RulesInForce
    from mcp_tool_filter.rooms.rules.host import RuleHost


def plug_in(session: LineSession) -> None:
    session.read_rules = partial(_read, session)


def _read(session: LineSession, send_copy: SendCopy) -> RulesOfLines:
    from mcp_tool_filter.rooms.rules.copies import Copies
    from mcp_tool_filter.rooms.rules.file import RulesInForce

    copies = Copies(lambda text, _effect: send_copy(text))
    rules = RulesInForce(session.config.rules, copies.send, copies=copies.id_prefix)
    rules.host.enter_log = session.note
    return RulesOfLines(rules)


class RulesOfLines:
    """The rules in force, and their link."""

    def __init__(self, rules: RulesInForce) -> None:
        self._rules = rules
        self.watch, self.close = rules.watch, rules.close

    @property
    def names(self) -> tuple[str, ...]:
        return self._rules.names

    @property
    def host(self) -> RuleHost:
        return self._rules.host

    def link_to_command(
        self, line: str, environment: Mapping[str, str], folder: str | None
    ) -> Link:
        from mcp_tool_filter.rooms.rules.credentials import credentials_of_command

        operator = credentials_of_command(environment, folder)
        return self._rules.link(line, lambda: operator)

    def link_to_url(
        self, url: str, headers: Sequence[tuple[str, str]], login: Login | None
    ) -> Link:
        from mcp_tool_filter.rooms.rules.credentials import credentials_we_add

        return self._rules.link(url, partial(credentials_we_add, headers, login))
