"""Over stdio there is one kind of asker, the one client."""

from __future__ import annotations

import pytest

from mcp_tool_filter.core.conversation.conversation import Conversation
from mcp_tool_filter.core.conversation.policy_in_force import PolicyInForce
from mcp_tool_filter.core.policy.situation import Client, Session, Via
from mcp_tool_filter.rooms.stdio.only_kinds import OnlyKinds
from tests.core.conversation.test_kinds import assert_a_tool_comes_back


def stdio(in_force: PolicyInForce) -> Conversation:
    in_force.kinds = OnlyKinds(in_force.config, lambda _: None)
    return Conversation(in_force, Client(Via.STDIO, Session()))


@pytest.mark.parametrize("new_tools", ["hide", "judge"])
@pytest.mark.parametrize("many", [0, 50])
def test_a_tool_that_is_gone_comes_back(new_tools: str, many: int) -> None:
    assert_a_tool_comes_back(stdio, new_tools, many=many)
