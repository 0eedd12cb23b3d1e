"""What ``doctor`` knows of the last time that a client was run."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_tool_filter.adapters.run.expected import SeenTraffic, Server, Way
from mcp_tool_filter.adapters.run.last import keep_last, last_of, state_file

SEEN = SeenTraffic(frozenset(), frozenset(), frozenset())


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path


def servers(*names: str, way: Way = Way.URL) -> list[Server]:
    return [Server(name, "a file", way, f"https://{name}.example/mcp") for name in names]


def test_seen_and_unseen_servers_are_kept_for_each_client() -> None:
    both = servers("a", "b")
    keep_last("codex", [*both, *servers("c", way=Way.COMMAND)], both[1:], SEEN)
    keep_last("cursor", [], [], SEEN)
    found = last_of("codex")
    assert found
    assert found.seen == ("a",)
    assert [name for name, _, _ in found.missing] == ["b"]
    assert found.missing[0][1] == "https://b.example/mcp"


def test_only_the_user_can_read_it(home: Path) -> None:
    keep_last("codex", [], [], SEEN)
    assert state_file({"XDG_STATE_HOME": str(home)}).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", ["", "[]", "{", '{"codex": 5}', '{"codex": {"ended": "x"}}'])
def test_an_unusable_file_is_ignored(content: str, home: Path) -> None:
    assert last_of("codex") is None
    file = state_file({"XDG_STATE_HOME": str(home)})
    file.parent.mkdir(parents=True)
    file.write_text(content)
    assert last_of("codex") is None
    keep_last("codex", [], [], SEEN)
    assert last_of("codex")


def test_a_file_that_cannot_be_written_does_no_harm(home: Path) -> None:
    (home / "mcp-tool-filter").write_text("a file where the folder should be")
    keep_last("codex", [], [], SEEN)
    assert last_of("codex") is None
