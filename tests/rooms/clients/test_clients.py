"""``clients``, ``wrap`` and ``unwrap`` on the files of a home directory."""

from __future__ import annotations

import json
import stat
import sys
import threading
from pathlib import Path

import pytest

from tests.cli.launched import Typed
from tests.stdio_client import UPSTREAM

CLAUDE = """\
{
  "numStartups": 3,
  "mcpServers": {
    "files": {"type": "stdio", "command": "npx", "args": ["-y", "files", "/srv/files"], "env": {}},
    "tickets": {
      "type": "http",
      "url": "https://tickets.example/mcp",
      "headers": {"Authorization": "Bearer top-s3cret"}
    }
  }
}
"""


@pytest.fixture(autouse=True)
def project(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a project; the user's file is there."""
    monkeypatch.setenv("PATH", str(home))
    monkeypatch.setenv("STARTS", str(home / "starts"))
    (home / ".claude.json").write_text(CLAUDE)
    return home / "project" / ".mcp.json"


def backups(home: Path) -> list[Path]:
    return list((home / ".local" / "state" / "mcp-tool-filter" / "backups").glob("*"))


def file_in(home: Path) -> str:
    return (home / ".claude.json").read_text()


def test_all_servers_are_listed(home: Path, typed: Typed) -> None:
    (home / ".codex").mkdir()
    (home / ".codex" / "config.toml").write_text('[mcp_servers.x]\ncommand = "x"\n')
    out = typed("clients").out
    assert "claude-code\tuser\tfiles\tno\tnpx -y files …" in out
    assert "claude-code\tuser\ttickets\tno\thttps://tickets.example/mcp" in out
    assert "codex\tuser\tx\tno\tx" in out
    out = typed("clients", "--json").out
    assert [one["server"] for one in json.loads(out)] == ["files", "tickets", "x"]
    assert "s3cret" not in out


def test_a_server_whose_filter_only_reports_does_not_look_protected(
    home: Path, typed: Typed
) -> None:
    flags = ("--deny", "^rm_", "--yes")
    typed("wrap", "claude-code", "files", *flags, "--shadow")
    typed("wrap", "claude-code", "tickets", *flags)
    out = typed("clients").out
    assert "claude-code\tuser\tfiles\tonly watched\t" in out
    assert "claude-code\tuser\ttickets\tyes\t" in out
    listed = json.loads(typed("clients", "--json").out)
    assert [(one["filtered"], one["shadow"]) for one in listed] == [(True, True), (True, False)]
    typed("wrap", "claude-code", "files", *flags)
    assert "--shadow" not in file_in(home)


GOOSE = """\
extensions:
  developer:
    type: builtin
    name: developer
  x: # mine
    type: stdio
    name: x
    cmd: /none/x
    args:
      - a # sure
    envs:
      KEY: top-s3cret
"""
CODEX = '[mcp_servers.x]\nurl = "https://a.example/mcp"\n[mcp_servers.x.oauth]\nclient_id = "c"\n'
OPENCODE = (
    '{"mcp": {"x": {"type": "local", "command": ["/none/x", "a"]}}}',
    '{"mcp": {"servers": {"x": {"command": ["/none/x"], // c\n}}}}',
    '{"mcp": {"x": {"type": "remote", "url": "http://127.0.0.1:1/mcp"}}}',
)
SHARED = '{"mcpServers": {"x": {"type": "local", "command": "/none/x"}}}'


@pytest.mark.parametrize(("words", "file", "text", "kept"), [
    (("claude-code", "files"), ".claude.json", CLAUDE, '"args": ["--deny", "^a", "--", "npx"'),
    (("claude-code", "tickets"), ".claude.json", CLAUDE, '"Authorization: Bearer top-s3cret"'),
    (("opencode", "x"), ".config/opencode/opencode.json", OPENCODE[0], '"--deny", "^a"'),
    (("opencode", "x"), ".config/opencode/opencode.jsonc", OPENCODE[1], "// c"),
    (("opencode", "x"), ".config/opencode/opencode.json", OPENCODE[2], '"--deny", "^a"'),
    (("codex", "x"), ".codex/config.toml", CODEX, '"--deny", "^a"'),
    (("goose", "x"), ".config/goose/config.yaml", GOOSE, "      - a # sure\n"),
    (("goose", "x"), ".config/goose/config.yaml", GOOSE, "      KEY: top-s3cret\n"),
    (("goose", "x", "--into", "servers.toml"), ".config/goose/config.yaml", GOOSE, "--server"),
    (("claude-code", "x"), "project/.mcp.json", SHARED, "--deny"),
    (("copilot", "x"), "project/.mcp.json", SHARED, "--deny"),
])  # fmt: skip
def test_wrap_and_unwrap_leave_the_file_as_it_was(
    words: tuple[str, ...], file: str, text: str, kept: str, home: Path, typed: Typed
) -> None:
    """Also if two clients share the file, and another one undoes it."""
    (home / ".copilot").mkdir()
    path = home / file
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text(text)
    wrapping = ["wrap", *words, "--deny", "^a"]
    assert "+" in typed(*wrapping, "--dry-run").out
    assert (path.read_text(), backups(home)) == (text, [])
    told = typed(*wrapping, "--yes").err
    assert kept in path.read_text()
    assert "s3cret" not in path.read_text().partition('"args"')[2].partition("]")[0]
    (backup,) = backups(home)
    assert (backup.read_text(), stat.S_IMODE(backup.stat().st_mode)) == (text, 0o600)
    said = typed("clients")
    assert f"{words[0]}\t" in said.out
    assert f"\t{words[1]}\tyes\t" in said.out
    assert "s3cret" not in said.out + said.err
    assert "developer" not in said.out
    is_told = "mcp-tool-filter login https://a.example/mcp" in told
    assert (is_told, "oauth]" in path.read_text()) == (text == CODEX, False)
    client = "claude-code" if words[0] == "copilot" else words[0]
    typed("unwrap", client, words[1], "--yes")
    assert (path.read_text(), backups(home)) == (text, [])


def test_a_file_that_cannot_be_read_is_the_only_mistake(home: Path, typed: Typed) -> None:
    (home / ".cursor").mkdir()
    (home / ".cursor" / "mcp.json").write_text("{")
    said = typed("wrap", "cursor", "files", "--deny", "^a", status=1).err
    assert said.startswith(f"Error: {home}/.cursor/mcp.json cannot be read\nline 1: ")
    assert "has no MCP servers" not in said


def test_a_path_of_this_machine_in_a_shared_file_gets_a_warning(
    home: Path, project: Path, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.parent.mkdir(exist_ok=True)
    project.write_text(SHARED)
    words = ("wrap", "claude-code", "x", "--scope", "project", "--deny", "^a", "--dry-run")
    said = "may be shared, and"
    assert (
        f"Warning: {project} {said} {sys.prefix}/bin/mcp-tool-filter is only" in typed(*words).err
    )
    user = ("wrap", "claude-code", "files", "--deny", "^a", "--dry-run")
    assert said not in typed(*user).err
    (program := home / "mcp-tool-filter").write_text("#!/bin/sh\n")
    program.chmod(0o755)
    assert said not in typed(*words).err  # a name that each machine finds on its PATH


def test_the_list_shows_what_each_filter_hides(home: Path, typed: Typed) -> None:
    flags = ("--deny", "^rm_", "--read-only", "--flag=--message-limit=1MB", "--yes")
    typed("wrap", "claude-code", "files", *flags)
    assert "npx -y files …\t--deny '^rm_' --read-only\n" in typed("clients").out


def test_there_is_one_backup_while_entries_are_wrapped(home: Path, typed: Typed) -> None:
    """It holds the file without the filter: also what was changed after the first wrap."""
    new = '"numStartups": 4, "mcpServers": {\n  "later" : {"command" : "z"},'
    for _ in range(2):
        typed("wrap", "claude-code", "files", "--deny", "^rm_", "--yes")
    text = file_in(home).replace('"numStartups": 3,\n  "mcpServers": {', new)
    (home / ".claude.json").write_text(text)
    original = CLAUDE.replace('"numStartups": 3,\n  "mcpServers": {', new)
    for server in ("later", "tickets"):
        typed("wrap", "claude-code", server, "--deny", "^rm_", "--yes")
        (backup,) = backups(home)
        assert backup.read_text() == original
    assert sorted(one.name for one in home.iterdir()) == [".claude.json", ".local", "project"]
    for server in ("files", "later", "tickets"):
        assert len(backups(home)) == 1
        typed("unwrap", "claude-code", server, "--yes")
    assert (file_in(home), backups(home)) == (original, [])


def test_what_a_client_saves_meanwhile_is_kept(
    home: Path, monkeypatch: pytest.MonkeyPatch, typed: Typed
) -> None:
    """Claude Code counts its starts in this file, for example while we wait for an answer."""
    file = home / ".claude.json"
    changes = [('"numStartups": 3', '"numStartups": 4'), ('"files"', '"other"')]

    def agree() -> bool:
        text = file.read_text().replace(*changes.pop(0))
        file.write_text(text[:9])  # it writes the rest while we look
        threading.Timer(0.02, file.write_text, [text]).start()
        return True

    monkeypatch.setattr("mcp_tool_filter.rooms.clients.changes.agrees", agree)
    typed("wrap", "claude-code", "files", "--deny", "^rm_")
    assert json.loads(file.read_text())["numStartups"] == 4
    assert "--deny" in file.read_text()
    assert "was edited in the meantime" in typed("unwrap", "claude-code", "files", status=1).err
    assert '"other"' in file.read_text()


@pytest.mark.parametrize("url", ["https://${HOST}:${PORT}/mcp", "${URL}", "$URL/mcp"])
def test_values_that_only_the_client_knows_can_be_anything(
    url: str, home: Path, typed: Typed
) -> None:
    entry = {"url": url, "headers": {"A": "Bearer ${TOKEN_OF_THE_CLIENT}"}}
    (home / ".claude.json").write_text(json.dumps({"mcpServers": {"x": entry}}))
    typed("wrap", "claude-code", "x", "--deny", "^a", "--yes")
    assert url in json.loads(file_in(home))["mcpServers"]["x"]["args"]


def test_a_change_is_shown_without_what_a_terminal_would_obey(home: Path, typed: Typed) -> None:
    """The author of a project's file may want to hide the command that it runs."""
    file = home / ".claude.json"
    file.write_text('{"mcpServers": {\n// \x1b[2K \x9b2K \u202e\n"x": {"command": "npx"}}}\n')
    shown = typed("wrap", "claude-code", "x", "--deny", "^a", "--dry-run").out
    assert "// \\x1b[2K \\x9b2K \\u202e" in shown


@pytest.mark.parametrize(("text", "why"), [
    ("{", "line 1: expecting property name"), ("\ufeff\n", "line 1: the file is empty"),
    ('{"a": NaN}', "line 1: there is no NaN in JSON"),
])  # fmt: skip
def test_a_broken_file_does_not_hide_the_others(
    text: str, why: str, home: Path, typed: Typed
) -> None:
    (home / ".gemini").mkdir()
    (home / ".gemini" / "settings.json").write_text(text)
    said = typed("clients")
    assert f"settings.json cannot be read: {why}" in said.err
    assert "tickets" in said.out
    assert "settings.json" not in typed("unwrap", "claude-code", "files").err


@pytest.fixture
def real(home: Path, project: Path) -> Path:
    """List the same server in the user's file and in the project's, on one line."""
    words = [UPSTREAM, "--tools", "read,drop-it", "--journal", "${STARTS:-x}"]
    entry = {"command": sys.executable, "args": words}
    for file in (home / ".claude.json", project):
        file.write_text(json.dumps({"mcpServers": {"s": entry, "gone": {"command": "/none/x"}}}))
    return project


@pytest.mark.parametrize(("flags", "said"), [
    ("--deny ^drop", "2 tools: 1 hidden"),
    ("--deny ^drpo", "2 tools: 0 hidden\nWarning: no tool is hidden\n"
     'Warning: the pattern "^drpo" matches no tool'),
    ("--deny r", "2 tools: 2 hidden\n"
     'Warning: no tool is left: the pattern "r" matches every tool'),
    ("--deny ^drop --allow drop", "2 tools: 2 hidden\n"
     "Warning: no tool is left: deny wins over allow; to keep a tool that deny hides,"
     " use --except"),
])  # fmt: skip
def test_the_server_is_asked_what_is_hidden_before_the_file_is_saved(
    flags: str, said: str, real: Path, typed: Typed
) -> None:
    words = ["wrap", "claude-code", "s", *flags.split(), "--yes"]
    told = typed(*words, "--scope", "user").err
    assert told.startswith(f"{said}\nSaved ")
    lines = told.splitlines()
    [warning] = [line for line in lines if ".mcp.json, without the filter" in line]
    assert "add --scope project, or --scope all" in warning
    assert "without the filter. " not in typed(*words, "--scope", "all").err
    assert "--deny" in real.read_text()


@pytest.mark.usefixtures("real")
def test_a_server_that_does_not_answer_is_wrapped_with_a_note(typed: Typed) -> None:
    words = ("wrap", "claude-code", "gone", "--deny", "a", "--yes", "--scope", "user")
    assert "gone was not asked for its tools, or did not answer" in typed(*words).err


@pytest.mark.usefixtures("real")
def test_an_entry_that_could_not_start_with_strict_is_not_saved(typed: Typed) -> None:
    words = ["wrap", "claude-code", "s", "--deny", "no_such", "--yes", "--scope", "user"]
    said = typed(*words, "--flag=--strict", status=1).err
    assert 'The pattern "no_such" matches no tool' in said
    assert "Saved" not in said
    typed(*words)


def test_all_servers_of_a_client_can_be_wrapped_and_restored(
    home: Path, real: Path, typed: Typed
) -> None:
    """A project's command is not started: its file may come from anybody."""
    text = file_in(home).replace("/none/x", "mcp-tool-filter")  # which cannot be wrapped
    (home / ".claude.json").write_text(text)
    before = real.read_text()
    words = ["wrap", "claude-code", "--all", "--deny", "^drop", "--yes"]
    typed(*words, "--scope", "project")
    assert not (home / "starts").exists()
    err = typed(*words, status=1).err
    assert "Warning: gone stays as it is: The entry already starts the filter" in err
    assert (home / "starts").exists()
    assert [file.count("--deny") for file in (file_in(home), real.read_text())] == [1, 2]
    typed("unwrap", "claude-code", "--all", "--yes")
    assert (file_in(home), real.read_text()) == (text, before)


def test_a_server_listed_twice_needs_a_scope(
    home: Path, project: Path, typed: Typed, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.write_text(text := '{"mcpServers": {"files": {"command": "x"}}}')
    both, advice = ("claude-code", "files", "--yes"), "--scope user or --scope project"
    wrap = ("wrap", *both, "--deny", "^a")
    assert advice in typed(*wrap, status=2).err
    undo = "mcp-tool-filter unwrap claude-code files --scope project"
    assert undo in typed(*wrap, "--scope", "project").err
    assert file_in(home) == CLAUDE
    typed("unwrap", *both)  # only one is wrapped
    assert project.read_text() == text
    typed(*wrap, "--scope", "all")
    assert advice in typed("unwrap", *both, status=2).err
    typed("unwrap", *both, "--scope", "all")
    monkeypatch.setattr("mcp_tool_filter.rooms.clients.changes.agrees", lambda: False)
    refused = typed("wrap", "claude-code", "files", "--deny", "^a", "--scope", "user", status=1)
    assert refused.err.endswith("Nothing changed\n"), "other files are not named"


@pytest.mark.parametrize("indent", [None, 2])
def test_no_secret_of_another_server_is_shown(indent: int | None, home: Path, typed: Typed) -> None:
    """They stand in the same line of the file, or in the lines around the change."""
    other = {"command": "x", "env": {"KEY": "n3ighbour"}}
    servers = {"before": other, "files": {"command": "y"}, "after": other}
    file = {"mcpServers": servers, "projects": {"/p": {"mcpServers": {"far": other}}}}
    (home / ".claude.json").write_text(json.dumps(file, indent=indent))
    for command in (["wrap", "--deny", "^a"], ["unwrap"]):
        said = typed(command[0], "claude-code", "files", *command[1:], "--yes")
        assert "mcp-tool-filter" in said.out
        assert "n3ighbour" not in said.out + said.err


def test_a_secret_among_the_arguments_is_not_shown(home: Path, typed: Typed) -> None:
    secret = {"command": "x", "args": ["--token", "n3ighbour", "--port", "8080"]}
    servers = {"files": {"command": "y"}, "after": secret}
    (home / ".claude.json").write_text(json.dumps({"mcpServers": servers}))
    wrap = ("--deny", "^a", "--yes")
    said = [typed("clients"), *(typed("wrap", "claude-code", s, *wrap) for s in ("after", "files"))]
    assert "n3ighbour" not in str(said)
    assert "8080" in said[-1].out


def test_the_nearest_of_two_project_files_counts(home: Path, project: Path, typed: Typed) -> None:
    (home / ".mcp.json").write_text('{"mcpServers": {"both": {"command": "far"}}}')
    project.write_text('{"mcpServers": {"both": {"command": "near"}}}')
    assert "far" not in typed("clients").out
    typed("wrap", "claude-code", "both", "--deny", "^a", "--yes")
    assert "--deny" in project.read_text()
    assert "--deny" not in (home / ".mcp.json").read_text()
