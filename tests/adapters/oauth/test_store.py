"""Logins in files."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_tool_filter.adapters.oauth.store import (
    LoginState,
    LoginStore,
    Registration,
    StoreFailed,
    Tokens,
)
from mcp_tool_filter.adapters.upstream.target import default_folder

STATE = LoginState(
    endpoint="https://example.com/mcp",
    resource="https://example.com/mcp",
    issuer="https://example.com",
    token_endpoint="https://example.com/token",
    revocation_endpoint=None,
    registration=Registration(client_id="me", client_secret="x", scopes=("a", "b")),
    tokens=Tokens(access_token="a", refresh_token="b", received_at=1.0, scopes=("a",)),
)


def test_a_saved_login_can_be_loaded(tmp_path: Path) -> None:
    store = LoginStore(tmp_path)
    store.save(STATE)
    assert store.load("https://EXAMPLE.com:443/mcp/?x") == STATE
    assert list(store.all()) == [STATE]
    store.save(STATE.with_tokens(None))
    assert store.load(STATE.endpoint) == STATE.with_tokens(None)


def test_a_forgotten_login_is_deleted(tmp_path: Path) -> None:
    store = LoginStore(tmp_path)
    store.save(STATE)
    assert store.forget(STATE.endpoint)
    assert not store.forget(STATE.endpoint)
    assert store.load(STATE.endpoint) is None


@pytest.mark.parametrize("text", ["", "{", "[]", "1", '{"version":2}', '{"version":1}', "\ud800x"])
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, text: str) -> None:
    store = LoginStore(tmp_path)
    path = store.path_of(STATE.endpoint)
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with pytest.raises(StoreFailed) as failed:
        store.load(STATE.endpoint)
    assert str(path) in failed.value.what


def test_a_missing_folder_is_no_error(tmp_path: Path) -> None:
    store = LoginStore(tmp_path / "none")
    assert store.find(STATE.endpoint) is None
    assert list(store.all()) == []


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreFailed):
        LoginStore(tmp_path / "file").save(STATE)


@pytest.mark.parametrize(
    ("environment", "folder"),
    [({"XDG_CONFIG_HOME": "/c"}, Path("/c")), ({}, Path.home() / ".config")],
)
def test_logins_are_stored_in_the_users_configuration_folder(
    environment: dict[str, str], folder: Path
) -> None:
    assert default_folder(environment) == folder / "mcp-tool-filter" / "logins"
