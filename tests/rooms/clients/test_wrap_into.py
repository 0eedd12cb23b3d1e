"""``wrap --into`` and ``--server``: servers of clients move into one file, and back."""

from __future__ import annotations

import json
import os
import stat
import sys
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from mcp_tool_filter.cli.commands.schema import first_line
from mcp_tool_filter.cli.options import ENTRY
from tests.cli.launched import Said, Typed
from tests.rooms.stdio.relaying import names_in
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


class Cursor:
    """Cursor's file in a home, and the file that is read if none is named."""

    def __init__(self, home: Path, typed: Typed) -> None:
        self.home, self.file, self.typed = home, home / ".cursor" / "mcp.json", typed
        self.default = home / ".config" / "mcp-tool-filter" / "config.toml"
        for file in (self.file, self.default):
            file.parent.mkdir(parents=True)
        self.file.write_text(CURSOR)
        self.file.chmod(0o600)

    def wrap(self, into: Path, *more: str, server: str = "files") -> Said:
        return self.typed("wrap", "cursor", server, "--into", into, "--yes", *more)

    def unwrap(self, server: str = "files") -> Said:
        return self.typed("unwrap", "cursor", server, "--yes")

    def entry(self, name: str = "files") -> dict[str, Any]:
        text = self.text.replace("// mine", "").replace("// both", "")
        return dict(json.loads(text)["mcpServers"][name])

    @property
    def text(self) -> str:
        return self.file.read_text()

    @property
    def servers(self) -> str:
        return self.default.read_text() if self.default.exists() else ""

    @contextmanager
    def client(self, name: str) -> Iterator[StdioClient]:
        """Start an entry as its client does."""
        entry = self.entry(name)
        with started(entry["command"], *entry["args"], home=self.home) as client:
            client.opens()
            yield client


@pytest.fixture
def it(home: Path, typed: Typed) -> Cursor:
    return Cursor(home, typed)


def test_a_file_of_servers_that_is_broken_is_named(it: Cursor) -> None:
    broken = it.home / "broken.toml"
    broken.write_text("deny = [")
    said = it.typed("wrap", "cursor", "files", "--into", broken, "--yes", status=1)
    assert said.err.splitlines()[0] == f"Error: {broken} is not TOML"


def test_a_command_moves_into_the_default_file_and_back(it: Cursor) -> None:
    said = it.wrap(it.default, "--deny", "^delete_")
    assert "3 tools: 1 hidden" in said.err
    assert "s3cret" not in said.out + said.err
    assert "[servers.files]" in said.out
    assert stat.S_IMODE(it.default.stat().st_mode) == 0o600
    entry = it.entry()
    assert (entry["args"], list(entry["env"])) == (["--server", "files"], [ENTRY])
    with it.client("files") as client:
        assert names_in(client.asks("tools/list")) == ["read_file", "env"]
        assert "env-s3cret" in json.dumps(client.calls("env", name="TOKEN"))
        assert client.leaves() == 0
    assert f"cursor\tuser\tfiles\tyes\t{sys.executable}" in it.typed("clients").out
    it.unwrap()
    assert (it.text, it.servers) == (CURSOR, "")


def test_a_new_file_names_its_schema_first_and_undo_leaves_nothing(it: Cursor) -> None:
    """Editors look for the schema in the first line, also if the policy moves to the top."""
    said = it.typed("wrap", "cursor", "--all", "--into", it.default, "--yes", "--deny", "^delete_")
    assert f"+{first_line('config')}" in said.out
    assert it.servers.startswith(first_line("config") + 'deny = ["^delete_"]')
    it.typed("unwrap", "--all", "--yes")
    assert it.servers == ""


def test_undo_leaves_nothing_also_after_we_were_installed_elsewhere(it: Cursor) -> None:
    it.typed("wrap", "cursor", "--all", "--into", it.default, "--yes", "--deny", "^delete_")
    other = "#:schema file:///other/place/mcp_tool_filter/docs/config.schema.json\n"
    it.default.write_text(it.servers.replace(first_line("config"), other))
    it.typed("unwrap", "--all", "--yes")
    assert it.text == CURSOR
    assert not it.default.exists()


def test_a_file_that_was_there_before_gets_no_line_of_ours(it: Cursor) -> None:
    mine = "\ufeff#:schema ./mine.json\n# ours\n"
    it.default.write_text(mine)
    it.typed("wrap", "cursor", "--all", "--into", it.default, "--yes", "--deny", "^delete_")
    assert it.servers.startswith('\ufeff#:schema ./mine.json\ndeny = ["^delete_"]')
    it.typed("unwrap", "--all", "--yes")
    assert it.servers == mine


def test_a_url_moves_into_another_file_with_its_headers(it: Cursor) -> None:
    with session_upstream() as upstream:
        it.file.write_text(it.text.replace("URL", upstream.url))
        before = it.text
        file = it.home / "team.toml"
        file.write_text('# ours\ndeny = ["^drop"]\n')
        it.wrap(file, "--allow", "_file", server="linear")
        assert file.read_text().startswith('# ours\ndeny = ["^drop"]\n')
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        entry = it.entry("linear")
        assert entry["args"] == ["--server", "linear", "--config", str(file)]
        assert "s3cret" not in it.text.replace("env-s3cret", "")
        with it.client("linear") as client:
            assert names_in(client.asks("tools/list")) == ["read_file", "delete_file"]
        assert {one.headers["authorization"] for one in upstream.journal} == {HEADER}
        it.unwrap("--all")
        assert (it.text, file.read_text()) == (before, '# ours\ndeny = ["^drop"]\n')


def test_the_policy_of_a_wrapped_entry_moves_too_and_process_flags_stay(it: Cursor) -> None:
    log = str(it.home / "audit.jsonl")
    wrap = ("wrap", "cursor", "files", "--yes", "--deny")
    it.typed(*wrap, "^delete_", "--flag=--audit-log", f"--flag={log}", "--flag=--ignore-case")
    it.wrap(it.default)
    assert it.entry()["args"] == ["--server", "files", "--audit-log", log]
    text = it.servers
    assert 'deny = ["^delete_"]' in text
    assert "ignore-case = true" in text
    it.wrap(it.default, "--deny", "^read_")
    assert it.servers.count("[servers") == 1
    assert 'deny = ["^delete_", "^read_"]' in it.servers, "a policy is added to"
    it.typed(*wrap, "^x")
    assert it.servers == ""
    assert {"^delete_", "^read_", "^x", "--ignore-case", log} <= set(it.entry()["args"])
    it.unwrap()
    assert it.text == CURSOR


def test_a_name_that_is_taken_gets_a_number_and_only_our_section_goes(it: Cursor) -> None:
    mine = '[servers.files]\nurl = "http://localhost:1/mcp"\n'
    it.default.write_text(mine)
    it.wrap(it.default)
    assert it.entry()["args"] == ["--server", "files-2"]
    it.default.write_text(it.servers + '\n[servers.z]\nurl = "http://z"\n')
    it.unwrap()
    assert it.text == CURSOR
    assert it.servers == mine + '\n[servers.z]\nurl = "http://z"\n'


def test_a_section_that_a_person_wrote_is_not_removed(it: Cursor) -> None:
    """Nor can a project's file get the secrets of a section by naming it."""
    it.wrap(it.default)
    sections = it.servers
    (it.home / "project" / ".cursor").mkdir()
    project = it.home / "project" / ".cursor" / "mcp.json"
    stolen = {"mcpServers": {"x": {"command": "mcp-tool-filter", "args": ["--server", "files"]}}}
    project.write_text(json.dumps(stolen))
    assert "filtered, but not by wrap" in it.unwrap("x").err
    assert json.loads(project.read_text()) == stolen
    assert it.servers == sections
    assert "which another entry starts" in it.unwrap().err
    assert it.servers == sections


def test_the_section_goes_also_if_two_clients_read_the_same_file(it: Cursor) -> None:
    """Claude Code and Copilot CLI both read a project's .mcp.json."""
    (it.home / ".copilot").mkdir()
    file = it.home / "project" / ".mcp.json"
    file.write_text(CURSOR.replace("// mine", "").replace("// both", ""))
    before, words = file.read_text(), ["claude-code", "files", "--yes"]
    it.typed("wrap", *words, "--into", str(it.default), "--deny", "^delete")
    assert "[servers.files]" in it.servers
    it.typed("unwrap", *words)
    assert file.read_text() == before
    assert "servers" not in it.servers


def test_a_dry_run_and_a_fifo_change_nothing(it: Cursor) -> None:
    file = it.home / "x.toml"
    words = ["wrap", "cursor", "files", "--into", str(file)]
    said = it.typed(*words, "--dry-run")
    assert "+[servers.files]" in said.out
    assert "s3cret" not in said.out + said.err
    assert not file.exists()
    os.mkfifo(file)
    it.typed(*words, "--yes", status=None)
    assert it.text == CURSOR


def test_the_section_goes_again_if_the_client_has_saved_its_file(
    it: Cursor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def edit() -> bool:
        it.file.write_text(it.text.replace('"--tools"', '"--tulz"'))
        return True

    monkeypatch.setattr("mcp_tool_filter.rooms.clients.changes.agrees", edit)
    it.typed("wrap", "cursor", "files", "--into", it.default, status=1)
    assert '"--tulz"' in it.text
    assert "servers" not in it.servers


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


def test_a_server_of_the_file_can_be_looked_at_by_its_name(it: Cursor, ran: Typed) -> None:
    it.default.write_text(SERVERS)
    listed = json.loads(ran("--list-tools", "--json", "--server", "files").out)["tools"]
    assert [one["name"] for one in listed if one["exposed"]] == ["read_file", "write_file"]
    assert "Tools: " in ran("--dry-run", "--server", "files").out
    assert "1 denied" in ran("doctor", "--server", "files").out


def test_the_entry_of_a_server_of_the_file_has_no_secrets(it: Cursor) -> None:
    (it.home / "project" / "x.toml").write_text(
        '[servers.files]\ncommand = ["npx", "files"]\nenv = {KEY = "s3cret"}\n'
    )
    said = it.typed("config", "cursor", "--server", "files", "--config", "x.toml")
    entry = json.loads(said.out)["mcpServers"]["files"]
    file = str(it.home / "project" / "x.toml")
    assert entry["args"] == ["--server", "files", "--config", file]
    assert "s3cret" not in said.out + said.err


def test_all_entries_become_one_and_come_back(it: Cursor) -> None:
    with session_upstream() as upstream:
        it.file.write_text(it.text.replace("URL", upstream.url))
        before = it.text
        said = it.wrap(it.default, "--deny", "^delete_", server="--all")
        assert "serve" in said.out
        listed = json.loads(it.text.replace("// mine", "").replace("// both", ""))["mcpServers"]
        assert list(listed) == ["mcp-tool-filter"]
        assert listed["mcp-tool-filter"]["args"] == ["serve", "--stdio"]
        assert it.servers.count("[servers.") == 2
        assert "s3cret" not in it.text
        with it.client("mcp-tool-filter") as client:
            tools = names_in(client.asks("tools/list"))
            assert {"files_read_file", "linear_read_file"} <= set(tools)
            assert "files_delete_file" not in tools
            assert client.leaves() == 0
        again = it.wrap(it.default, server="--all")
        assert "Nothing to do" in again.err
        rows = json.loads(it.typed("status", "--json", status=0).out)
        names = [one["name"] for one in rows]
        assert names == ["files", "linear", "mcp-tool-filter", "merged"]
        it.unwrap("--all")
        assert (it.text, it.servers) == (before, "")


def test_an_entry_that_was_wrapped_later_beside_the_one_for_all_comes_back_too(it: Cursor) -> None:
    before = it.text
    it.typed("wrap", "cursor", "--all", "--into", it.default, "--yes", "--deny", "^delete_")
    listed = json.loads(it.text.replace("// mine", "").replace("// both", ""))
    words = [UPSTREAM, "--tools", "a,b"]
    listed["mcpServers"]["late"] = {"command": sys.executable, "args": words}
    it.file.write_text(json.dumps(listed))
    it.typed("wrap", "cursor", "late", "--deny", "^a", "--yes")
    it.typed("unwrap", "--all", "--yes")
    restored = json.loads(it.text)["mcpServers"]
    assert restored.pop("late") == {"command": sys.executable, "args": words}
    assert (
        restored == json.loads(before.replace("// mine", "").replace("// both", ""))["mcpServers"]
    )
    assert not it.default.exists()


def test_entries_that_were_moved_one_by_one_become_one_too(it: Cursor) -> None:
    before = it.text
    it.wrap(it.default, "--deny", "^delete_")
    it.typed("wrap", "cursor", "--all", "--into", it.default, "--yes")
    assert it.servers.count("deny = ") == 1, "the policy of the first stays"
    assert it.text.count('"args"') == 1
    it.unwrap("--all")
    assert (json.loads(it.text.replace("// mine", "").replace("// both", "")), it.servers) == (
        json.loads(before.replace("// mine", "").replace("// both", "")),
        "",
    )


CODEX = f"""\
# mine
model = "x"

[mcp_servers.files]  # here
command = {json.dumps(sys.executable)}
args = [{json.dumps(UPSTREAM)}, "--tools", "read_file,delete_file"]
env = {{TOKEN = "env-s3cret"}}

[mcp_servers.more]
command = {json.dumps(sys.executable)}
args = [{json.dumps(UPSTREAM)}, "--tools", "other"]

[profiles.a]
model = "y"
"""
GOOSE = f"""\
# mine
GOOSE_MODEL: x
extensions:
  files:  # here
    type: stdio
    enabled: true
    name: files
    cmd: {sys.executable}
    args: [{UPSTREAM}, --tools, "read_file,delete_file"]
    envs:
      TOKEN: env-s3cret
    timeout: 300
  more:
    type: stdio
    enabled: true
    name: more
    cmd: {sys.executable}
    args: [{UPSTREAM}, --tools, other]
    timeout: 300
GOOSE_MODE: auto
"""


def of_codex(text: str) -> dict[str, Any]:
    return dict(tomllib.loads(text)["mcp_servers"])


def of_goose(text: str) -> dict[str, Any]:
    servers = YAML(typ="safe").load(text)["extensions"]
    return {name: {"command": one["cmd"], **one} for name, one in servers.items()}


@pytest.mark.parametrize(
    ("client", "place", "before", "read"),
    [
        ("codex", ".codex/config.toml", CODEX, of_codex),
        ("goose", ".config/goose/config.yaml", GOOSE, of_goose),
    ],
)
def test_entries_in_other_languages_become_one_and_come_back(
    client: str,
    place: str,
    before: str,
    read: Callable[[str], dict[str, Any]],
    home: Path,
    typed: Typed,
) -> None:
    file, servers = home / place, home / "all.toml"
    file.parent.mkdir(parents=True)
    file.write_text(before)
    words = ("--all", "--into", servers, "--yes")
    typed("wrap", client, *words, "--deny", "^delete_")
    after = file.read_text()
    [(name, entry)] = read(after).items()
    assert name == "mcp-tool-filter"
    assert entry["args"] == ["serve", "--stdio", "--config", str(servers)]
    kept = [line for line in before.splitlines() if line.startswith(("# mine", "model", "GOOSE_"))]
    assert all(line in after for line in kept)
    assert set(tomllib.loads(servers.read_text())["servers"]) == {"files", "more"}
    with started(entry["command"], *entry["args"], home=home) as it:
        it.opens()
        assert names_in(it.asks("tools/list")) == ["files_read_file", "more_other"]
        assert it.leaves() == 0
    assert "Nothing to do" in typed("wrap", client, *words).err
    typed("unwrap", client, "--all", "--yes")
    assert (file.read_text(), servers.exists()) == (before, False)
