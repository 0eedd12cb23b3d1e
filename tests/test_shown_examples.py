"""Every command that the README and the pages show is run in a fresh clone, with an upstream and
files as they say.

What would go on until somebody ends it only reports what it would start with (--dry-run). The
commands of a block with a mark are not run here: see ``tests/shown.py``.
"""

from __future__ import annotations

import asyncio
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from mcp_tool_filter.cli.table import COMMANDS
from tests.cli.launched import launched, run, surroundings
from tests.clones import clone_into
from tests.mcp_upstream import mcp_upstream, tool
from tests.proxy import REPOSITORY
from tests.proxy import tool as started_tool
from tests.shown import Block, blocks, shown_commands
from tests.stdio_client import filtered, upstream

_OURS = re.compile(r"(?:[A-Z_]+=\S+ )?mcp-tool-filter(?: |$)")
_MITMPROXY = re.compile(r"(mitmdump|mitmweb) -s addon/tool_filter\.py ")
_UNTIL_ENDED = re.compile("mcp-tool-filter serve")
_UPSTREAM = "http://localhost:3000"
_MORE = {"pick": ["--names", "delete_file"], "wrap": ["--yes"], "unwrap": ["--yes"]}
_SERVER = upstream()
_LINES = shown_commands(is_marked=False)


def of(pattern: re.Pattern[str]) -> list[str]:
    return [line for line in _LINES if pattern.match(line)]


def of_the_clone(clone: Path) -> dict[str, str]:
    return {"TOKEN": "x", "PYTHONPATH": str(clone / "addon")}


def words_of(line: str, url: str) -> list[str]:
    """Return the words after the program's name, for the upstream that is there."""
    words = [word.replace(f"{_UPSTREAM}/mcp", url) for word in shlex.split(line)]
    words = words[words.index("mcp-tool-filter") + 1 :]
    if "--" in words:
        words[words.index("--") + 1 :] = _SERVER
    if "--server" in words:
        words = ["--config", "servers.toml", *words]
    if not words or words[0] in COMMANDS:
        return words + _MORE.get("".join(words[:1]), [])
    at = words.index("--") if "--" in words else len(words)
    return [*words[:at], *([] if "--list-tools" in words else ["--dry-run"]), *words[at:]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the pages name."""
    tmp_path = tmp_path_factory.mktemp("model")
    rules = (REPOSITORY / "addon/mcp_tool_filter/docs/rules/files-inside-a-folder.yaml").read_text()
    (tmp_path / "policy.yaml").write_text(rules)
    recording = next(iter(sorted((REPOSITORY / "recordings").glob("*.flow"))))
    shutil.copy(recording, tmp_path / "session.flow")
    listed = {"mcpServers": {"files": {"command": _SERVER[0], "args": _SERVER[1:]}}}
    (tmp_path / ".claude.json").write_text(json.dumps(listed))
    (tmp_path / "servers.toml").write_text(f"[servers.files]\ncommand = {json.dumps(_SERVER)}\n")
    with filtered(
        "--audit-log", str(tmp_path / "audit.jsonl"), "--", *_SERVER, home=tmp_path
    ) as it:
        it.calls("read_file")
        it.leaves()
    run("lock", str(tmp_path / "tools.lock"), "--", *_SERVER, home=tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return clone_into(tmp_path_factory.mktemp("clone"))


@pytest.fixture
def folder(model: Path, tmp_path: Path) -> Path:
    """A copy of it for one command, which may change files."""
    return Path(shutil.copytree(model, tmp_path / "home"))


@pytest.mark.parametrize("line", [one for one in of(_OURS) if not _UNTIL_ENDED.match(one)])
async def test_shown_examples_work(line: str, folder: Path, clone: Path) -> None:
    async with mcp_upstream(tools=[tool("read_file"), tool("delete_file")]) as there:
        words = words_of(line, there.url)
        if words[:1] == ["unwrap"]:
            run("wrap", *words[1:3], "--deny", "^a", "--yes", home=folder)
        ended = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "mcp_tool_filter", *words],
            capture_output=True, text=True, encoding="utf-8", timeout=60, check=False,
            stdin=subprocess.DEVNULL, cwd=folder, env=surroundings(folder, of_the_clone(clone)),
        )  # fmt: skip
    # '*delete*' is there to show what is refused.
    assert ended.returncode == ("'*" in line), ended.stdout + ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("line", of(_UNTIL_ENDED))
async def test_shown_examples_that_serve_work(line: str, folder: Path, clone: Path) -> None:
    words = [*shlex.split(line)[1:], "--config", str(folder / "servers.toml")]
    if "--profile" in words:
        file = folder / "servers.toml"
        file.write_text(f"{file.read_text()}[profiles.review]\nread-only = true\n")
    if "--stdio" in words:
        ended = await asyncio.to_thread(run, *words, home=folder, environment=of_the_clone(clone))
        assert (ended.returncode, ended.stdout) == (0, "")
        return
    async with launched(*words, home=folder, environment=of_the_clone(clone)) as it:
        await it.says(r"http://127\.0\.0\.1:\d+/files/mcp")


@pytest.mark.parametrize("line", of(_MITMPROXY))
async def test_shown_examples_with_mitmproxy_work(line: str, folder: Path, clone: Path) -> None:
    async with mcp_upstream(tools=[tool("read_file"), tool("delete_file")]) as there:
        name, *words = shlex.split(line.replace(_UPSTREAM, there.url.removesuffix("/mcp")))
        words[1] = str(clone / words[1])
        words = [word.replace("policy.yaml", str(folder / "policy.yaml")) for word in words]
        started = started_tool(name, *words, home=folder, environment=of_the_clone(clone))
        async with started as it:
            await it.says("Tools: 2, of which 1 denied, 1 exposed")


@pytest.mark.parametrize("block", [one for one in blocks() if one.kind == "console"])
def test_what_an_example_prints_is_what_is_shown(block: Block, tmp_path: Path) -> None:
    [line] = block.lines
    _, _, output = block.text.partition("\n")
    assert run(*shlex.split(line)[1:], home=tmp_path).stdout == output


def test_each_command_that_is_shown_is_run_or_has_a_mark() -> None:
    kinds = (_OURS, _MITMPROXY)
    assert [line for line in _LINES if not any(kind.match(line) for kind in kinds)] == []
    assert len(of(_OURS)) > 25
    assert len(of(_MITMPROXY)) > 2
