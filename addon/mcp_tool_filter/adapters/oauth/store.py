"""Store logins in files that only their user can read, one for each endpoint.

Files are replaced atomically. A refresh token can be used only once, so a renewal holds the login's
lock, also against other processes.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict
from hashlib import sha256
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mcp_tool_filter.adapters.oauth import keyring_box
from mcp_tool_filter.adapters.oauth.files import Stamp, locked, replace_file, stamp_of
from mcp_tool_filter.adapters.oauth.folder import default_folder
from mcp_tool_filter.adapters.oauth.login_state import LoginState, Registration, Tokens
from mcp_tool_filter.errors import StartError
from mcp_tool_filter.http.origin import parse_origin
from mcp_tool_filter.policy.config import plain_path

_VERSION = 1
_SECRETS = {"tokens": ("access_token", "refresh_token"), "registration": ("client_secret",)}


class StoreFailed(StartError):
    def __init__(self, path: Path, error: OSError | str) -> None:
        reason = error if isinstance(error, str) else error.strerror or str(error)
        super().__init__(f"Cannot use the stored logins in {path}", why=reason)


class LoginStore:
    """The logins of one user."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or default_folder(os.environ)

    def path_of(self, endpoint: str) -> Path:
        return self.folder / f"{sha256(key_of(endpoint).encode()).hexdigest()[:32]}.json"

    def stamp_of(self, endpoint: str) -> Stamp | None:
        """Return a stamp that differs between versions of a login; None if there is none."""
        return stamp_of(self.path_of(endpoint))

    def load(self, endpoint: str) -> LoginState | None:
        """Return a login, or None if there is none. Raises StoreFailed."""
        return _load(self.path_of(endpoint))

    def all(self) -> Iterator[LoginState]:
        """Yield every login, by endpoint. Raises StoreFailed."""
        states = [_load(path) for path in self.folder.glob("*.json")]
        yield from sorted((one for one in states if one), key=lambda state: state.endpoint)

    def find(self, url: str) -> LoginState | None:
        """Return the login for an endpoint; for an origin, its only login."""
        if not self.folder.is_dir():
            return None
        if urlsplit(url).path not in ("", "/"):
            return self.load(url)
        origin = parse_origin(url)
        found = [one for one in self.all() if parse_origin(one.endpoint) == origin]
        return found[0] if len(found) == 1 else self.load(url)

    def save(self, state: LoginState) -> None:
        """Replace a login. Raises StoreFailed."""
        path = self.path_of(state.endpoint)
        plain = _plain(state)
        if state.in_keyring:
            secrets, plain = _apart(plain)
            keyring_box.put(key_of(state.endpoint), json.dumps(secrets))
        elif _says_keyring(path):  # the user has changed their mind
            keyring_box.remove(key_of(state.endpoint))
        try:
            replace_file(path, json.dumps(plain, indent=1).encode())
        except OSError as error:
            raise StoreFailed(path, error) from None

    def forget(self, endpoint: str) -> bool:
        """Remove a login; return whether there was one. Raises StoreFailed."""
        path = self.path_of(endpoint)
        if _says_keyring(path):
            keyring_box.remove(key_of(endpoint))
        try:
            path.unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise StoreFailed(path, error) from None
        return True

    @asynccontextmanager
    async def lock(self, endpoint: str) -> AsyncIterator[None]:
        """Hold the lock of one login, against all tasks and processes. Raises StoreFailed."""
        path = self.path_of(endpoint).with_suffix(".lock")
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(locked(path))
            except OSError as error:
                raise StoreFailed(path, error) from None
            yield


def key_of(endpoint: str) -> str:
    """Return the same key for all spellings of an endpoint's URL.

    >>> key_of("HTTPS://Example.com:443/mcp/?a=b")
    'https://example.com/mcp'
    """
    return parse_origin(endpoint).url + plain_path(urlsplit(endpoint).path or "/")


def _load(path: Path) -> LoginState | None:
    try:
        found = json.loads(path.read_bytes())
        if found.pop("version") != _VERSION:
            raise StoreFailed(path, "It was written by another version: log in again")
        if found.get("in_keyring"):
            _put_together(found, keyring_box.take(key_of(found["endpoint"])))
        registration = {**found.pop("registration")}
        tokens = found.pop("tokens")
        return LoginState(
            **{**found, "wanted_scopes": tuple(found["wanted_scopes"])},
            registration=Registration(**{**registration, "scopes": tuple(registration["scopes"])}),
            tokens=Tokens(**{**tokens, "scopes": tuple(tokens["scopes"])}) if tokens else None,
        )
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreFailed(path, error) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise StoreFailed(path, "It cannot be read: remove it, and log in again") from None


def _plain(state: LoginState) -> dict[str, Any]:
    return {"version": _VERSION, **asdict(state)}


def _apart(plain: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split the stored values into secrets and the rest."""
    secrets: dict[str, Any] = {}
    rest = dict(plain)
    for part, names in _SECRETS.items():
        if plain[part]:
            secrets[part] = {name: plain[part][name] for name in names}
            rest[part] = {**plain[part], **dict.fromkeys(names)}
    return secrets, rest


def _put_together(rest: dict[str, Any], secrets: str | None) -> None:
    """Put the secrets back; without them there are no tokens."""
    known = json.loads(secrets) if secrets else {}
    for part in _SECRETS:
        if part in known and rest[part]:
            rest[part].update(known[part])
    if "tokens" not in known:
        rest["tokens"] = None


def _says_keyring(path: Path) -> bool:
    try:
        return json.loads(path.read_bytes()).get("in_keyring") is True
    except (OSError, ValueError, AttributeError):
        return False
