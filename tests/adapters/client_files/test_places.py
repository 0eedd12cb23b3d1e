"""Where each client lists its servers, on each platform."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_tool_filter.adapters.client_files.files import ConfigPlace, Surroundings, places
from mcp_tool_filter.cli.table import CLIENTS


@pytest.mark.parametrize("platform", ["linux", "darwin", "win32"])
def test_each_client_has_a_place_on_each_platform(platform: str, tmp_path: Path) -> None:
    here = Surroundings(tmp_path / "home", tmp_path / "project", {}, platform)
    found = list(places(here))
    assert {place.client for place in found} == {*CLIENTS}
    assert all(place.file.is_relative_to(tmp_path) for place in found)
    assert len({(place.client, place.file, place.keys) for place in found}) == len(found)


def found_in(
    project: Path, client: str, environment: dict[str, str] | None = None
) -> list[ConfigPlace]:
    here = Surroundings(project.parent / "home", project, environment or {}, "linux")
    return [place for place in places(here) if place.client == client]


def test_claude_code_lists_a_repositorys_servers_under_its_root(tmp_path: Path) -> None:
    project = tmp_path / "repository" / "below"
    project.mkdir(parents=True)
    (tmp_path / "repository" / ".git").mkdir()
    (tmp_path / "repository" / ".mcp.json").write_text("{}")
    user, local, nearest, above = found_in(project, "claude-code")
    assert local.keys == ("projects", str(tmp_path / "repository"), "mcpServers")
    assert local.file == user.file
    assert nearest.file == project / ".mcp.json"
    assert above.file == tmp_path / "repository" / ".mcp.json"


@pytest.mark.parametrize("more", ["", "/.git/modules/x"])
def test_a_linked_worktree_is_its_repository(more: str, tmp_path: Path) -> None:
    """But a submodule, which has a file .git too, is a repository of its own."""
    project = tmp_path / "tree"
    project.mkdir()
    text = f"gitdir: {tmp_path}/main/.git/worktrees/tree\n"
    (project / ".git").write_text(text if not more else f"gitdir: {tmp_path}/main{more}\n")
    keys = next(one.keys for one in found_in(project, "claude-code") if one.scope == "local")
    assert keys[1] == str(tmp_path / ("tree" if more else "main"))


def test_codex_reads_the_projects_files_up_to_the_repository(tmp_path: Path) -> None:
    project = tmp_path / "repository" / "below"
    project.mkdir(parents=True)
    (tmp_path / "repository" / ".git").mkdir()
    for folder in (tmp_path, tmp_path / "repository"):
        (folder / ".codex").mkdir()
        (folder / ".codex" / "config.toml").touch()
    files = [place.file for place in found_in(project, "codex") if place.scope == "project"]
    wanted = [project, tmp_path / "repository"]
    assert files == [folder / ".codex" / "config.toml" for folder in wanted]


def test_the_users_file_is_not_also_a_project_file(tmp_path: Path) -> None:
    here = Surroundings(tmp_path, tmp_path, {}, "linux")
    for client in ("cursor", "gemini", "codex"):
        assert [one.scope for one in places(here) if one.client == client] == ["user"]


@pytest.mark.parametrize(
    ("client", "variable", "file"),
    [
        ("claude-code", "CLAUDE_CONFIG_DIR", ".claude.json"),
        ("codex", "CODEX_HOME", "config.toml"),
        ("gemini", "GEMINI_CLI_HOME", ".gemini/settings.json"),
    ],
)
def test_an_environment_variable_chooses_the_folder(
    client: str, variable: str, file: str, tmp_path: Path
) -> None:
    [user, *_] = found_in(tmp_path, client, {variable: str(tmp_path / "other")})
    assert user.file == tmp_path / "other" / file
