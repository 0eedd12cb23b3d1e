"""Keep the secrets of a login in the system's keyring, if the user wants that.

The package ``keyring`` is an extra: ``pip install 'mcp-tool-filter[keyring]'``.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from mcp_tool_filter.errors import StartError

_SERVICE = "mcp-tool-filter"


class KeyringFailed(StartError):
    def __init__(self, why: str) -> None:
        super().__init__("Cannot use the system's keyring", why=why)


def check() -> None:
    """Raise KeyringFailed if there is no usable keyring."""
    take("check")


def put(name: str, secrets: str) -> None:
    """Store secrets under a name. Raises KeyringFailed."""
    keyring = _keyring()
    try:
        keyring.set_password(_SERVICE, name, secrets)
    except keyring.errors.KeyringError as error:
        raise KeyringFailed(_why(error)) from None


def take(name: str) -> str | None:
    """Return the secrets stored under a name. Raises KeyringFailed."""
    keyring = _keyring()
    try:
        found: str | None = keyring.get_password(_SERVICE, name)
    except keyring.errors.KeyringError as error:
        raise KeyringFailed(_why(error)) from None
    return found


def remove(name: str) -> None:
    """Remove the secrets under a name. Raises KeyringFailed."""
    keyring = _keyring()
    try:
        if keyring.get_password(_SERVICE, name) is not None:
            keyring.delete_password(_SERVICE, name)
    except keyring.errors.KeyringError as error:
        raise KeyringFailed(_why(error)) from None


def _keyring() -> Any:
    try:
        import_module("keyring.errors")
        return import_module("keyring")
    except ImportError:
        raise KeyringFailed("Type: pip install 'mcp-tool-filter[keyring]'") from None


def _why(error: Exception) -> str:
    """Return the reason on one line; a backend's error may be long."""
    text = str(error) or type(error).__name__
    return "".join(one if one.isprintable() else " " for one in text.strip()[:200])
