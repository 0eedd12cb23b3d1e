"""Clients' files are found, and edited without a loss."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from mcp_tool_filter.adapters.client_files.entries import wrap
from mcp_tool_filter.adapters.client_files.files import BadFile, ClientFile, read
from mcp_tool_filter.adapters.client_files.places import ConfigPlace

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


def opened(file: Path, text: str) -> ClientFile:
    file.write_text(text)
    key = "mcp_servers" if file.suffix == ".toml" else "mcpServers"
    found = read(ConfigPlace("some", "user", file, (key,)))
    assert found
    return found


@pytest.mark.parametrize(
    ("name", "text", "server"),
    [
        ("a.json", JSON, "files"),
        ("a.json", JSON, "linear"),
        ("a.json", JSON.replace("\n", "\r\n"), "linear"),
        ("a.toml", TOML, "files"),
        ("a.toml", "\ufeff" + TOML, "files"),
        ("a.toml", TOML, "remote"),
    ],
)
def test_only_the_entry_changes(name: str, text: str, server: str, tmp_path: Path) -> None:
    file = opened(tmp_path / name, text)
    before = file.servers()
    entry = wrap(before[server], ["--deny", "^rm"], ["mcp-tool-filter"])
    after = opened(tmp_path / f"new-{name}", file.with_entry(server, entry))
    assert after.servers() == before | {server: entry}
    for kept in ("my servers", "keep", "remote", "[1, 2,]", "# my settings", 'model = "x"'):
        assert (kept in file.text) == (kept in after.text)
    assert after.text.count("\r\n") == after.text.count("\n") or "\r\n" not in text
    back = opened(tmp_path / f"back-{name}", after.with_entry(server, before[server]))
    assert back.servers() == before


def test_an_entry_keeps_its_spelling_when_the_file_changes_elsewhere(tmp_path: Path) -> None:
    before = opened(tmp_path / "a.json", JSON)
    entry = before.servers()["linear"]
    wrapped = before.with_entry("linear", wrap(entry, ["--deny", "^rm"], ["mcp-tool-filter"]))
    edited = opened(tmp_path / "b.json", wrapped.replace("[1, 2,]", "[3,]"))
    assert edited.restored("linear", before, entry) == JSON.replace("[1, 2,]", "[3,]")
    spelt = opened(
        tmp_path / "c.json", wrapped.replace("[1, 2,]", "[3,]").replace("false", " false")
    )
    assert spelt.restored("linear", before, entry) == JSON.replace("[1, 2,]", "[3,]").replace(
        "false", " false"
    )
    again = opened(tmp_path / "d.json", wrapped.replace('"command": ', '"command" : '))
    assert again.restored("linear", before, entry) is None


def test_a_list_keeps_its_lines(tmp_path: Path) -> None:
    text = '{\n    "mcpServers": {"a": {\n        "args": [\n            "x"\n        ]\n    }}\n}'
    file = opened(tmp_path / "a.json", text)
    assert file.with_entry("a", {"args": ["y", "x"]}) == text.replace(
        '"x"', '"y",\n            "x"'
    )


def test_the_old_file_stays_beside_the_new_one_and_the_mode_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    file = opened(path, JSON)
    path.chmod(0o640)
    backup = file.save("{}")
    assert path.read_text() == "{}"
    assert backup.parent == tmp_path
    assert backup.read_text() == JSON
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    assert sorted(os.listdir(tmp_path)) == sorted([path.name, backup.name])
    again = opened(path, "{ }")
    assert again.save("{}") != backup
    assert backup.read_text() == JSON


def test_a_symbolic_link_stays_a_link(tmp_path: Path) -> None:
    target, link = tmp_path / "dotfiles.json", tmp_path / "a.json"
    target.write_text(JSON)
    link.symlink_to(target)
    found = read(ConfigPlace("some", "user", link, ("mcpServers",)))
    assert found
    found.save("{}")
    assert link.is_symlink()
    assert target.read_text() == "{}"


def test_a_file_that_was_edited_meanwhile_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    file = opened(path, JSON)
    path.write_text("{ }")
    with pytest.raises(BadFile, match="edited in the meantime"):
        file.save("{}")
    assert path.read_text() == "{ }"
    assert os.listdir(tmp_path) == ["a.json"]


@pytest.mark.parametrize("content", [b"{", b"\xff", b'{"mcpServers": {"a": {}}} x'])
def test_a_file_that_cannot_be_read_gives_one_sentence(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(BadFile, match=r"a\.json"):
        (read(ConfigPlace("some", "user", path, ("mcpServers",))) or pytest.fail("none")).servers()


@pytest.mark.parametrize("text", ["[]", '{"mcpServers": []}', '{"mcpServers": {"a": 1}}', "null"])
def test_a_file_of_unknown_shape_lists_no_servers(text: str, tmp_path: Path) -> None:
    assert opened(tmp_path / "a.json", text).servers() == {}


COMMENTED = """\
[mcp_servers.a]
url = "https://a.example/mcp"

# about the headers
[mcp_servers.a.http_headers]
X = "v"

# my other server
[mcp_servers.b] # b
command = "y"
"""


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_comments_after_a_removed_table_stay(end: str, tmp_path: Path) -> None:
    before = opened(tmp_path / "a.toml", "")
    before = ClientFile(before.place, b"", COMMENTED.replace("\n", end))
    entry = before.servers()["a"]
    text = before.with_entry("a", wrap(entry, ["--deny", "^rm"], ["mcp-tool-filter"]))
    assert f"# my other server{end}[mcp_servers.b] # b{end}" in text
    assert "# about the headers" in text
    edited = ClientFile(before.place, b"", text.replace("# b", "# c") + f"# more{end}")
    wanted = before.text.replace("# b", "# c") + f"# more{end}"
    assert edited.restored("a", before, entry) == wanted


def test_half_of_a_surrogate_pair_can_be_written(tmp_path: Path) -> None:
    file = opened(
        tmp_path / "a.json", '{"mcpServers": {"a": {"command": "x", "args": ["\\ud800"]}}}'
    )
    wrapped = wrap(file.servers()["a"], ["--deny", "^rm"], ["mcp-tool-filter"])
    text = file.with_entry("a", wrapped)
    file.save(text)
    assert opened(tmp_path / "b.json", text).servers() == {"a": wrapped}


def test_a_read_only_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    file = opened(path, JSON)
    path.chmod(0o400)
    with pytest.raises(BadFile, match="is read-only"):
        file.save("{}")
    assert os.listdir(tmp_path) == ["a.json"]
