"""One conversation, and what becomes of its messages."""

from __future__ import annotations

import json
from typing import Any

from mcp_tool_filter.cli.parsing import parse_config
from mcp_tool_filter.cli.rooms import ROOMS
from mcp_tool_filter.core.conversation.conversation import Conversation
from mcp_tool_filter.core.conversation.memory import example
from mcp_tool_filter.core.conversation.policy_in_force import PolicyInForce
from mcp_tool_filter.core.policy.situation import Client
from mcp_tool_filter.core.policy.verdict import Forward, Reply, Rewrite, Verdict
from mcp_tool_filter.core.process.plugs import settled
from tests.make import answering, asking, at_once, judge_from_upstream, rewritten


class Talk:
    """A client and an upstream that has the tools ``read`` and ``rm``."""

    def __init__(self, revision: str | None = None, **options: Any) -> None:
        policy = PolicyInForce(
            config=settled(ROOMS, parse_config(options)), fetched=example("read", "rm")
        )
        self.conversation = Conversation(policy, Client(said_revision=revision))

    def from_client(self, raw: bytes) -> Verdict:
        verdict: Verdict = at_once(self.conversation.from_client(raw)).verdict
        return verdict

    def from_upstream(self, raw: bytes) -> Verdict:
        verdict: Verdict = at_once(judge_from_upstream(self.conversation, raw)).verdict
        return verdict

    def asks(self, method: str, params: str = "{}") -> Verdict:
        return self.from_client(asking(method, params=params))

    def hears(self, result: str, method: str, params: str = "{}") -> Verdict:
        """Return what becomes of the answer to a request that is allowed."""
        assert self.asks(method, params) == Forward()
        return self.from_upstream(answering(result))


def said(verdict: Verdict) -> Any:
    """Return the message that takes the place of another one."""
    assert isinstance(verdict, Rewrite | Reply)
    return json.loads(verdict.text)


def error_code(verdict: Verdict) -> int:
    code: int = said(verdict)["error"]["code"]
    return code


def instead(verdict: Verdict) -> bytes | None:
    """Return what goes on in the place of the message; None if it is forwarded as it came."""
    return None if verdict == Forward() else rewritten(verdict)
