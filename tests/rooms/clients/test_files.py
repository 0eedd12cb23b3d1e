"""Clients' files are found, and edited without a loss."""

from __future__ import annotations

import os
import re
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from mcp_tool_filter.cli.table import CLIENTS
from mcp_tool_filter.cli.whole_file import replace_if_unchanged, whole_file
from mcp_tool_filter.rooms.clients import entries, files
from mcp_tool_filter.rooms.clients.entries import ServerEntry
from mcp_tool_filter.rooms.clients.files import ClientFile, ConfigPlace, Whereabouts
from tests.rows import each_row

JSON = """\
{
  // my servers
  "mcpServers": {
    "files": { "command": "npx", "args": ["-y", "files"], /* keep */ "env": {"KEY": "k"} },
    "linear": {
      "type": "http", // remote
      "url": "https://mcp.example.com/mcp",
      "headers": {"Authorization": "Bearer abc"},
      "disabled": false,
    },
  },
  "other": [1, 2,],
}
"""
TOML = """\
# my settings
model = "x"

[mcp_servers.files]   # keep
command = "npx"
args = ["-y", "files"]
env = { KEY = "k" }   # secret

[mcp_servers.remote]
url = "https://mcp.example.com/mcp"
bearer_token_env_var = "TOKEN"
"""
YAML = """\
# my settings
GOOSE_MODEL: x   # the model
extensions:
  developer: {enabled: true, type: builtin, name: developer}
  files:   # keep
    enabled: true
    type: stdio
    name: files
    cmd: npx
    args:
      - -y # sure
      # it
      - 'files'
    envs:
      KEY: k
    env_keys: []

  # of the next
  linear:
    type: streamable_http
    name: linear
    uri: https://mcp.example.com/mcp
    headers:
      Authorization: Bearer abc
      X-Team: >-
        a
        b
    timeout: 300
  flow: {type: stdio, cmd: npx, args: [-y, "files"], envs: {KEY: k}}
# the end
"""


@pytest.fixture(autouse=True)
def state(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))


def parsed(file: Path | str, text: str) -> ClientFile:
    key = {".toml": "mcp_servers", ".yaml": "extensions"}.get(Path(file).suffix, "mcpServers")
    return ClientFile(ConfigPlace("some", "user", Path(file), (key,)), text.encode(), text)


def opened(file: Path, text: str) -> ClientFile:
    file.write_bytes(text.encode())
    found = files.read(parsed(file, "").place)
    assert found
    return found


def wrapped_for(entry: ServerEntry, pattern: str = "^rm") -> ServerEntry:
    return entries.wrap(entry, ["--deny", pattern], ["mcp-tool-filter"])


COMMENTED = {
    "commented.toml": """\
[mcp_servers.a] # 0
url = "https://a.example/#mcp" # 1
scopes = ["x"] # 2

# 3: about the headers
[mcp_servers.a.http_headers] # 4
X = "v" # 5

# 6: my other server
[mcp_servers.b] # b
command = "y"
""",
    "commented.yaml": """\
extensions:
  a: # 0
    # 1
    uri: https://a.example/#mcp # 2
    headers: # 3
      # 4
      X: "v #5" # 5
    flow: {x: 1} # 6
  b: {cmd: y} # b
""",
    "commented.json": """\
{"mcpServers": {
  "a": { // 0
    "url" /* 1 */ : /* 2 */ "https://a.example/#mcp", // 3
    "headers": { // 4
      "X": "v" // 5
      /* 6 */
    }
  },
  "b": {"command": "y"} // # b
}}
""",
}
INLINE = '[mcp_servers]\nfiles = { command = "npx", args = ["-y", "files"] }\n'
ARRAYS = {
    "lines.json": (JSON, '[\n      "-y", // sure\n      // it\n      "files"\n    ]'),
    "blocks.json": (JSON, '[ /* sure */ "-y", /* it */ "files" ]'),
    "edge.json": (JSON, '[\n"-y", // sure it\n"files"]'),
    "first.json": (JSON, '[ // sure it\n "-y", "files"]'),
    "lines.toml": (TOML, '[\n  "-y", # sure\n  # it\n  "files",\n]'),
    "inline.toml": (INLINE, '["-y", "files"] } # sure it'),
}
ON_ONE_LINE = '{"mcpServers": {\n"a": {"type": "http", "url": "https://a.example"},\n"b": 0\n}}\n'
SAMPLES = {"some.json": JSON, "some.toml": TOML, "some.yaml": YAML, **COMMENTED}
SAMPLES["one-line.json"] = ON_ONE_LINE
SAMPLES |= {
    name: text.replace('["-y", "files"]' + " }" * args.count("}"), args)
    for name, (text, args) in ARRAYS.items()
}
_COMMENT = re.compile(r"(?:#|//|/\*) \w+\b")


@each_row("mark", ["", "\ufeff"])
@each_row("end", ["\n", "\r\n"])
@each_row("name", SAMPLES)
def test_only_the_entry_changes_and_it_comes_back_as_spelt(name: str, end: str, mark: str) -> None:
    """Comments stay, also those in what is replaced, and so do the ends of the lines."""
    place = parsed(name, "").place
    before = ClientFile(place, b"", mark + SAMPLES[name].replace("\n", end))
    assert "developer" not in before.servers()
    for server, entry in before.servers().items():
        for pattern in ("^rm", "^rm_and_a_long_pattern_" * 5):
            wrapped = wrapped_for(entry, pattern)
            after = ClientFile(place, b"", before.with_entry(server, wrapped))
            assert after.servers() == before.servers() | {server: wrapped}
            assert sorted(_COMMENT.findall(after.text)) == sorted(_COMMENT.findall(before.text))
            assert after.text.count("\n") == after.text.count(end)
            assert name != "one-line.json" or after.text.count("\n") == before.text.count("\n")
            again = ClientFile(place, b"", after.with_entry(server, entry))
            assert again.servers() == before.servers()
            edited = ClientFile(place, b"", after.text + end)
            assert edited.restored(server, before, entry) == before.text + end


@each_row("name", ARRAYS)
def test_an_array_keeps_its_form_without_the_first_text(name: str) -> None:
    before = parsed(name, SAMPLES[name])
    entry = before.servers()["files"]
    wrapped = parsed(f"new-{name}", before.with_entry("files", wrapped_for(entry)))
    assert "\n" in ARRAYS[name][1] or wrapped.text.count("\n") == before.text.count("\n")
    assert wrapped.with_entry("files", entry) == before.text


def test_an_entry_keeps_its_spelling_when_the_file_changes_elsewhere() -> None:
    before = parsed("a.json", JSON)
    entry = before.servers()["linear"]
    wrapped = before.with_entry("linear", wrapped_for(entry))
    for edits in ({"[1, 2,]": "[3,]"}, {"[1, 2,]": "[3,]", "false": " false"}):
        now, wanted = wrapped, JSON
        for old, new in edits.items():
            now, wanted = now.replace(old, new), wanted.replace(old, new)
        assert parsed("b.json", now).restored("linear", before, entry) == wanted
    again = parsed("d.json", wrapped.replace('"command": ', '"command" : '))
    assert again.restored("linear", before, entry) is None


@each_row(
    ("old", "entry"),
    [
        ("cmd: a", {"command": "b", "args": ["c: d", "#", "yes", "\ufeff\x85\u2028", "", "1"]}),
        ("cmd: a\n    args:", {"command": "b", "args": ["c"]}),
        ("cmd: a\n    args:\n    - a\n    - b", {"command": "b", "args": ["a", "c", "b"]}),
        ("cmd: a\n    args:\n    - a", {"command": "b", "args": ["c"]}),
        ("cmd: a\n    args: [\n  a,\n  b]", {"command": "b", "args": ["x", "y", "b"]}),
        ("cmd: a\n    args:\n    - a\n    - b\n", {"command": "a", "args": ["b"]}),
        ("cmd: |\n      a\n    envs: {}", {"command": "b", "env": {"A": "1", "b c": "2"}}),
        ("cmd: |\n      a", {"command": "b"}),
        ('"cmd": "a"\n    envs:\n      A: b # c\n\n', {"command": "b", "env": {"A": "b", "C": ""}}),
        ("cmd: a\n    envs:\n      A: b", {"command": "a", "env": {}}),
    ],
)  # fmt: skip
def test_each_form_of_yaml_can_be_changed(old: str, entry: ServerEntry) -> None:
    file = parsed("a.yaml", f"extensions:\n  a:\n    {old}")
    assert parsed("b.yaml", file.with_entry("a", entry)).servers() == {"a": entry}
    more = parsed("c.yaml", f"{file.text}\n  # of b\n  b:\n    cmd: c\n")
    after = parsed("d.yaml", more.with_entry("a", entry))
    assert after.servers() == {"a": entry, "b": {"command": "c"}}
    assert after.text.endswith("\n  # of b\n  b:\n    cmd: c\n")


@each_row(
    "text",
    [
        "extensions: &x\n  a: {cmd: b}\n  c: *x\n", "extensions:\n  a: {cmd: b}\n  a: {cmd: c}\n",
        "extensions: [", "a: 1\n---\nb: 2\n", "extensions: !!python/name:os.system\n", "[" * 10_000,
        "# " + "x" * 1_100_000,
    ],
)  # fmt: skip
def test_yaml_that_could_mean_something_else_is_refused(text: str) -> None:
    with pytest.raises(files.BadFile, match=r"a\.yaml cannot be read"):
        parsed("a.yaml", text).servers()


def test_one_backup_is_kept_in_a_private_folder_and_the_mode_stays(tmp_path: Path) -> None:
    path = tmp_path / "here" / "a.json"
    path.parent.mkdir()
    for original in ("one", "two"):
        file = opened(path, JSON)
        path.chmod(0o640)
        file.save("{}", original=original)
        assert path.read_text() == "{}"
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
        assert os.listdir(path.parent) == ["a.json"]
        (backup,) = files.backup_of(path).parent.iterdir()
        assert (backup, backup.read_text()) == (files.backup_of(path), original)
        assert stat.S_IMODE(backup.stat().st_mode) == 0o600
        assert stat.S_IMODE(backup.parent.stat().st_mode) == 0o700
    opened(path, JSON).save("{}")
    assert list(backup.parent.iterdir()) == []


def test_a_symbolic_link_stays_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "dotfiles.json", tmp_path / "a.json"
    target.write_text(JSON)
    link.symlink_to(target)
    found = files.read(ConfigPlace("some", "user", link, ("mcpServers",)))
    assert found
    found.save("{}")
    assert link.is_symlink()
    assert target.read_text() == "{}"


def test_a_save_of_another_program_is_never_lost(tmp_path: Path) -> None:
    """A client may save its file at any moment, also between our check and our change."""
    path = tmp_path / "a.json"
    saved: list[bytes] = [b"0"]
    path.write_bytes(b"0")
    is_over = threading.Event()

    def save_again_and_again() -> None:
        for number in range(1, 300):
            part = tmp_path / "part"
            part.write_bytes(b"%d" % number)
            part.replace(path)
            saved.append(b"%d" % number)
        is_over.set()

    client = threading.Thread(target=save_again_and_again)
    client.start()
    taken = 0
    while not is_over.is_set():
        old = path.read_bytes()
        if old.isdigit():
            taken += replace_if_unchanged(path, old, b"ours after %b" % old)
    client.join()
    now = path.read_bytes()
    assert now == saved[-1] or now == b"ours after %b" % saved[-1]
    assert sorted(os.listdir(tmp_path)) == ["a.json"]


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero")])
def test_what_is_no_file_is_reported_at_once(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(path := tmp_path / "a.json")
    with pytest.raises(files.BadFile, match=r"Cannot read .*a\.json\n(It is not a reg|Is a dir)"):
        files.read(ConfigPlace("some", "user", path, ("mcpServers",)))


@pytest.mark.parametrize("content", [b"{", b"\xff", b'{"mcpServers": {"a": {}}} x'])
def test_a_file_that_cannot_be_read_gives_one_sentence(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    place = ConfigPlace("some", "user", path, ("mcpServers",))
    with pytest.raises(files.BadFile, match=r"a\.json"):
        (files.read(place) or pytest.fail("none")).servers()


@pytest.mark.parametrize("text", ["[]", '{"mcpServers": []}', '{"mcpServers": {"a": 1}}', "null"])
def test_a_file_of_unknown_shape_lists_no_servers(text: str) -> None:
    assert parsed("a.json", text).servers() == {}


def test_half_of_a_surrogate_pair_can_be_written(tmp_path: Path) -> None:
    text = '{"mcpServers": {"a": {"command": "x", "args": ["\\ud800"]}}}'
    file = opened(tmp_path / "a.json", text)
    wrapped = wrapped_for(file.servers()["a"])
    text = file.with_entry("a", wrapped)
    file.save(text)
    assert opened(tmp_path / "b.json", text).servers() == {"a": wrapped}


def test_a_read_only_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    file = opened(path, JSON)
    path.chmod(0o400)
    with pytest.raises(files.BadFile, match="is read-only"):
        file.save("{}")
    assert os.listdir(tmp_path) == ["a.json"]


@pytest.mark.parametrize("platform", ["linux", "darwin", "win32"])
def test_each_client_has_a_place_on_each_platform(platform: str, tmp_path: Path) -> None:
    here = Whereabouts(tmp_path / "home", tmp_path / "project", {}, platform)
    found = list(files.places(here))
    assert {place.client for place in found} == {*CLIENTS}
    assert all(place.file.is_relative_to(tmp_path) for place in found)
    assert len({(place.client, place.file, place.keys) for place in found}) == len(found)


def found_in(
    project: Path, client: str, environment: dict[str, str] | None = None
) -> list[ConfigPlace]:
    here = Whereabouts(project.parent / "home", project, environment or {}, "linux")
    return [place for place in files.places(here) if place.client == client]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder in a repository."""
    (tmp_path / "repository" / ".git").mkdir(parents=True)
    (project := tmp_path / "repository" / "below").mkdir()
    return project


def test_claude_code_lists_a_repositorys_servers_under_its_root(project: Path) -> None:
    repository = project.parent
    (repository / ".mcp.json").write_text("{}")
    user, local, nearest, above = found_in(project, "claude-code")
    assert local.keys == ("projects", str(repository), "mcpServers")
    assert local.file == user.file
    assert nearest.file == project / ".mcp.json"
    assert above.file == repository / ".mcp.json"


@pytest.mark.parametrize("more", ["", "/.git/modules/x"])
def test_a_linked_worktree_is_its_repository(more: str, tmp_path: Path) -> None:
    """But a submodule, which has a file .git too, is a repository of its own."""
    project = tmp_path / "tree"
    project.mkdir()
    text = f"gitdir: {tmp_path}/main/.git/worktrees/tree\n"
    (project / ".git").write_text(text if not more else f"gitdir: {tmp_path}/main{more}\n")
    keys = next(one.keys for one in found_in(project, "claude-code") if one.scope == "local")
    assert keys[1] == str(tmp_path / ("tree" if more else "main"))


def test_codex_reads_the_projects_files_up_to_the_repository(project: Path) -> None:
    repository = project.parent
    for folder in (repository.parent, repository):
        (folder / ".codex").mkdir()
        (folder / ".codex" / "config.toml").touch()
    found = [place.file for place in found_in(project, "codex") if place.scope == "project"]
    assert found == [folder / ".codex" / "config.toml" for folder in (project, repository)]


def test_the_users_file_is_not_also_a_project_file(tmp_path: Path) -> None:
    here = Whereabouts(tmp_path, tmp_path, {}, "linux")
    for client in ("cursor", "gemini", "codex"):
        assert [one.scope for one in files.places(here) if one.client == client] == ["user"]


@pytest.mark.parametrize(
    ("client", "variable", "file"),
    [
        ("claude-code", "CLAUDE_CONFIG_DIR", ".claude.json"),
        ("codex", "CODEX_HOME", "config.toml"),
        ("gemini", "GEMINI_CLI_HOME", ".gemini/settings.json"),
    ],
)
def test_a_variable_names_the_folder(client: str, variable: str, file: str, tmp_path: Path) -> None:
    [user, *_] = found_in(tmp_path, client, {variable: str(tmp_path / "other")})
    assert user.file == tmp_path / "other" / file


# A file is replaced as a whole or stays as it was
@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "file"
    file.write_bytes(b"old")
    file.chmod(0o644)
    return file


def write_half_of(file: Path) -> None:
    with whole_file(file) as new:
        new.write(b"half")
        raise ZeroDivisionError


def test_new_content_replaces_the_old(file: Path) -> None:
    with whole_file(file) as new:
        new.write(b"new")
        assert file.read_bytes() == b"old"
    assert file.read_bytes() == b"new"
    assert file.stat().st_mode & 0o777 == 0o600
    assert os.listdir(file.parent) == ["file"]


def test_a_failed_write_leaves_only_the_old_file(file: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        write_half_of(file)
    assert file.read_bytes() == b"old"
    assert os.listdir(file.parent) == ["file"]


def test_the_longest_name_can_be_written(tmp_path: Path) -> None:
    file = tmp_path / ("é" * 127)
    with whole_file(file) as new:
        new.write(b"new")
    assert file.read_bytes() == b"new"


def test_the_owner_of_the_old_file_can_be_kept(file: Path) -> None:
    """What root has edited stays readable for its user."""
    owner = 4321 if os.geteuid() == 0 else os.geteuid()
    os.chown(file, owner, -1)
    assert replace_if_unchanged(file, b"old", b"new")
    assert file.stat().st_uid == owner


def test_a_file_with_a_foreign_owner_stays(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stat = Path.stat

    def of_another(path: Path) -> os.stat_result:
        found = stat(path)
        return os.stat_result((*found[:4], found.st_uid + 1, *found[5:])) if path == file else found

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "stat", of_another)
    monkeypatch.setattr(os, "chown", refuse)
    with pytest.raises(PermissionError):
        replace_if_unchanged(file, b"old", b"new")
    assert file.read_bytes() == b"old"
    assert os.listdir(file.parent) == ["file"]
