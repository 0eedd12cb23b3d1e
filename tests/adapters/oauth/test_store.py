"""What is stored of logins, where, and what is said when that fails."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from mcp_tool_filter.adapters.oauth import store as files
from mcp_tool_filter.adapters.oauth.store import (
    KeptRegistrations,
    KeyringFailed,
    LoggedOut,
    LoginFailed,
    LoginState,
    LoginStore,
    Registration,
    RenewalFailed,
    StoreFailed,
    Tokens,
    check_keyring,
    keyring_remove,
    locked,
    replace_file,
)
from mcp_tool_filter.adapters.sockets.connect import LoginNeeded
from mcp_tool_filter.adapters.upstream.target import (
    default_folder,
    has_logins,
    registrations_folder,
)
from mcp_tool_filter.http.logins_through import Registrations

# Logins in files
STATE = LoginState(
    endpoint="https://example.com/mcp",
    resource="https://example.com/mcp",
    issuer="https://example.com",
    token_endpoint="https://example.com/token",
    revocation_endpoint=None,
    registration=Registration(client_id="me", client_secret="x", scopes=("a", "b")),
    tokens=Tokens(access_token="a", refresh_token="b", received_at=1.0, scopes=("a",)),
)


def test_a_saved_login_can_be_loaded_until_it_is_forgotten(tmp_path: Path) -> None:
    store = LoginStore(tmp_path)
    store.save(STATE)
    assert store.load("https://EXAMPLE.com:443/mcp/?x") == STATE
    assert list(store.all()) == [STATE]
    store.save(STATE.with_tokens(None))
    assert store.load(STATE.endpoint) == STATE.with_tokens(None)
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


@pytest.mark.parametrize(
    ("ours", "foreign"),
    [
        ('"access_token": "a"', '"access_token": "a\\r\\nX: y"'),
        ('"access_token": "a"', '"access_token": 5'),
        ('"received_at": 1.0', '"received_at": "now"'),
        ('"received_at": 1.0', '"received_at": 1e999'),
        ('"expires_at": null', '"expires_at": []'),
        ('"client_id": "me"', '"client_id": null'),
        ('"refresh_token": "b"', '"refresh_token": "\\ud800"'),
        ('"endpoint": "https://example.com/mcp"', '"endpoint": "http://["'),
        ('"token_endpoint": "https://example.com/token"', '"token_endpoint": {}'),
        ('"wanted_scopes": []', '"wanted_scopes": [1]'),
    ],
)
def test_a_file_with_what_we_do_not_write_cannot_be_read(
    tmp_path: Path, ours: str, foreign: str
) -> None:
    """It was found out when it was used, by an exception."""
    store = LoginStore(tmp_path)
    store.save(STATE)
    path = store.path_of(STATE.endpoint)
    text = path.read_text()
    assert ours in text
    path.write_text(text.replace(ours, foreign))
    with pytest.raises(StoreFailed, match="remove it, and log in again"):
        store.load(STATE.endpoint)


def test_a_missing_folder_is_no_error(tmp_path: Path) -> None:
    store = LoginStore(tmp_path / "none")
    assert store.find(STATE.endpoint) is None
    assert list(store.all()) == []


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreFailed):
        LoginStore(tmp_path / "file").save(STATE)


# Files that only their user can read, locked against other tasks and processes
def test_a_file_and_its_folder_are_for_their_user_only(tmp_path: Path) -> None:
    file = tmp_path / "new" / "file"
    replace_file(file, b"x")
    assert file.read_bytes() == b"x"
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700


async def test_waiting_for_a_lock_of_another_process_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = (
        "import fcntl, sys; file = open(sys.argv[1], 'w');"
        " fcntl.flock(file, fcntl.LOCK_EX); print(flush=True); sys.stdin.read()"
    )
    monkeypatch.setattr(files, "_PATIENCE", 0.1)
    with subprocess.Popen(
        [sys.executable, "-c", program, tmp_path / "lock"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as other:
        assert other.stdout
        other.stdout.readline()
        with pytest.raises(TimeoutError):
            async with locked(tmp_path / "lock"):
                pass
    async with locked(tmp_path / "lock"):
        pass


# Where logins are kept
def test_the_folder_follows_the_users_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"XDG_CONFIG_HOME": "/settings", "APPDATA": "C:/settings"}
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("HOME", "/home/me")
    assert default_folder({}) == Path("/home/me/.config/mcp-tool-filter/logins")
    assert default_folder(given) == Path("/settings/mcp-tool-filter/logins")
    assert registrations_folder(given) == Path("/settings/mcp-tool-filter/registrations")
    monkeypatch.setattr("sys.platform", "win32")
    assert default_folder(given) == Path("C:/settings/mcp-tool-filter/logins")


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


# A login as values: when its token is due, and that no log shows a secret
def tokens(lasts: float | None) -> Tokens:
    expires = None if lasts is None else 1000 + lasts
    return Tokens(access_token="s3cret", received_at=1000, expires_at=expires)


@pytest.mark.parametrize(
    ("lasts", "last_fresh"),
    [
        (3600, 3569),  # renewed half a minute early
        (100, 79),  # or a fifth of its life
        (0, None),
    ],
)
def test_a_token_is_renewed_before_its_end(lasts: float, last_fresh: float | None) -> None:
    given = tokens(lasts)
    if last_fresh is not None:
        assert given.is_fresh(1000 + last_fresh)
        assert not given.is_fresh(1000 + last_fresh + 1)
    assert not given.is_fresh(1000 + lasts)


def test_a_token_without_an_end_stays_fresh() -> None:
    assert tokens(None).is_fresh(1e12)


# Errors of logins: two lines for people, one sentence for clients, each with what to type
URL = "https://mcp.example/mcp"


def test_clients_get_one_sentence() -> None:
    over = str(LoginNeeded(LoggedOut(URL, "has expired")))
    assert over == f"The login to {URL} has expired. Type: mcp-tool-filter login {URL}"
    failed = str(LoginNeeded(RenewalFailed(URL, why="Connection refused")))
    assert failed == f"Cannot renew the login to {URL}. Connection refused"


def test_no_error_shows_a_secret_in_the_url_or_obeys_a_server() -> None:
    """Clients and log files get these texts."""
    url = "https://mcp.example/s/Zk3v9QpX7dRt5WmN2bLc/mcp?key=k-1"
    for error in (LoginFailed(url, why="\x1b[2J"), RenewalFailed(url, why="a\nb"), LoggedOut(url)):
        text = str(error)
        assert "https://mcp.example/s/…/mcp?key=…" in text
        assert len(text.splitlines()) == 2
        assert all(line.isprintable() for line in text.splitlines())


# Registrations outlive the process, in a file that only its user can read
URI = "http://127.0.0.1:1/cb"
UPSTREAM = "https://mcp.example"


async def register(folder: Path, name: str) -> Registrations:
    registrations = Registrations()
    registrations.keep(name, registrations.begin((URI,), "http://localhost"))
    await KeptRegistrations(folder, UPSTREAM).write(registrations)
    return registrations


async def test_processes_add_to_the_same_file(tmp_path: Path) -> None:
    await asyncio.gather(*[register(tmp_path, f"client-{number}") for number in range(8)])
    found = Registrations()
    await KeptRegistrations(tmp_path, UPSTREAM).read_into(found)
    assert all(found.of(f"client-{number}") for number in range(8))
    other = Registrations()
    await KeptRegistrations(tmp_path, "https://other.example").read_into(other)
    assert other.of("client-0") is None


async def test_a_running_process_reads_what_another_writes(tmp_path: Path) -> None:
    kept, found = KeptRegistrations(tmp_path, UPSTREAM), Registrations()
    await kept.read_into(found)
    before = await register(tmp_path, "a")
    await kept.read_into(found)
    assert found.of("a") == before.of("a")


NO_URL = b'{"version":1,"registrations":{"b":["http://[",[],true]}}'


@pytest.mark.parametrize("content", [b"nonsense", b"{}", b"[" * 100_000, NO_URL])
async def test_a_broken_file_is_reported_and_replaced(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    KeptRegistrations(tmp_path, UPSTREAM).path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        await register(tmp_path, "a")
    assert "Clients must register again after a restart" in caplog.text
    found = Registrations()
    await KeptRegistrations(tmp_path, UPSTREAM).read_into(found)
    assert found.of("a")


async def test_a_folder_that_cannot_be_written_does_no_harm(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    with caplog.at_level(logging.WARNING):
        registrations = await register(blocked / "below", "a")
    assert registrations.of("a")
    assert "Clients must register again after a restart" in caplog.text


# Secrets in a keyring, through the package ``keyring`` as a process would import it
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


def test_secrets_are_kept_until_the_login_is_forgotten(tmp_path: Path, backend: Backend) -> None:
    store, state = LoginStore(tmp_path), replace(STATE, in_keyring=True)
    store.save(state)
    assert list(backend.kept) == [("mcp-tool-filter", STATE.endpoint)]
    assert store.load(STATE.endpoint) == state
    store.forget(STATE.endpoint)
    assert backend.kept == {}
    keyring_remove("one")  # which is not there


@pytest.mark.parametrize(
    ("problem", "why"),
    [("it is\nlocked\x1b[2J " + "x" * 1000, "it is locked"), ("", "KeyringError")],
)
def test_a_keyring_that_refuses_is_reported_in_one_short_line(
    problem: str, why: str, tmp_path: Path, backend: Backend
) -> None:
    """By the name of its error, if it gives no reason."""
    backend.problem = problem
    store = LoginStore(tmp_path)
    for act in (
        check_keyring,
        lambda: keyring_remove("n"),
        lambda: store.save(replace(STATE, in_keyring=True)),
    ):
        with pytest.raises(KeyringFailed) as failed:
            act()
        assert failed.value.why.startswith(why)
        assert failed.value.why.isprintable()
        assert len(failed.value.why) <= 200
