"""Store logins in files that only their user can read, one for each endpoint.

Files are replaced atomically. A refresh token can be used only once, so a renewal holds the login's
lock, also against other processes. If the user wants that, the secrets are in the system's keyring
instead of the file; its package is an extra: ``keyring``.

No ``repr`` of a login shows a secret, so that no log or traceback does.

Clients that log in through us register only once, so their registrations are kept in a file, too:
one per upstream, shared by all processes in front of it. Without the file (if the folder is not
writable), registrations end with this process.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mcp_tool_filter import how_to_install
from mcp_tool_filter.cli.whole_file import try_lock, whole_file
from mcp_tool_filter.core.errors import InvalidOption, StartError, printable, reason_of
from mcp_tool_filter.core.http.shown import shown_url
from mcp_tool_filter.core.http.urls import parse_origin
from mcp_tool_filter.core.policy.config import plain_path
from mcp_tool_filter.rooms.logins.logins_through import Registrations
from mcp_tool_filter.rooms.logins.metadata import is_text
from mcp_tool_filter.rooms.logins.stored import default_folder

_POLL = 0.05  # seconds between attempts to get a lock
_PATIENCE = 60.0  # seconds to wait for a lock; a renewal takes far less

type Stamp = tuple[int, int, int]
"""Values that change when a file is replaced."""


def stamp_of(path: Path) -> Stamp | None:
    """Return a stamp that differs between versions of a file; None if there is no file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size


def replace_file(path: Path, content: bytes) -> None:
    """Write a file atomically. Raises OSError."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with whole_file(path) as file:
        file.write(content)


@asynccontextmanager
async def locked(path: Path) -> AsyncIterator[None]:
    """Hold a lock against all tasks and processes.

    Raises OSError, also after a minute of waiting.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        end = time.monotonic() + _PATIENCE
        while not try_lock(handle):
            if time.monotonic() > end:
                raise TimeoutError("Another process keeps it locked")
            await asyncio.sleep(_POLL)
        yield
    finally:
        os.close(handle)  # this also releases the lock


_EARLY = 30.0  # seconds before expiry that a token is renewed; at most a fifth of its life


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """Our registration at an authorization server."""

    client_id: str
    client_secret: str | None = field(default=None, repr=False)
    auth_method: str = "none"
    """How we authenticate: none, client_secret_basic or client_secret_post."""
    redirect_uri: str = ""
    scopes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    access_token: str = field(repr=False)
    refresh_token: str | None = field(default=None, repr=False)
    received_at: float
    expires_at: float | None = None
    """Seconds since 1970; None if unknown."""
    scopes: tuple[str, ...] = ()

    def is_fresh(self, now: float) -> bool:
        if self.expires_at is None:
            return True
        return now < self.expires_at - min(_EARLY, (self.expires_at - self.received_at) / 5)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginState:
    """The stored login."""

    endpoint: str
    resource: str | None
    issuer: str
    token_endpoint: str
    revocation_endpoint: str | None
    registration: Registration
    tokens: Tokens | None
    """None once the authorization server has refused to renew them."""
    wanted_scopes: tuple[str, ...] = ()
    """Scopes that the upstream wants and the tokens lack."""
    ca: str | None = None
    """The path of a file with certificates to trust."""
    in_keyring: bool = False
    """True if its secrets are in the system's keyring instead of the file."""

    def with_tokens(self, tokens: Tokens | None) -> LoginState:
        return replace(self, tokens=tokens)


log = logging.getLogger(__name__)

_LARGEST = 8 * 1024 * 1024  # far more than we write


class KeptRegistrations:
    """The file with the registrations for one upstream."""

    def __init__(self, folder: Path, upstream: str) -> None:
        self.path = folder / f"{sha256(upstream.encode()).hexdigest()[:32]}.json"
        self._read: Stamp | None = None
        self._has_warned = False

    async def read_into(self, registrations: Registrations) -> None:
        """Load what any process has written since we last looked."""
        stamp = stamp_of(self.path)
        if stamp is None or stamp == self._read:
            return
        self._read = stamp
        try:
            if stamp[2] > _LARGEST:
                raise ValueError("it is too large")
            registrations.learn(await asyncio.to_thread(self.path.read_bytes))
        except (OSError, ValueError) as error:
            self._warn(error)

    async def write(self, registrations: Registrations) -> None:
        """Write all registrations, including those that other processes have written meanwhile."""
        try:
            async with locked(self.path.with_suffix(".lock")):
                await self.read_into(registrations)
                await asyncio.to_thread(replace_file, self.path, registrations.render())
                self._read = stamp_of(self.path)
        except OSError as error:
            self._warn(error)

    def _warn(self, error: Exception) -> None:
        if not self._has_warned:
            self._has_warned = True
            reason = reason_of(error) if isinstance(error, OSError) else str(error)
            log.warning("Clients must register again after a restart: %s: %s", self.path, reason)


class LoginFailed(StartError):
    """A login failed; ``why`` is the other side's reason, or what to do."""

    def __init__(self, endpoint: str, *, why: str) -> None:
        super().__init__(f"Cannot log in to {printable(shown_url(endpoint))}", why=printable(why))


class LoggedOut(StartError):
    """The stored login cannot be used any more."""

    def __init__(self, endpoint: str, problem: str | None = None) -> None:
        """``problem`` completes the sentence "The login to …"."""
        endpoint = printable(shown_url(endpoint))
        what = f"The login to {endpoint} {problem}" if problem else f"Not logged in to {endpoint}"
        super().__init__(what, why=f"Type: mcp-tool-filter login {printable(shown_url(endpoint))}")


class RenewalFailed(StartError):
    """A login could not be renewed now; a later try may succeed."""

    def __init__(self, endpoint: str, *, why: str) -> None:
        super().__init__(
            f"Cannot renew the login to {printable(shown_url(endpoint))}", why=printable(why)
        )


_SERVICE = "mcp-tool-filter"
_VERSION = 1
_TOKEN = re.compile(r"[!-~]+")
_LISTS = frozenset({"wanted_scopes", "scopes"})
_TIMES = frozenset({"received_at", "expires_at"})
_LATEST = 1e12  # seconds since 1970
_MAY_BE_NONE = frozenset({
    "resource", "revocation_endpoint", "client_secret", "refresh_token", "expires_at", "ca",
})  # fmt: skip
_SECRETS = {"tokens": ("access_token", "refresh_token"), "registration": ("client_secret",)}


class StoreFailed(StartError):
    def __init__(self, path: Path, error: OSError | str) -> None:
        reason = error if isinstance(error, str) else error.strerror or str(error)
        super().__init__(f"Cannot use the stored logins in {path}", why=reason)


class KeyringFailed(StartError):
    def __init__(self, why: str) -> None:
        super().__init__("Cannot use the system's keyring", why=why)


def check_keyring() -> None:
    """Raise KeyringFailed if there is no usable keyring."""
    keyring_take("check")


def keyring_take(name: str) -> str | None:
    """Return the secrets stored under a name. Raises KeyringFailed."""
    with _keyring() as keyring:
        found: str | None = keyring.get_password(_SERVICE, name)
        return found


def keyring_remove(name: str) -> None:
    """Remove the secrets under a name. Raises KeyringFailed."""
    with _keyring() as keyring:
        if keyring.get_password(_SERVICE, name) is not None:
            keyring.delete_password(_SERVICE, name)


@contextmanager
def _keyring() -> Iterator[Any]:
    """Yield the package; its errors are raised as KeyringFailed."""
    try:
        import_module("keyring.errors")
        keyring: Any = import_module("keyring")
    except ImportError:
        raise KeyringFailed(f"Type: {how_to_install('keyring')}") from None
    try:
        yield keyring
    except keyring.errors.KeyringError as error:
        said = str(error) or type(error).__name__  # a backend's error may be long
        line = "".join(one if one.isprintable() else " " for one in said.strip()[:200])
        raise KeyringFailed(line) from None


class LoginStore:
    """The logins of one user."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or default_folder(os.environ)

    def path_of(self, endpoint: str) -> Path:
        return self.folder / _file_name(endpoint)

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
            with _keyring() as keyring:
                keyring.set_password(_SERVICE, key_of(state.endpoint), json.dumps(secrets))
        elif _says_keyring(path):  # the user has changed their mind
            keyring_remove(key_of(state.endpoint))
        try:
            replace_file(path, json.dumps(plain, indent=1).encode())
        except OSError as error:
            raise StoreFailed(path, error) from None

    def forget(self, endpoint: str) -> bool:
        """Remove a login; return whether there was one. Raises StoreFailed."""
        path = self.path_of(endpoint)
        if _says_keyring(path):
            keyring_remove(key_of(endpoint))
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


def _file_name(endpoint: str) -> str:
    return f"{sha256(key_of(endpoint).encode()).hexdigest()[:32]}.json"


def _load(path: Path) -> LoginState | None:
    try:
        found = json.loads(path.read_bytes())
        if found.pop("version") != _VERSION:
            raise StoreFailed(path, "It was written by another version: log in again")
        if found.get("in_keyring"):
            _put_together(found, keyring_take(key_of(found["endpoint"])))
        if path.name != _file_name(found["endpoint"]):
            raise ValueError("the login to another endpoint")
        registration, tokens = found.pop("registration"), found.pop("tokens")
        return LoginState(
            **_checked(found),
            registration=Registration(**_checked(registration)),
            tokens=Tokens(**_checked(tokens)) if tokens else None,
        )
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreFailed(path, error) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, InvalidOption):
        raise StoreFailed(path, "It cannot be read: remove it, and log in again") from None


def _checked(found: dict[str, Any]) -> dict[str, Any]:
    """Return stored values, with tuples for lists. Raises ValueError for one that we cannot have
    written."""
    values: dict[str, Any] = dict(found)
    for name in _LISTS & found.keys():
        values[name] = tuple(found[name])
    for name, value in values.items():
        if name in _TIMES:
            is_right = type(value) in (int, float) and abs(value) < _LATEST
        else:
            texts = value if name in _LISTS else (value,)
            is_right = all(map(is_text, texts))
        is_none = value is None and name in _MAY_BE_NONE
        if not (is_right or is_none or name == "in_keyring"):
            raise ValueError(name)
    if not _TOKEN.fullmatch(values.get("access_token", "x")):
        raise ValueError("access_token")
    return values


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
