"""Secrets in a keyring, through the package ``keyring`` as a process would import it.

The package is an extra, and no machine that runs tests has a keyring to unlock, so the backend here
keeps its passwords in this process.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType

import pytest

from mcp_tool_filter.adapters.oauth.store import (
    KeyringFailed,
    check_keyring,
    keyring_put,
    keyring_remove,
    keyring_take,
)


class Backend(ModuleType):
    """What ``import keyring`` returns."""

    def __init__(self) -> None:
        super().__init__("keyring")
        self.kept: dict[tuple[str, str], str] = {}
        self.problem: str | None = None
        self.errors = ModuleType("keyring.errors")
        self.errors.KeyringError = type("KeyringError", (Exception,), {})  # type: ignore[attr-defined]  # theirs

    def _check(self) -> None:
        if self.problem is not None:
            raise self.errors.KeyringError(self.problem)

    def get_password(self, service: str, name: str) -> str | None:
        self._check()
        return self.kept.get((service, name))

    def set_password(self, service: str, name: str, secret: str) -> None:
        self._check()
        self.kept[service, name] = secret

    def delete_password(self, service: str, name: str) -> None:
        self._check()
        del self.kept[service, name]


@pytest.fixture
def backend(monkeypatch: pytest.MonkeyPatch) -> Iterator[Backend]:
    found = Backend()
    monkeypatch.setitem(sys.modules, "keyring", found)
    monkeypatch.setitem(sys.modules, "keyring.errors", found.errors)
    return found


def test_secrets_are_kept_under_their_name_until_they_are_removed(backend: Backend) -> None:
    keyring_put("one", "s3cret")
    keyring_put("two", "other")
    assert keyring_take("one") == "s3cret"
    keyring_remove("one")
    assert keyring_take("one") is None
    assert keyring_take("two") == "other"


def test_secrets_are_kept_as_ours(backend: Backend) -> None:
    """Other programs use the same keyring."""
    keyring_put("one", "s3cret")
    assert backend.kept == {("mcp-tool-filter", "one"): "s3cret"}


def test_removing_a_missing_secret_is_no_error(backend: Backend) -> None:
    keyring_remove("one")
    assert backend.kept == {}


def test_a_keyring_that_refuses_is_reported_in_one_short_line(backend: Backend) -> None:
    backend.problem = "it is\nlocked\x1b[2J " + "x" * 1000
    for act in (check_keyring, lambda: keyring_put("n", "s3cret")):
        with pytest.raises(KeyringFailed) as failed:
            act()
        assert failed.value.why.startswith("it is locked")
        assert failed.value.why.isprintable()
        assert len(failed.value.why) <= 200
        assert "s3cret" not in str(failed.value)
    with pytest.raises(KeyringFailed):
        keyring_take("n")
    with pytest.raises(KeyringFailed):
        keyring_remove("n")


def test_a_keyring_that_gives_no_reason_is_named_by_its_error(backend: Backend) -> None:
    backend.problem = ""
    with pytest.raises(KeyringFailed, match="KeyringError"):
        check_keyring()


def test_without_the_package_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "keyring.errors", None)
    with pytest.raises(KeyringFailed, match=r"pip install 'mcp-tool-filter\[keyring\]'"):
        check_keyring()
