"""Every command that the README and the pages show is run, with an upstream and files as they say.

What would go on until somebody ends it only reports what it would start with (--dry-run).
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
from tests.cli.launched import run, surroundings
from tests.cli.test_help import shown_commands
from tests.mcp_upstream import mcp_upstream, tool
from tests.proxy import REPOSITORY
from tests.stdio_client import filtered, upstream

SHOWN = sorted({line.partition("  #")[0].strip() for line in shown_commands()})
# They need a person, an account or another host; each has tests of its own.
_ELSEWHERE = re.compile("mcp-tool-filter (login|run|serve|wrap .*--pick)\\b|.*--follow|.*https://")
_MORE = {"pick": ["--names", "delete_file"], "wrap": ["--yes"], "unwrap": ["--yes"]}
_SERVER = upstream()


def words_of(line: str, url: str) -> list[str]:
    """Return the words after the program's name, for the upstream that is there."""
    words = [word.replace("http://localhost:3000/mcp", url) for word in shlex.split(line)[1:]]
    if "--" in words:
        words[words.index("--") + 1 :] = _SERVER
    if "--server" in words:
        words = ["--config", "servers.toml", *words]
    if words[0] in COMMANDS:
        return words + _MORE.get(words[0], [])
    at = words.index("--") if "--" in words else len(words)
    return [*words[:at], *([] if "--list-tools" in words else ["--dry-run"]), *words[at:]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the files that the pages name."""
    tmp_path = tmp_path_factory.mktemp("model")
    readme = (REPOSITORY / "README.md").read_text("utf-8")
    [rules] = re.findall(r"^```yaml\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
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


@pytest.fixture
def folder(model: Path, tmp_path: Path) -> Path:
    """A copy of it for one command, which may change files."""
    return Path(shutil.copytree(model, tmp_path / "home"))


@pytest.mark.parametrize("line", [line for line in SHOWN if not _ELSEWHERE.match(line)])
async def test_shown_examples_work(line: str, folder: Path) -> None:
    async with mcp_upstream(tools=[tool("read_file"), tool("delete_file")]) as there:
        words = words_of(line, there.url)
        if words[0] == "unwrap":
            run("wrap", *words[1:3], "--deny", "^a", "--yes", home=folder)
        ended = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-m", "mcp_tool_filter", *words],
            capture_output=True, text=True, encoding="utf-8", timeout=60, check=False,
            stdin=subprocess.DEVNULL, cwd=folder, env=surroundings(folder, {"TOKEN": "x"}),
        )  # fmt: skip
    # '*delete*' is there to show what is refused.
    assert ended.returncode == ("'*" in line), ended.stdout + ended.stderr
    assert "Traceback" not in ended.stderr


def test_most_examples_are_run_here() -> None:
    assert sum(not _ELSEWHERE.match(line) for line in SHOWN) > 18
