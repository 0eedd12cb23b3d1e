"""Where logins are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_tool_filter.adapters.upstream.target import (
    default_folder,
    has_logins,
    registrations_folder,
)


def test_the_folder_follows_the_users_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"XDG_CONFIG_HOME": "/settings", "APPDATA": "C:/settings"}
    monkeypatch.setattr("sys.platform", "linux")
    assert default_folder(given) == Path("/settings/mcp-tool-filter/logins")
    assert registrations_folder(given) == Path("/settings/mcp-tool-filter/registrations")
    monkeypatch.setattr("sys.platform", "win32")
    assert default_folder(given) == Path("C:/settings/mcp-tool-filter/logins")


def test_without_settings_the_folder_is_below_the_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert default_folder({}) == Path("/home/me/.config/mcp-tool-filter/logins")


def test_logins_exist_once_their_folder_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert not has_logins()
    (tmp_path / "mcp-tool-filter" / "logins").mkdir(parents=True)
    assert has_logins()


def test_a_user_without_a_home_has_no_logins(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError

    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    assert not has_logins()
