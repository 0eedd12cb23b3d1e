"""Every check says what it found; what is wrong comes with what to do."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mcp_tool_filter.cli.commands.demo import demo_upstream
from tests.cli.launched import ended
from tests.mcp_upstream import mcp_upstream, tool
from tests.raw_upstream import Peer, answer, raw_upstream


async def examined(home: Path, *words: str, url: str = "") -> tuple[int, list[str]]:
    async with mcp_upstream(tools=[tool("a"), tool("b")]) as upstream:
        status, out, err = await ended("doctor", "-u", url or upstream.url, *words, home=home)
    assert err == ""
    return status, out.splitlines()


def failures(lines: list[str]) -> list[str]:
    """What failed, each with the advice that follows."""
    return [
        f"{line.removeprefix('FAIL ')} | {after.strip()}"
        for line, after in zip(lines, [*lines[1:], ""], strict=True)
        if line.startswith("FAIL")
    ]


async def test_a_working_setup_has_no_findings(tmp_path: Path) -> None:
    status, lines = await examined(tmp_path, "-d", "^a$,^a", "-H", "X-Team: a")
    assert status == 0
    assert "ok   The settings are valid: 2 deny patterns, 1 header" in lines
    assert failures(lines) == []
    assert "ok   2 tools: 1 exposed, 1 denied, 14 tokens saved" in lines
    assert any("speaks MCP 2025-06-18 over Streamable HTTP: raw 1" in line for line in lines)


SPELLED = "Is it spelled correctly? mcp-tool-filter --list-tools shows the names"


@pytest.mark.parametrize(("words", "what", "advice"), [
    (("-d", "^delete"), 'The pattern "^delete" matches no tool', SPELLED),
    (("-d", "(a+)+"), 'Unsafe regex pattern detected: "(a+)+"',
     "Pattern could cause catastrophic backtracking"),
    (("-H", "Authorization: $NO_SUCH"), "Invalid value for --header: 'Authorization'",
     "The environment variable NO_SUCH is not set"),
    (("--rules", "/missing"), "Cannot read the rules file: /missing", "No such file or directory"),
    ((), "Failed to connect to upstream MCP at http://127.0.0.1:1: Connection refused",
     "Is the upstream running, and is this its port?"),
])  # fmt: skip
async def test_a_failure_comes_with_advice(
    words: tuple[str, ...], what: str, advice: str, tmp_path: Path
) -> None:
    url = "" if words else "http://127.0.0.1:1/mcp"
    status, lines = await examined(tmp_path, *words, url=url)
    assert (status, failures(lines)) == (1, [f"{what} | {advice}"])


async def test_it_says_if_nothing_is_enforced(tmp_path: Path) -> None:
    status, lines = await examined(tmp_path, "-d", "^a$", "--shadow")
    assert status == 0
    assert "ok   2 tools, all exposed: 1 would be denied" in lines
    assert "ok   Nothing is enforced: with --shadow, the filter only reports" in lines


async def test_the_findings_are_available_as_json(tmp_path: Path) -> None:
    status, lines = await examined(tmp_path, "-d", "^delete", "--json")
    found = json.loads("\n".join(lines))
    assert (status, found["ok"]) == (1, False)
    assert {tuple(check) for check in found["checks"]} == {("ok", "text", "advice")}
    assert found["checks"][0]["advice"] is None
    [failed] = [check for check in found["checks"] if not check["ok"]]
    text = 'The pattern "^delete" matches no tool'
    assert failed == {"ok": False, "text": text, "advice": SPELLED}
    status, lines = await examined(tmp_path, "-d", "^a$", "--json")
    assert (status, json.loads("\n".join(lines))["ok"]) == (0, True)


@pytest.mark.parametrize(("url", "advice"), [
    ("http://no.such.host.invalid/mcp", "Is the name spelled correctly?"),
    ("https://127.0.0.1:{}/mcp", "Does it speak"),
])  # fmt: skip
async def test_a_wrong_host_name_or_scheme_is_a_finding(
    url: str, advice: str, tmp_path: Path
) -> None:
    async with demo_upstream() as upstream:
        status, lines = await examined(tmp_path, url=url.format(upstream.port))
    assert (status, advice in "".join(lines)) == (1, True)


async def test_missing_credentials_are_a_finding(tmp_path: Path) -> None:
    async def script(peer: Peer) -> None:
        while True:
            await peer.request()
            await peer.say(answer(b"no", status="401 Unauthorized", kind="text/plain"))

    async with raw_upstream(script) as upstream:
        status, lines = await examined(tmp_path, url=f"{upstream.url}/mcp")
    [failed] = failures(lines)
    assert (status, "HTTP 401" in failed, "upstream_headers" in failed) == (1, True, False)
    assert "--header 'Authorization: Bearer $TOKEN'" in failed
