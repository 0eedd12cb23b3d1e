"""Servers that add and remove tools while clients are connected: real ones, and real clients."""

from __future__ import annotations

import pytest

from tests.waiting import eventually

from .filtering import mitmdump
from .peer import Client, Outcome, Step, client, upstream

CHANGED = "notifications/tools/list_changed"
AUTO = ("--mode", "auto")
PAIRS = [
    ("mcp1", "mcp1", ()), ("ts1", "ts1", ()), ("mcp1", "ts1", ()),
    ("mcp2", "mcp2", AUTO), ("ts2", "ts2", AUTO),
]  # fmt: skip
NOT_FOUND = -32601


def call(name: str, /, **arguments: str) -> Step:
    return {"call": name, "arguments": arguments}


def tools_of(player: Client) -> dict[str, Outcome]:
    tools: list[Outcome] = player.do({"list": "tools"})["result"]["tools"]
    return {tool["name"]: tool for tool in tools}


def tools_without(player: Client, gone: str) -> dict[str, Outcome]:
    """List until a tool is gone: the notification may arrive after what it is about."""
    eventually(lambda: gone not in tools_of(player), lambda: f"{gone} is still listed")
    return tools_of(player)


def refusal(player: Client, name: str) -> tuple[int, str]:
    error = player.do(call(name))["error"]
    return error["code"], error["message"].replace(name, "NAME")


@pytest.mark.parametrize("new_tools", ["hide", "judge"])
@pytest.mark.parametrize(("server", "name", "flags"), PAIRS)
def test_clients_see_removed_tools_go_and_new_ones_only_with_judge(
    server: str, name: str, flags: tuple[str, ...], new_tools: str
) -> None:
    judges = new_tools == "judge"
    with (
        upstream(server) as origin,
        mitmdump(origin.origin, deny="^delete_", endpoint="/mcp", new_tools=new_tools) as between,
        client(name, between.url("/mcp"), *flags) as one,
        client(name, between.url("/mcp"), *flags) as other,
    ):
        if flags:  # 2026-07-28: whoever wants to hear of changes asks for them
            assert "result" in one.do({"listen": ["tools"]})
        before = tools_of(one)
        assert tools_of(other) == before
        assert {"echo", "slow"} <= set(before)
        assert "delete_file" not in before

        for added in ("brand_new", "delete_new"):
            assert "result" in one.do(call("add_tool", name=added))
        assert one.do({"await": CHANGED})["result"]["method"] == CHANGED
        assert "result" in one.do(call("add_tool", name="echo", description=""))
        after = tools_without(one, "echo")
        expected = [tool for tool in before if tool != "echo"] + ["brand_new"] * judges
        assert list(after) == expected
        assert {tool: after[tool] for tool in expected if tool in before} == {
            tool: before[tool] for tool in expected if tool in before
        }
        assert refusal(one, "echo") == refusal(one, "delete_new")
        assert refusal(one, "delete_new")[0] == NOT_FOUND
        assert ("result" in one.do(call("brand_new"))) is judges

        # The other client was told nothing by most servers. It sees the same in its next list.
        assert list(tools_without(other, "echo")) == expected
        assert refusal(other, "delete_new")[0] == NOT_FOUND
        assert ("result" in other.do(call("brand_new"))) is judges
        assert "delete_new" not in origin.calls()
        assert ("brand_new" in origin.calls()) is judges
