"""Claude Code, Codex and Gemini themselves write, and read, the files that ``wrap`` edits."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests import stdio_client

from .client_programs import PROGRAMS, ClientProgram
from .peer import need, upstream

SERVER = stdio_client.upstream()
SECRET = "top-s3cret"


@pytest.fixture(params=PROGRAMS)
def client(request: pytest.FixtureRequest, tmp_path: Path) -> ClientProgram:
    need("clients")
    (tmp_path / "project").mkdir()
    (tmp_path / ".codex").mkdir()  # Codex wants it to exist
    return ClientProgram(request.param, tmp_path)


def test_a_wrapped_command_connects_and_unwrap_gives_the_same_bytes(
    client: ClientProgram, tmp_path: Path
) -> None:
    journal = tmp_path / "journal"
    client.add("files", *stdio_client.upstream(journal=journal), secret=SECRET)
    assert client.connects("files")  # at which Claude Code writes an id into its file
    journal.unlink()
    before = client.file.read_bytes()
    [entry] = client.listed()
    assert (entry["server"], entry["scope"], entry["filtered"]) == ("files", "user", False)

    said = client.filter("wrap", client.name, "files", "--deny", "^delete_", "--yes")
    assert SECRET not in said
    [entry] = client.listed()
    assert (entry["filtered"], entry["flags"]) == (True, ["--deny", "^delete_"])
    assert "tools/list" in journal.read_text()  # wrap has asked what it would hide
    journal.unlink()
    assert client.connects("files")
    assert "initialize" in journal.read_text()  # so it came through us
    if client.name == "codex":
        assert client.codex_tools("files") == {"read_file", "write_file"}

    client.filter("unwrap", client.name, "files", "--yes")
    assert client.file.read_bytes() == before


def test_a_wrapped_url_connects_and_unwrap_gives_the_same_bytes(client: ClientProgram) -> None:
    with upstream("mcp1") as server:
        client.add_url("remote", server.url)
        assert client.connects("remote")
        before = client.file.read_bytes()
        assert [one["target"] for one in client.listed()] == [server.url]

        client.filter("wrap", client.name, "remote", "--deny", "^delete_", "--yes")
        assert client.connects("remote")
        if client.name == "codex":
            assert "delete_file" not in (client.codex_tools("remote") or {"delete_file"})

        client.filter("unwrap", client.name, "remote", "--yes")
        assert client.file.read_bytes() == before


def test_a_server_that_is_down_does_not_connect(client: ClientProgram) -> None:
    """So that the tests above cannot pass by reading the wrong line."""
    client.add("files", "false", secret=SECRET)
    assert not client.connects("files")
    client.filter("wrap", client.name, "files", "--deny", "^delete_", "--yes")
    assert not client.connects("files")


def test_the_configuration_printed_for_a_command_works(client: ClientProgram) -> None:
    words = ["config", client.name, "--deny", "^delete_", "--env", "KEY=a b", "--", *SERVER]
    client.shell(client.filter(*words))
    [entry] = client.listed()
    assert entry["flags"] == ["--deny", "^delete_"]
    assert client.connects(entry["server"])


def test_the_configuration_printed_for_a_url_works(client: ClientProgram) -> None:
    with upstream("mcp1") as server:
        port = str(server.port)
        printed = client.filter("config", client.name, "-u", "http://localhost:1/mcp", "-p", port)
        client.shell(printed)
        [entry] = client.listed()
        assert client.connects(entry["server"])


def test_a_servers_place_is_found_below_the_top_of_a_repository(tmp_path: Path) -> None:
    """Claude Code lists it under the repository, whatever folder we are in."""
    need("clients")
    client = ClientProgram("claude-code", tmp_path)
    client.project.mkdir()
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    client.run("claude", "mcp", "add", "here", "--", *SERVER)
    [entry] = client.listed()
    assert (entry["server"], entry["scope"]) == ("here", "local")
    client.filter("wrap", "claude-code", "here", "--deny", "^delete_", "--yes")
    assert client.connects("here")
