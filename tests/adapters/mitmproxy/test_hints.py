"""What hints hide in mitmproxy; tests/end_to_end/test_choosing.py has every transport."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from mitmproxy import ctx
from mitmproxy.exceptions import OptionsError

from mcp_tool_filter.adapters.mitmproxy.options import edit_deny
from tests.adapters.mitmproxy.filtered import LIST, Filtered, call, filtered
from tests.mcp_upstream import mcp_upstream, tool
from tests.proxy import SCRIPT
from tests.proxy import tool as program

READING = ', "annotations" : {"readOnlyHint": true}'
READ, WRITE, MINE = tool("read_file", READING), tool("write_file"), tool("mine", READING)


async def names(between: Filtered) -> list[str]:
    answered = json.loads((await between.ask(LIST)).body)
    return [one["name"] for one in answered["result"]["tools"]]


async def test_a_hint_stays_pinned_where_new_tools_are_judged(tmp_path: Path) -> None:
    """Neither a changed definition lifts it, nor removing the tool and adding it again."""
    tools = [READ, WRITE]

    given: dict[str, Any] = {"deny": ["^never$"], "read_only": ["true"], "new_tools": ["judge"]}
    async with filtered(tmp_path, tools=tools, **given) as between:
        assert await names(between) == ["read_file"]
        tools[:] = [tool("read_file"), tool("write_file", READING), MINE]
        for _ in range(2):
            assert await names(between) == ["read_file", "mine"]  # as it was pinned, and a new one
        tools[:] = [MINE]
        assert await names(between) == ["mine"]
        tools[:] = [MINE, tool("write_file", READING), tool("read_file")]
        for _ in range(2):
            assert "write_file" not in await names(between)
            answered = json.loads((await between.ask(call("write_file"))).body)
            assert answered["error"]["message"] == "Tool not found: write_file"


@pytest.mark.rest
async def test_mitmdump_takes_the_options(tmp_path: Path) -> None:
    async with mcp_upstream(tools=[READ, WRITE]) as upstream:
        options = ("--set", "read_only=true", "--set", "deny_hint=open-world", "--set")
        words = ("-s", SCRIPT, "--mode", f"reverse:{upstream.url}@0", *options, "except=^read")
        async with program("mitmdump", *words, home=tmp_path) as it:
            await it.says("2, of which 1 denied, 1 exposed")
            await it.says("    --read-only: write_file")


@pytest.mark.parametrize("tools_list", ["auto", "upstream"])
async def test_options_can_be_edited_while_mitmproxy_runs(tmp_path: Path, tools_list: str) -> None:
    """As with ``:set`` in mitmproxy's console. What is refused changes nothing."""
    both = tool("both", ', "annotations":{"readOnlyHint":true,"openWorldHint":false}')

    given: dict[str, Any] = {"deny": ["^never$"], "tools_list": [tools_list]}
    async with filtered(tmp_path, tools=[READ, WRITE, both], **given) as between:

        async def agree_on(*exposed: str) -> None:
            assert await names(between) == [*exposed]
            for name in ("read_file", "write_file", "both"):
                answered = json.loads((await between.ask(call(name))).body)
                assert ("result" in answered) is (name in exposed)

        await agree_on("read_file", "write_file", "both")
        edits: list[tuple[tuple[str, ...], tuple[str, ...]]] = [
            (("read_only=true",), ("read_file", "both")),
            (("deny_hint=open-world",), ("both",)),
            (("except=^write", "except=^no"), ("write_file", "both")),
            (
                ("deny_hint=destructive", "deny_hint=not-idempotent"),
                ("read_file", "write_file", "both"),
            ),
            (("read_only=false",), ("read_file", "write_file", "both")),
            (("except=^no",), ("read_file", "both")),
            (("deny=^read",), ("both",)),
        ]
        wrong = ["deny_hint=open_world", "deny_hint", "except=", "read_only=x", "read_only"]
        wrong += ["deny=(", "deny=(a+)+", "tools_list=x", "fail_fast=?", "ignore_hosts=localhost"]
        for texts, exposed in edits:
            ctx.options.set(*texts)
            await agree_on(*exposed)
            for bad in wrong:
                with pytest.raises(OptionsError, match=r"^Error: "):
                    ctx.options.set(bad)
            await agree_on(*exposed)


async def test_a_click_in_mitmweb_adds_an_exception_to_a_hint(tmp_path: Path) -> None:
    given: dict[str, Any] = {"deny": ["^never$"], "read_only": ["true"]}

    async with filtered(tmp_path, tools=[READ, WRITE], **given) as between:
        assert edit_deny(["^never$"], ["^write_file$"]) == ""
        assert await names(between) == ["read_file", "write_file"]
        assert edit_deny(["("], ["^x$"]).startswith("Error: Invalid regex pattern")
        assert len(await names(between)) == 2
        assert edit_deny(["^never$"], []) == ""
        assert await names(between) == ["read_file"]
