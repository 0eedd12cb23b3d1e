"""Save the patterns of the page in the config file: what changes there, and what stops it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from mcp_tool_filter.cli.flags import parse_flags
from mcp_tool_filter.cli.settings import read_sources
from mcp_tool_filter.rooms.page.saving import FileOfPatterns

SERVER = "\n[servers.s]\nurl = 'localhost:1'\n"


def opened(folder: Path, text: str, *flags: str) -> tuple[FileOfPatterns, Path]:
    path = folder / "c.toml"
    path.write_bytes(text.encode())
    typed = parse_flags(["--config", str(path), "-u", "localhost:1", *flags])
    return FileOfPatterns(read_sources(typed, {"HOME": str(folder)})), path


def saved(file: FileOfPatterns, server: str, *deny: str, spare: tuple[str, ...] = ()) -> Any:
    """Look at the change, and make it."""
    found = file.of(server, is_one_of_several=bool(server)).save(deny, spare, "")
    if found["problem"] or not found["diff"]:
        return found
    written = file.of(server, is_one_of_several=bool(server)).save(deny, spare, str(found["token"]))
    return found | {"problem": written["problem"]}


@pytest.mark.parametrize(("before", "server", "deny", "spare", "after"), [
    # A comment, the other keys and their order stay.
    (
        "# mine\ndeny = ['^a']  # why\nstrict = false\n",
        "", ["^a", "^b$"], [],
        "# mine\ndeny = ['^a', '^b$']  # why\nstrict = false\n",
    ),
    (
        "deny = [\n  '^a',  # one\n  '^b',  # two\n]\n",
        "", ["^b", "^it's"], [],
        "deny = [\n  '^b',  # two\n  \"^it's\",\n]\n",
    ),
    # They stay also if no pattern does.
    ("deny = '^a'  # why\n", "", ["^b"], [], "deny = ['^b']  # why\n"),
    ("deny = ['^a']  # why\n", "", ["^b"], [], "deny = ['^b']  # why\n"),
    (
        "deny = [ # for us\n  '^a',\n  # more to come\n]\n",
        "", ["^b"], [],
        "deny = [ # for us\n  # more to come\n  '^b'\n]\n",
    ),
    ("deny = '^a,^b'\n", "", ["^b"], [], "deny = '^b'\n"),
    ("deny = '^a'\n", "", ["^a", "^b"], [], "deny = ['^a', '^b']\n"),
    ("deny = '^a'\nquiet = true\n", "", ["(?!)"], [], "quiet = true\n"),
    ("quiet = true\n", "", ["^a"], ["^ab$"], "quiet = true\ndeny = ['^a']\nexcept = ['^ab$']\n"),
    # A glob stays one; the page knows only its regex.
    ("deny_glob = ['r*', 'x']\n", "", ["^r", "^x$"], [], "deny_glob = ['r*', 'x']\n"),
    ("deny-glob = ['r*', 'x']\n", "", ["^x$", "^y$"], [], "deny-glob = ['x']\ndeny = ['^y$']\n"),
    # The tables of servers come last: a new key of the top is before them.
    ("quiet = true\n" + SERVER, "", ["^a"], [], "quiet = true\ndeny = ['^a']\n" + SERVER),
    ("deny = '^a'" + SERVER + "# end\n", "s", ["^b"], [],
     "deny = '^a'" + SERVER + "# end\ndeny = ['^b']\n"),
    (SERVER + "except = '^a'\n[servers.t]\ncommand = ['x']\n", "s", [], [],
     SERVER + "[servers.t]\ncommand = ['x']\n"),
    # What the top says, too, stays in the table if it is there, and is not added.
    ("deny = '^a'" + SERVER + "deny = '^a'\n", "s", [], [],
     "deny = '^a'" + SERVER + "deny = '^a'\n"),
    ("servers = {s = {url = 'localhost:1'}}\n", "s", ["^a"], [],
     "servers = {s = {url = 'localhost:1',deny = ['^a']}}\n"),
    # Other lines keep their ends.
    ("deny = ['^a', '^b']\nquiet = true\r\n", "", ["^b"], [], "deny = ['^b']\nquiet = true\r\n"),
    ("\ufeffdeny = '^a'\r\nquiet = true\r\n", "", ["^b"], [],
     "\ufeffdeny = ['^b']\r\nquiet = true\r\n"),
])  # fmt: skip
def test_only_the_patterns_change(
    before: str, server: str, deny: list[str], spare: list[str], after: str, tmp_path: Path
) -> None:
    file, path = opened(tmp_path, before)
    path.chmod(0o640)
    found = saved(file, server, *deny, spare=tuple(spare))
    assert found["problem"] == ""
    assert path.read_bytes().decode() == after
    assert bool(found["diff"]) is (before != after)
    assert (found["note"], path.stat().st_mode & 0o777) == ("", 0o640)
    assert os.listdir(tmp_path) == ["c.toml"]
    assert saved(file, server, *deny, spare=tuple(spare))["diff"] == "", "it is saved"


def test_the_change_shows_nothing_else_of_the_file(tmp_path: Path) -> None:
    text = "[servers.s]\nurl = 'localhost:1'\nheader = 'X-Key: s3cret'\ndeny = '^a'\n"
    file, _ = opened(tmp_path, text)
    diff = saved(file, "s", "^b")["diff"]
    assert "s3cret" not in diff
    assert "-deny = '^a'\n+deny = ['^b']" in diff


def test_a_file_that_was_edited_meanwhile_is_left_alone(tmp_path: Path) -> None:
    """What was edited could be what we would undo."""
    file, path = opened(tmp_path, "deny = '^a'\n")
    found = file.of().save(["^b"], [], "")
    path.write_text("deny = ['^a', '^secret']\n")
    for token in (str(found["token"]), ""):
        assert "was edited since it was read" in str(file.of().save(["^b"], [], token)["problem"])
    assert path.read_text() == "deny = ['^a', '^secret']\n"
    path.unlink()
    assert "Cannot read" in str(file.of().save(["^b"], [], "")["problem"])


def test_only_the_change_that_was_shown_is_made(tmp_path: Path) -> None:
    file, path = opened(tmp_path, "deny = '^a'\n")
    token = str(file.of().save(["^b"], [], "")["token"])
    assert "have changed meanwhile" in str(file.of().save(["^c"], [], token)["problem"])
    assert "have changed meanwhile" in str(file.of().save(["^b"], [], "0")["problem"])
    assert path.read_text() == "deny = '^a'\n"


def test_what_cannot_be_written_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, path = opened(tmp_path, "deny = '^a'\n")
    path.chmod(0o444)
    assert saved(file, "", "^b")["problem"] == f"{path} cannot be written: It is read-only"
    assert (path.read_text(), os.listdir(tmp_path)) == ("deny = '^a'\n", ["c.toml"])
    path.chmod(0o644)

    def fail(*_args: object) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("mcp_tool_filter.cli.whole_file.replace_if_unchanged", fail)
    assert saved(file, "", "^b")["problem"] == f"{path} cannot be written: Permission denied"
    text = "[servers]\ns.url = 'localhost:1'\ns.deny = ['^a']\ns.except = ['^b']\n"
    odd, _ = opened(tmp_path, text)  # tomlkit cannot remove both
    assert "written in a way that cannot be edited here" in saved(odd, "s")["problem"]
    assert path.read_text() == text


def test_what_is_set_elsewhere_is_not_copied_and_is_told(tmp_path: Path) -> None:
    file, path = opened(tmp_path, "deny = '^a'\n", "--deny", "^flag", "--except", "^x")
    assert saved(file, "", "^flag", "^b", spare=("^x",))["note"] == ""
    assert path.read_text() == "deny = ['^b']\n"
    assert "After a restart it is not quite the same" in saved(file, "", "^b")["note"]


def test_a_link_to_the_file_stays_one(tmp_path: Path) -> None:
    (folder := tmp_path / "real").mkdir()
    _, path = opened(folder, "deny = '^a'\n")
    link = tmp_path / "c.toml"
    link.symlink_to(path)
    typed = parse_flags(["--config", str(link), "-u", "localhost:1"])
    file = FileOfPatterns(read_sources(typed, {}))
    assert saved(file, "", "^b")["problem"] == ""
    assert link.is_symlink()
    assert path.read_text() == "deny = ['^b']\n"
