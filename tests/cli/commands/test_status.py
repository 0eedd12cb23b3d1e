"""``status``: all servers of the config file and of clients, and the filters that run."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import subprocess
import sys
from contextlib import ExitStack
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from mcp_tool_filter.adapters.watch.running import running_filters
from mcp_tool_filter.cli.launcher import main
from tests.adapters.watch.test_running import base, eventually
from tests.browser import browser
from tests.cli.commands.test_serve import serving
from tests.cli.launched import RunningLauncher, run, surroundings
from tests.oauth_upstream import oauth_upstream
from tests.raw_upstream import TIMEOUT
from tests.session_upstream import session_upstream
from tests.stdio_client import filtered, started, upstream

MEMBERS = (
    "name", "source", "target", "reachable", "exposed", "hidden", "dead_patterns", "lock", "login",
    "running",
)  # fmt: skip


__all__ = ("base",)  # a fixture


@pytest.fixture
def home(tmp_path: Path, base: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "CODEX_HOME", "CLAUDE_CONFIG_DIR"):
        monkeypatch.delenv(variable, raising=False)
    (tmp_path / "project").mkdir()
    (tmp_path / "run").symlink_to(base)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path


def write_config(home: Path, text: str) -> Path:
    file = home / ".config" / "mcp-tool-filter" / "config.toml"
    file.parent.mkdir(parents=True)
    file.write_text(text)
    return file


def write_cursor(home: Path, file: str, **servers: object) -> None:
    (home / file).parent.mkdir(parents=True, exist_ok=True)
    (home / file).write_text(json.dumps({"mcpServers": servers}))


def status_of(home: Path, *words: str) -> tuple[int, dict[tuple[str, str], dict[str, Any]]]:
    ended = run("status", "--json", "--timeout", "3000", *words, home=home)
    assert ended.stderr == ""
    assert "s3cret" not in ended.stdout
    rows = json.loads(ended.stdout)
    assert all(set(MEMBERS) <= row.keys() for row in rows)
    return ended.returncode, {(row["name"], row["source"]): row for row in rows}


def test_every_server_is_shown_with_what_is_known_of_it(home: Path) -> None:
    command = upstream("--tools", "read_file,delete_file")
    words = [*command, "--page", "0"]
    left, gone = home / "started-by-project", ["/none/such", "--token=s3cret"]
    evil = ["--deny", "x", "--", "touch", str(left)]
    with session_upstream() as server, oauth_upstream() as behind_login:
        file = write_config(
            home,
            'deny = ["^delete_", "^resume$", "^nowhere"]\n'
            f'[servers.files]\ncommand = {json.dumps(command)}\ndeny = ["^dead"]\n'
            f'[servers.sessions]\nurl = "{server.url}"\nheader = ["X-Key: s3cret"]\n'
            '[servers.lost]\nurl = "http://127.0.0.1:1/mcp?key=s3cret"\n'
            '[servers.unset]\nurl = "http://127.0.0.1:1/mcp"\nheader = ["X-Key: $NOT_SET"]\n'
            f'[servers.login]\nurl = "{behind_login.url}"\n',
        )
        write_cursor(home, ".cursor/mcp.json", wrapped={"command": words[0], "args": words[1:]})
        assert main(["wrap", "cursor", "wrapped", "--deny", "^read_", "--yes"]) == 0
        write_cursor(
            home,
            ".codeium/windsurf/mcp_config.json",
            named={"command": "mcp-tool-filter", "args": ["--server", "files"]},
            more={"command": "mcp-tool-filter", "args": ["--server", "files", "--deny", "^read_"]},
            plain={"command": "npx", "args": ["x"]},
            gone_since_last_week={
                "command": "mcp-tool-filter",
                "args": ["--deny", "x", "--", *gone],
            },
            unsafe={"command": "mcp-tool-filter", "args": ["--deny", "(a+)+", "--", *command]},
        )
        write_cursor(
            home, "project/.cursor/mcp.json", evil={"command": "mcp-tool-filter", "args": evil}
        )
        code, rows = status_of(home)
        assert code == 1
        files = rows["files", "config.toml"]
        assert files["file"] == str(file)
        assert files["target"] == shlex.join(command)
        assert (files["reachable"], files["exposed"], files["hidden"]) == (True, 1, 1)
        assert files["dead_patterns"] == ["^nowhere", "^dead"], "^resume$ matches elsewhere"
        assert (files["lock"], files["login"], files["running"]) == (None, None, [])
        assert rows["sessions", "config.toml"]["dead_patterns"] == ["^nowhere"]
        for name, why in (("lost", "refused"), ("unset", "NOT_SET")):
            row = rows[name, "config.toml"]
            assert (row["reachable"], row["exposed"]) == (False, None)
            assert why in row["problem"]
        login = rows["login", "config.toml"]
        assert (login["reachable"], login["exposed"], login["login"]) == (True, None, "needed")
        wrapped = rows["wrapped", "cursor (user)"]
        assert (wrapped["reachable"], wrapped["exposed"], wrapped["hidden"]) == (True, 0, 2)
        named = rows["named", "windsurf (user)"]
        assert (named["target"], named["exposed"]) == (files["target"], 1)
        more = rows["more", "windsurf (user)"]
        assert (more["exposed"], more["hidden"]) == (0, 2), "it hides more than the file says"
        assert rows["gone_since_last_week", "windsurf (user)"]["reachable"] is False
        assert rows["evil", "cursor (project)"]["reachable"] is None
        unsafe = rows["unsafe", "windsurf (user)"]
        assert unsafe["reachable"] is False
        assert "catastrophic backtracking" in unsafe["problem"]
        assert unsafe["target"] == files["target"]
        assert len(rows) == 11, "an entry without the filter is no concern of ours"
        assert not left.exists()
        ended = run("status", "--timeout", "3000", home=home)
        assert (ended.returncode, "s3cret" in ended.stdout + ended.stderr) == (1, False)
        assert "\ngone_since_last_week\twindsurf (user)\tno\t" in ended.stdout
        assert "files\tconfig.toml\tyes\t1, 1 hidden\t2 dead" in ended.stdout
        assert 'files: the pattern "^dead" matches no tool' in ended.stderr
        assert f"login: mcp-tool-filter login {behind_login.url}" in ended.stderr


@pytest.mark.rest
def test_a_server_that_hangs_delays_no_other(home: Path) -> None:
    """They are asked at the same time: one after the other would take longer than we wait."""
    tables = [f'[servers.s{n}]\ncommand = ["sleep", "300"]\n' for n in range(24)]
    write_config(home, "".join(tables))
    code, rows = status_of(home)
    assert code == 1
    assert {row["problem"] for row in rows.values()} == {"Connection timeout after 3000ms"}
    left = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    assert "sleep 300" not in left.stdout


def test_without_servers_all_is_well(home: Path) -> None:
    assert status_of(home) == (0, {})
    ended = run("status", home=home)
    assert (ended.returncode, ended.stdout) == (0, "")
    assert "There is no server" in ended.stderr


def test_running_filters_are_joined_with_their_servers(home: Path) -> None:
    command = upstream("--tools", "read_file,delete_file")
    log = home / "audit.jsonl"
    write_config(home, f"[servers.files]\ncommand = {json.dumps(command)}\n")
    with ExitStack() as stack:
        flags = ["--audit-log", str(log)]
        one = stack.enter_context(filtered("--server", "files", *flags, home=home))
        flags += ["--deny", "^delete", "--", *command, "--page", "0"]
        two = stack.enter_context(filtered(*flags, home=home))
        for client in (one, two):
            client.opens()
            client.asks("tools/list")
            client.calls("delete_file")
        eventually(lambda: len(running_filters()) == 2)
        code, rows = status_of(home)
        assert code == 0
        [first] = [said] = rows["files", "config.toml"]["running"]
        assert (said["pid"], said["calls"], said["refused"]) == (one.process.pid, 1, 0)
        other = rows["stdio-upstream 1", "running"]
        assert (other["exposed"], other["hidden"], other["reachable"]) == (1, 1, None)
        [said] = other["running"]
        assert (said["pid"], said["refused"]) == (two.process.pid, 1)
        logs = sorted([first["audit_log"], said["audit_log"]])
        assert logs == [str(log), *map(str, home.glob("audit.jsonl.pid*"))], "each its own part"
        two.process.kill()
        two.ends()
        assert [key for key in status_of(home)[1] if key[1] == "running"] == []
        assert len(os.listdir(home / "run" / "mcp-tool-filter")) == 1


def test_what_one_process_serves_is_joined_by_name(home: Path) -> None:
    """Two servers of the file are the same command: their names tell them apart."""
    command = json.dumps(upstream("--tools", "read_file,delete_file"))
    with session_upstream() as server:
        text = (
            f"[servers.a]\ncommand = {command}\n[servers.b]\ncommand = {command}\n"
            f'deny = ["^delete_"]\n[servers.c]\nurl = "{server.url}"\n'
            '[servers.lost]\nurl = "http://127.0.0.1:1/mcp"\n'
        )
        write_config(home, text)
        with serving(home, text) as served:
            served.at("b").calls("read_file")
            served.at("c").calls("read_file")
            served.at("c").calls("nothing")
            eventually(running_filters)
            _, rows = status_of(home, "--config", str(served.file))
            of = {name: rows[name, served.file.name]["running"] for name in ("a", "b", "c", "lost")}
            assert of["lost"] == []
            said = {name: one[0] for name, one in of.items() if one}
            assert {one["pid"] for one in said.values()} == {served.process.pid}
            counts = {name: (one["calls"], one["refused"]) for name, one in said.items()}
            assert counts == {"a": (0, 0), "b": (1, 0), "c": (1, 1)}
            assert said["b"]["listens_at"] == f"http://127.0.0.1:{served.port}/b/mcp"
            assert (said["a"]["hidden"], said["b"]["hidden"]) == (0, 1)
        assert running_filters() == []


EVIL = "<img/src=x/onerror=document.title='owned'>"


async def test_one_page_shows_all_running_filters(home: Path, tmp_path: Path) -> None:
    """Behind a token, like each dashboard; names of tools are text."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "mcp_tool_filter", "status", "--open", "--no-browser"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=surroundings(home),
    )
    page_of = RunningLauncher(process)
    page_of.read()
    command = upstream("--tools", f"read_file,{EVIL}")
    try:
        url = (await page_of.says(r"Dashboard: (\S+)"))[1]
        port = int(url.partition("127.0.0.1:")[2].partition("/")[0])
        with started(sys.executable, "-m", "mcp_tool_filter", "--", *command, home=home) as client:
            client.opens()
            client.asks("tools/list")
            client.calls("read_file")
            eventually(running_filters)
            for path, status in (("/mcp/running", 403), (f"/mcp?token={'x' * 32}", 403)):
                connection = HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)
                connection.request("GET", path)
                assert connection.getresponse().status == status
                connection.close()
            with browser(tmp_path) as page:
                page.go(url)
                page.wait_for("Running filters", "stdio-upstream", "2 exposed, 0 hidden")
                page.find("#running summary").click()
                page.wait_for(EVIL, "read_file 1")
                assert page.run("return document.title") == "MCP tool filter"
                assert page.errors() == []
                client.leaves()
                page.wait_for("No filter is running.")
        process.terminate()
        assert await process.wait() == 0
    finally:
        await page_of.end()
