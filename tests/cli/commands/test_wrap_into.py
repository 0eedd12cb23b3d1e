"""``wrap --into`` and ``--server``: servers of clients move into one file, and back."""

from __future__ import annotations

import json
import os
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mcp_tool_filter.cli.launcher import main
from tests.cli.launched import Typed, run
from tests.session_upstream import session_upstream
from tests.stdio_client import UPSTREAM, StdioClient, started

HEADER = "Bearer top-s3cret"
CURSOR = f"""\
{{
  // mine
  "mcpServers": {{
    "files": {{
      "command": {json.dumps(sys.executable)},
      "args": [{json.dumps(UPSTREAM)}, "--tools", "read_file,delete_file,env"],   // both
      "env": {{ "TOKEN": "env-s3cret" }}
    }},
    "linear": {{ "url": "URL", "headers": {{ "Authorization": "{HEADER}" }} }}
  }}
}}
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR", "CODEX_HOME"):
        monkeypatch.delenv(variable, raising=False)
    (tmp_path / "project").mkdir()
    (tmp_path / ".cursor").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path / "project")
    file_of(tmp_path).write_text(CURSOR)
    file_of(tmp_path).chmod(0o600)
    return tmp_path


def file_of(home: Path) -> Path:
    return home / ".cursor" / "mcp.json"


def default_of(home: Path) -> Path:
    return home / ".config" / "mcp-tool-filter" / "config.toml"


def entry_of(home: Path, name: str = "files") -> dict[str, Any]:
    text = file_of(home).read_text().replace("// mine", "").replace("// both", "")
    entry: dict[str, Any] = json.loads(text)["mcpServers"][name]
    return entry


@contextmanager
def client_of(home: Path, name: str) -> Iterator[StdioClient]:
    """Start an entry as its client does."""
    entry = entry_of(home, name)
    with started(entry["command"], *entry["args"], home=home) as client:
        client.opens()
        yield client


def wrapped_into(home: Path, file: Path, *more: str, server: str = "files") -> None:
    assert main(["wrap", "cursor", server, "--into", str(file), "--yes", *more]) == 0


def test_a_command_moves_into_the_default_file_and_back(
    home: Path, capsys: pytest.CaptureFixture[str], typed: Typed
) -> None:
    wrapped_into(home, default_of(home), "--deny", "^delete_")
    said = capsys.readouterr()
    assert "3 tools: 1 hidden" in said.err
    assert "s3cret" not in said.out + said.err
    assert "[servers.files]" in said.out
    assert stat.S_IMODE(default_of(home).stat().st_mode) == 0o600
    entry = entry_of(home)
    assert entry["args"] == ["--server", "files"]
    assert "env" not in entry
    with client_of(home, "files") as client:
        tools = client.asks("tools/list")["result"]["tools"]
        assert [tool["name"] for tool in tools] == ["read_file", "env"]
        assert "env-s3cret" in json.dumps(client.calls("env", name="TOKEN"))
        assert client.leaves() == 0
    assert f"cursor\tuser\tfiles\tyes\t{sys.executable}" in typed("clients").out
    assert main(["unwrap", "cursor", "files", "--yes"]) == 0
    assert file_of(home).read_text() == CURSOR
    assert default_of(home).read_text() == ""


def test_a_url_moves_into_another_file_with_its_headers(home: Path) -> None:
    with session_upstream() as upstream:
        file_of(home).write_text(file_of(home).read_text().replace("URL", upstream.url))
        before = file_of(home).read_text()
        file = home / "team.toml"
        file.write_text('# ours\ndeny = ["^drop"]\n')
        wrapped_into(home, file, "--allow", "_file", server="linear")
        assert file.read_text().startswith('# ours\ndeny = ["^drop"]\n')
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        entry = entry_of(home, "linear")
        assert entry["args"] == ["--server", "linear", "--config", str(file)]
        assert "s3cret" not in file_of(home).read_text().replace("env-s3cret", "")
        with client_of(home, "linear") as client:
            tools = client.asks("tools/list")["result"]["tools"]
            assert [tool["name"] for tool in tools] == ["read_file", "delete_file"]
        sent = [
            {key.lower(): value for key, value in one.headers.items()} for one in upstream.journal
        ]
        assert sent
        assert all(one.get("authorization") == HEADER for one in sent), upstream.journal
        assert main(["unwrap", "cursor", "--all", "--yes"]) == 0
        assert file_of(home).read_text() == before
        assert file.read_text() == '# ours\ndeny = ["^drop"]\n'


def test_the_policy_of_a_wrapped_entry_moves_too_and_process_flags_stay(home: Path) -> None:
    log = str(home / "audit.jsonl")
    words = ["wrap", "cursor", "files", "--deny", "^delete_", "--flag=--audit-log", "--yes"]
    assert main([*words, f"--flag={log}", "--flag=--ignore-case"]) == 0
    wrapped_into(home, default_of(home))
    assert entry_of(home)["args"] == ["--server", "files", "--audit-log", log]
    text = default_of(home).read_text()
    assert 'deny = ["^delete_"]' in text
    assert "ignore-case = true" in text
    wrapped_into(home, default_of(home), "--deny", "^read_")
    assert default_of(home).read_text().count("[servers") == 1
    assert 'deny = ["^read_"]' in default_of(home).read_text()
    assert main(["wrap", "cursor", "files", "--deny", "^x", "--yes"]) == 0
    assert default_of(home).read_text() == ""
    assert main(["unwrap", "cursor", "files", "--yes"]) == 0
    assert file_of(home).read_text() == CURSOR


def test_a_name_that_is_taken_gets_a_number_and_only_our_section_goes(home: Path) -> None:
    default_of(home).parent.mkdir(parents=True)
    mine = '[servers.files]\nurl = "http://localhost:1/mcp"\n'
    default_of(home).write_text(mine)
    wrapped_into(home, default_of(home))
    assert entry_of(home)["args"] == ["--server", "files-2"]
    default_of(home).write_text(default_of(home).read_text() + '\n[servers.z]\nurl = "http://z"\n')
    assert main(["unwrap", "cursor", "files", "--yes"]) == 0
    assert file_of(home).read_text() == CURSOR
    assert default_of(home).read_text() == mine + '\n[servers.z]\nurl = "http://z"\n'


def test_a_section_that_a_person_wrote_is_not_removed(home: Path, typed: Typed) -> None:
    """Nor can a project's file get the secrets of a section by naming it."""
    wrapped_into(home, default_of(home))
    sections = default_of(home).read_text()
    (home / "project" / ".cursor").mkdir()
    project = home / "project" / ".cursor" / "mcp.json"
    stolen = {"mcpServers": {"x": {"command": "mcp-tool-filter", "args": ["--server", "files"]}}}
    project.write_text(json.dumps(stolen))
    assert "filtered, but not by wrap" in typed("unwrap", "cursor", "x", "--yes").err
    assert json.loads(project.read_text()) == stolen
    assert default_of(home).read_text() == sections
    assert "which another entry starts" in typed("unwrap", "cursor", "files", "--yes").err
    assert default_of(home).read_text() == sections


def test_the_section_goes_also_if_two_clients_read_the_same_file(home: Path) -> None:
    """Claude Code and Copilot CLI both read a project's .mcp.json."""
    (home / ".copilot").mkdir()
    file = home / "project" / ".mcp.json"
    file.write_text(CURSOR.replace("// mine", "").replace("// both", ""))
    before, words = file.read_text(), ["claude-code", "files", "--yes"]
    assert main(["wrap", *words, "--into", str(default_of(home)), "--deny", "^delete"]) == 0
    assert "[servers.files]" in default_of(home).read_text()
    assert main(["unwrap", *words]) == 0
    assert file.read_text() == before
    assert "servers" not in default_of(home).read_text()


def test_a_dry_run_and_a_mistake_change_nothing(
    home: Path, capsys: pytest.CaptureFixture[str], typed: Typed
) -> None:
    file = home / "x.toml"
    words = ["wrap", "cursor", "files", "--into", str(file)]
    said = typed(*words, "--dry-run")
    assert "+[servers.files]" in said.out
    assert "s3cret" not in said.out + said.err
    assert not file.exists()
    for content, more in (
        ("deny = 3", []),
        ("servers = {}", []),
        ("[servers.a]\n", []),
        ("", ["--flag=--config", "--flag=x"]),
        ("", ["--deny", "(a+)+"]),
    ):
        file.write_text(content)
        assert main([*words, "--yes", *more]) in (1, 2), content
        err = capsys.readouterr().err
        assert "Traceback" not in err
        assert err.startswith("Error: ")
        assert (file.read_text(), file_of(home).read_text()) == (content, CURSOR)
    file.unlink()
    os.mkfifo(file)
    assert main([*words, "--yes"]) in (1, 2)
    assert file_of(home).read_text() == CURSOR


def test_the_section_goes_again_if_the_client_has_saved_its_file(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = file_of(home)
    asked = "mcp_tool_filter.cli.commands.clients._agrees"

    def edit() -> bool:
        file.write_text(file.read_text().replace('"--tools"', '"--tulz"'))
        return True

    monkeypatch.setattr(asked, edit)
    assert main(["wrap", "cursor", "files", "--into", str(default_of(home))]) == 1
    assert '"--tulz"' in file.read_text()
    assert "servers" not in default_of(home).read_text()


SERVERS = f"""\
deny = ["^delete_"]
dashboard = 0
[servers.files]
command = [{json.dumps(sys.executable)}, {json.dumps(UPSTREAM)}]
allow = ["_file$"]
[servers.lost]
url = "http://127.0.0.1:1/mcp"
header = ["X-Key: $NOBODY_HAS_SET_THIS"]
"""


def test_a_server_of_the_file_can_be_looked_at_by_its_name(home: Path) -> None:
    default_of(home).parent.mkdir(parents=True)
    default_of(home).write_text(SERVERS)
    listed = run("--list-tools", "--format", "names", "--server", "files", home=home)
    assert listed.stdout.split() == ["read_file", "write_file"]
    report = run("--dry-run", "--server", "files", home=home)
    assert "Tools: " in report.stdout
    doctor = run("doctor", "--server", "files", home=home)
    assert doctor.returncode == 0, doctor.stdout
    assert "1 denied" in doctor.stdout


def test_the_entry_of_a_server_of_the_file_has_no_secrets(home: Path) -> None:
    (home / "project" / "x.toml").write_text(
        '[servers.files]\ncommand = ["npx", "files"]\nenv = {KEY = "s3cret"}\n'
    )
    words = ["config", "cursor", "--server", "files", "--config", "x.toml"]
    ended = run(*words, home=home)
    entry = json.loads(ended.stdout)["mcpServers"]["files"]
    file = str(home / "project" / "x.toml")
    assert entry["args"] == ["--server", "files", "--config", file]
    assert "s3cret" not in ended.stdout + ended.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--server", "filse"], "There is no server filse"),
        (["--server", "filse"], "did you mean files?"),
        (["--server", "lost"], "NOBODY_HAS_SET_THIS"),
        (["--server", "files", "--", "x"], "Give --server or the command after --, not both"),
        (["--server", "files", "-u", "http://x"], "Give --server or --upstream, not both"),
        (["--server", "files", "--dashboard", "0"], "--dashboard does not work over stdio"),
        (["--server", "files", "--server", "lost"], "--server is given twice"),
        (["--server", "x", "--config", "/nonexistent"], "Cannot read the config file"),
    ],
)
def test_a_server_that_cannot_be_started_is_one_clear_error(
    words: list[str], said: str, home: Path
) -> None:
    default_of(home).parent.mkdir(parents=True)
    default_of(home).write_text(SERVERS)
    ended = run(*words, home=home)
    assert (ended.returncode, ended.stdout) != (0, "")
    assert said in ended.stderr
    assert "Traceback" not in ended.stderr


def test_without_a_file_there_is_no_server(home: Path) -> None:
    ended = run("--server", "x", home=home)
    assert ended.returncode == 2
    assert "--server needs a config file" in ended.stderr
