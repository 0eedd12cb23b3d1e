"""The preview of what would be hidden, and why: for people and for scripts."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import pytest

from mcp_tool_filter.cli.commands.demo_upstream import demo_upstream
from tests.cli.launched import launched
from tests.mcp_upstream import mcp_upstream, tool
from tests.raw_upstream import Peer, raw_upstream

TOOLS = [tool("read_file", ',"description":"Reads\\n a file"'), tool("rm_rf"), tool("a\x1b[31m")]


async def said(home: Path, *words: str) -> tuple[int, str, str]:
    """Exit status, stdout and stderr, before an upstream with three tools."""

    async with (
        mcp_upstream(tools=TOOLS) as upstream,
        launched("-u", f"{upstream.url}/mcp?key=hunter2", *words, home=home) as it,
    ):
        return await it.exit_code(), it.stdout, it.stderr


async def test_names_lists_exposed_tools_one_per_line(tmp_path: Path) -> None:
    status, stdout, stderr = await said(tmp_path, "--list-tools", "--format", "names", "-d", "^rm_")
    assert (status, stdout, stderr) == (0, "read_file\na\\x1b[31m\n", "")


async def test_a_table_outside_a_terminal_has_tabs_and_no_colour(
    tmp_path: Path,
) -> None:
    _, stdout, stderr = await said(tmp_path, "--list-tools", "-d", "^rm_,^nothing")
    assert stdout.splitlines() == [
        "read_file\texposed\t24\tReads",
        'rm_rf\tdenied by "^rm_"\t15\t',
        "a\\x1b[31m\texposed\t16\t",
    ]
    assert stderr.splitlines() == [
        "3 tools, 1 would be hidden: about 15 tokens per tools/list",
        'Warning: the pattern "^nothing" matches no tool',
    ]


async def test_json_has_a_stable_form(tmp_path: Path) -> None:
    words = ("--list-tools", "--format", "json", "-d", "^rm_,^nothing", "--allow", "_")
    _, stdout, stderr = await said(tmp_path, *words)
    document = json.loads(stdout)
    assert document.pop("upstream").endswith("/mcp?key=…")
    assert document == {
        "server": "raw 1",
        "transport": "Streamable HTTP",
        "revision": "2025-06-18",
        "tools": [
            {
                "name": "read_file",
                "exposed": True,
                "why": "exposed",
                "pattern": None,
                "bytes": len(TOOLS[0]),
            },
            {
                "name": "rm_rf",
                "exposed": False,
                "why": "denied",
                "pattern": "^rm_",
                "bytes": len(TOOLS[1]),
            },
            {
                "name": "a\x1b[31m",
                "exposed": False,
                "why": "not allowed",
                "pattern": None,
                "bytes": len(TOOLS[2]),
            },
        ],
        "savedBytes": len(TOOLS[1]) + len(TOOLS[2]),
        "unmatchedPatterns": ["^nothing"],
        "faults": [],
    }
    assert stderr == ""


async def test_a_dry_run_prints_the_start_report_and_ends(tmp_path: Path) -> None:
    status, stdout, stderr = await said(tmp_path, "--dry-run", "-d", "^rm_", "-p", "6273")
    assert status == 0
    assert stdout.splitlines()[0].startswith("MCP tool filter: http://127.0.0.1:6273/mcp?key=… ->")
    assert "Tools: 3, of which 1 denied, 2 exposed" in stdout
    assert (stderr, "hunter2" in stdout) == ("", False)


async def test_another_format_is_refused(tmp_path: Path) -> None:
    status, _, stderr = await said(tmp_path, "--list-tools", "--format", "xml")
    assert (status, stderr) == (
        2,
        "Error: There is no format xml\nIt must be one of: table, json, names\n",
    )


async def test_an_unreachable_upstream_gives_exit_status_1(tmp_path: Path) -> None:
    async with launched("-u", "http://127.0.0.1:1", "--list-tools", home=tmp_path) as it:
        status, stderr = await it.exit_code(), it.stderr
    assert status == 1
    assert stderr.endswith("at http://127.0.0.1:1\nConnection refused\n")


async def test_listing_tools_does_not_import_mitmproxy(tmp_path: Path) -> None:
    """Most of the waiting would be for its import."""
    (tmp_path / "mitmproxy").mkdir()
    (tmp_path / "mitmproxy" / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (tmp_path / "sitecustomize.py").write_text(f"import sys; sys.path.insert(0, {str(tmp_path)!r})")

    from tests.cli.launched import ADDON

    environment = {"PYTHONPATH": f"{tmp_path}:{ADDON}"}
    async with (
        demo_upstream() as upstream,
        launched("-u", upstream.url, "--list-tools", home=tmp_path, environment=environment) as it,
    ):
        found = await it.exit_code(), it.stderr
    assert found[0] == 0


async def test_json_can_be_requested_with_one_flag(tmp_path: Path) -> None:
    _, short, _ = await said(tmp_path, "--list-tools", "--json", "-d", "^rm_")
    _, long, _ = await said(tmp_path, "--list-tools", "--format", "json", "-d", "^rm_")
    one, other = json.loads(short), json.loads(long)
    assert one.pop("upstream") != other.pop("upstream")  # another port
    assert one == other


async def test_a_dry_run_can_be_read_by_programs(tmp_path: Path) -> None:
    status, stdout, stderr = await said(tmp_path, "--dry-run", "--json", "-p", "7000")
    document = json.loads(stdout)
    assert (status, stderr) == (0, "")
    assert document["listensAt"] == "http://127.0.0.1:7000/mcp?key=…"
    assert document["warnings"] == ["nothing is denied: there is no deny or allow pattern"]
    assert [each["name"] for each in document["tools"]] == ["read_file", "rm_rf", "a\x1b[31m"]


async def test_json_alone_is_refused(tmp_path: Path) -> None:
    status, stdout, stderr = await said(tmp_path, "--json")
    assert (status, stdout) == (2, "")
    assert stderr.startswith("Error: --json needs --list-tools or --dry-run\n")


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["SIGINT", "SIGTERM"]
)
@pytest.mark.parametrize("words", [["--list-tools"], ["--dry-run", "--json"], ["doctor"]], ids=str)
async def test_an_interrupt_gives_no_output_and_the_usual_status(
    words: list[str], number: signal.Signals, status: int, tmp_path: Path
) -> None:
    """A script must not take what is not there for "no tools"."""

    reached = asyncio.Event()

    async def script(peer: Peer) -> None:
        reached.set()
        await peer.left()

    async with (
        raw_upstream(script) as upstream,
        launched(*words, "--upstream", upstream.url, "-d", "^a", home=tmp_path) as it,
    ):
        await reached.wait()
        it.interrupt(number)
        assert (await it.exit_code(), it.stderr) == (status, "")
