"""The rules file: at start, when it is edited, and what is reported about it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from mitmproxy import ctx
from mitmproxy.exceptions import OptionsError

from mcp_tool_filter.adapters.mitmproxy.addon import ToolFilter
from tests.adapters.mitmproxy.filtered import READ, Filtered, call
from tests.adapters.mitmproxy.ruled import BLOCK, HIDDEN, REDACT, SECRET, ruled, write
from tests.cli.launched import launched
from tests.mcp_upstream import mcp_upstream
from tests.proxy import SCRIPT, proxy, tool
from tests.raw_client import post, raw_client
from tests.raw_upstream import Peer, RawRequest, answer, raw_upstream


async def test_an_edit_of_the_file_takes_effect(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with ruled(tmp_path, BLOCK) as between:
        ask = call("read_file", '{"path":"/etc/x"}')
        assert b"-32001" in (await between.ask(ask)).body
        new = tmp_path / "new"
        new.write_text("interceptor:\n  rules: []\n")
        os.replace(new, tmp_path / "rules.yaml")  # as editors do it
        await until(between, ask, lambda body: b"-32001" not in body)
        (tmp_path / "rules.yaml").write_text("interceptor: {rulez: []}\n")
        await logged(caplog, "unknown key 'rulez'")
        assert b"-32001" not in (await between.ask(ask)).body
        write(tmp_path, BLOCK)
        await until(between, ask, lambda body: b"-32001" in body)
        caplog.clear()
        (tmp_path / "rules.yaml").unlink()
        await logged(caplog, "is gone")
        assert b"-32001" in (await between.ask(ask)).body


async def test_webhooks_arrive_although_the_process_ends(tmp_path: Path) -> None:
    async def receive(peer: Peer) -> None:
        await peer.request()
        await asyncio.sleep(0.05)
        await peer.say(answer(b"{}"))

    async with (
        raw_upstream(receive) as receiver,
        mcp_upstream(tools=[READ]) as upstream,
    ):
        hook = f"webhook: {{url: '{receiver.url}/'}}"
        path = write(tmp_path, f"  - {{id: r, actions: [{hook}]}}\n")
        flags = ("--upstream", upstream.url, "--rules", path)
        async with launched(*flags, home=tmp_path) as it:
            port = await it.serving()
            async with raw_client(port) as client:
                for _ in range(30):
                    await client.ask(post(call("read_file")))
            it.interrupt()
            assert await it.exit_code() == 0
    assert len(receiver.requests) == 30


async def logged(caplog: pytest.LogCaptureFixture, text: str) -> None:
    """Wait until a line with this text has been logged."""
    async with asyncio.timeout(20):
        while text not in caplog.text:
            await asyncio.sleep(0.02)


async def until(between: Filtered, ask: bytes, condition: Callable[[bytes], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition((await between.ask(ask)).body):
            await asyncio.sleep(0.05)


async def test_rules_cannot_be_taken_away_at_run_time(tmp_path: Path) -> None:
    async with ruled(tmp_path, BLOCK) as between:
        with pytest.raises(OptionsError, match="cannot be removed"):
            ctx.options.rules = []
        ask = call("read_file", '{"path":"/etc/x"}')
        assert b"-32001" in (await between.ask(ask)).body


async def test_one_policy_judges_a_message_from_its_request_to_its_response(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    release = asyncio.Event()

    async def respond(_request: RawRequest, peer: Peer) -> None:
        await release.wait()
        await peer.say(answer(SECRET))

    async with ruled(tmp_path, REDACT, respond=respond) as between:
        waiting = asyncio.create_task(between.ask(call("read_file")))
        async with asyncio.timeout(20):
            while not between.upstream.asked:
                await asyncio.sleep(0.01)
        (tmp_path / "rules.yaml").write_text("interceptor: {rules: []}\n")
        await logged(caplog, "again: 0 rules")
        release.set()
        assert (await waiting).body == HIDDEN


async def test_a_bad_rules_file_stops_the_start_with_every_mistake(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text("interceptor:\n  chian: {}\n  rules: [{id: 1}]\n")
    async with (
        mcp_upstream(tools=[READ]) as upstream,
        tool(
            "mitmdump", "-s", SCRIPT, "--mode", f"reverse:{upstream.url}",
            "--set", f"rules={path}", home=tmp_path,
        ) as it,
    ):  # fmt: skip
        assert await it.exit_code() == 1
        for line in (":2:3: interceptor: unknown key 'chian'", ":3:16: interceptor.rules[0].id:"):
            assert f"{path}{line}" in it.stderr


async def test_the_report_names_the_rules(tmp_path: Path) -> None:
    said: list[str] = []
    rules = write(tmp_path, BLOCK + REDACT)
    async with (
        mcp_upstream(tools=[READ]) as upstream,
        proxy(
            ToolFilter(report=said.append), to=upstream.url, home=tmp_path,
            endpoint=["/mcp"], rules=[rules],
        ) as it,
        raw_client(it.port) as client,
    ):  # fmt: skip
        await client.ask(post(call("read_file")))
    assert "  Rules: 2: no-etc, secrets" in said[0].splitlines()


async def test_the_commands_show_the_rules_and_their_hits(tmp_path: Path) -> None:
    rules = BLOCK + "  - {id: count, actions: [metric: {name: seen, value: 2}]}\n"

    async with ruled(tmp_path, rules) as between:
        await between.ask(call("read_file", '{"path":"/etc/x"}'))
        await between.ask(call("read_file"))
        lines = ctx.master.commands.call("mcp.stats")
        assert "  rule no-etc: 1 hits" in lines
        assert "  rule count: 1 hits" in lines
        assert "  metric seen: 2" in lines
        (known,) = [
            line for line in ctx.master.commands.call("mcp.sessions") if "as the rules" in line
        ]
        assert "2 messages" in known
