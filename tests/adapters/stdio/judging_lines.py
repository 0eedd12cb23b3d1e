"""A judge of stdio lines, and what it told its observers."""

from __future__ import annotations

import json
from collections.abc import Sequence

from mcp_tool_filter.adapters.stdio.judge import LineJudge
from mcp_tool_filter.conversation.policy_in_force import Judged as Told
from mcp_tool_filter.policy.config import Config, parse_config
from mcp_tool_filter.policy.effects import waits
from mcp_tool_filter.policy.snapshot import Snapshot
from mcp_tool_filter.policy.verdict import Forward, Verdict
from mcp_tool_filter.protocol.lines import CutLine
from tests.make import asking, listing, text_of

FORWARDED = Forward()


class Judged:
    """A judge, and what it told its observers."""

    def __init__(self, deny: Sequence[str] = (), config: Config | None = None) -> None:
        self.verdicts: list[Verdict] = []
        self.listed: list[Snapshot] = []
        self.judge = LineJudge(
            config or parse_config(deny=deny or None),
            observe=self._observe,
            on_listed=self.listed.append,
        )

    def _observe(self, told: Told) -> None:
        self.verdicts.append(told.verdict)

    def client(self, line: bytes | CutLine) -> Verdict:
        verdict = self.judge.from_client(line)
        assert not waits(verdict)
        return verdict

    def upstream(self, line: bytes | CutLine) -> Verdict:
        verdict = self.judge.from_upstream(line)
        assert not waits(verdict)
        return verdict

    def lists(self, *names: str, id: str = "1", more: str = "", params: str = "{}") -> Verdict:
        """Let the client ask for a list that the upstream answers."""
        assert self.client(asking("tools/list", id=id, params=params)) == FORWARDED
        return self.upstream(listing(*names, id=id, more=more))


def names_in(verdict: Verdict) -> list[str]:
    return [tool["name"] for tool in json.loads(text_of(verdict))["result"]["tools"]]
