"""What is stored of logins, where, and what is said when that fails."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from mcp_tool_filter.core.sockets.connect import LoginNeeded
from mcp_tool_filter.rooms.logins import store as files
from mcp_tool_filter.rooms.logins import stored
from mcp_tool_filter.rooms.logins.logins_through import Registrations
from mcp_tool_filter.rooms.logins.store import LoginState, LoginStore, Registration, Tokens

# Logins in files
HERE = "https://example.com/mcp"
TOKENS = Tokens(access_token="a", refresh_token="b", received_at=1.0, scopes=("a",))
STATE = LoginState(
    endpoint=HERE,
    resource=HERE,
    issuer="https://example.com",
    token_endpoint="https://example.com/token",
    revocation_endpoint=None,
    registration=Registration(client_id="me", client_secret="x", scopes=("a", "b")),
    tokens=TOKENS,
)


def test_a_saved_login_can_be_loaded_until_it_is_forgotten(tmp_path: Path) -> None:
    store = LoginStore(tmp_path / "new")
    store.save(STATE)
    modes = [one.stat().st_mode & 0o777 for one in (store.folder, store.path_of(STATE.endpoint))]
    assert modes == [0o700, 0o600]
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
    with pytest.raises(files.StoreFailed) as failed:
        store.load(STATE.endpoint)
    assert str(path) in failed.value.what


@pytest.mark.parametrize(
    ("name", "ours", "foreign"),
    [
        ("access_token", '"a"', '"a\\r\\nX: y"'), ("access_token", '"a"', "5"),
        ("received_at", "1.0", '"now"'), ("received_at", "1.0", "1e999"),
        ("expires_at", "null", "[]"), ("client_id", '"me"', "null"),
        ("refresh_token", '"b"', '"\\ud800"'), ("endpoint", f'"{HERE}"', '"http://["'),
        ("endpoint", f'"{HERE}"', '"https://other.example/mcp"'),
        ("token_endpoint", '"https://example.com/token"', "{}"), ("wanted_scopes", "[]", "[1]"),
    ],
)  # fmt: skip
def test_a_file_that_we_did_not_write_is_refused(
    tmp_path: Path, name: str, ours: str, foreign: str
) -> None:
    """It was found out when it was used, by an exception."""
    store = LoginStore(tmp_path)
    store.save(STATE)
    path = store.path_of(STATE.endpoint)
    text = path.read_text()
    assert f'"{name}": {ours}' in text
    path.write_text(text.replace(f'"{name}": {ours}', f'"{name}": {foreign}'))
    with pytest.raises(files.StoreFailed, match="remove it, and log in again"):
        store.load(STATE.endpoint)


def test_a_missing_folder_is_no_error_unless_it_cannot_be_made(tmp_path: Path) -> None:
    store = LoginStore(tmp_path / "none")
    assert store.find(STATE.endpoint) is None
    assert list(store.all()) == []
    (tmp_path / "none").touch()
    with pytest.raises(files.StoreFailed):
        store.save(STATE)


# Locked against other tasks and processes
async def test_waiting_for_a_lock_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log said that the reason was None."""
    program = (
        "import fcntl, sys; file = open(sys.argv[1], 'w');"
        " fcntl.flock(file, fcntl.LOCK_EX); print(flush=True); sys.stdin.read()"
    )
    monkeypatch.setattr(files, "_PATIENCE", 0.1)
    lock = files.KeptRegistrations(tmp_path, UPSTREAM).path.with_suffix(".lock")
    command = [sys.executable, "-c", program, str(lock)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout
        other.stdout.readline()
        await register(tmp_path, "a")
        assert (await kept(tmp_path)).of("a") is None
    assert caplog.text.rstrip().endswith(".json: Another process keeps it locked")
    await register(tmp_path, "a")
    assert (await kept(tmp_path)).of("a")


# Where logins are kept
def test_the_folder_follows_the_users_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"XDG_CONFIG_HOME": "/settings", "APPDATA": "C:/settings"}
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("HOME", "/home/me")
    assert stored.default_folder({}) == Path("/home/me/.config/mcp-tool-filter/logins")
    assert stored.default_folder(given) == Path("/settings/mcp-tool-filter/logins")
    assert stored.registrations_folder(given) == Path("/settings/mcp-tool-filter/registrations")
    monkeypatch.setattr("sys.platform", "win32")
    assert stored.default_folder(given) == Path("C:/settings/mcp-tool-filter/logins")


def test_logins_exist_with_their_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without a home has none."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    assert not stored.has_logins()
    (tmp_path / "mcp-tool-filter" / "logins").mkdir(parents=True)
    assert stored.has_logins()
    monkeypatch.delenv("XDG_CONFIG_HOME")
    monkeypatch.setattr(Path, "home", lambda: Path("~none").expanduser())
    assert not stored.has_logins()


# A login as values: when its token is due, and that no log shows a secret
@pytest.mark.parametrize(("lasts", "last_fresh"), [(3600, 3569), (100, 79), (0, -1), (None, 10**9)])
def test_a_token_is_renewed_before_its_end(lasts: float | None, last_fresh: float) -> None:
    """Half a minute early, or a fifth of its life; without an end never."""
    expires = None if lasts is None else 1000 + lasts
    given = replace(TOKENS, received_at=1000, expires_at=expires)
    fresh = [given.is_fresh(1000 + later) for later in (last_fresh, last_fresh + 1)]
    assert fresh == [True, lasts is None]


# Errors of logins: two lines for people, one sentence for clients, each with what to type
URL = "https://mcp.example/mcp"


def test_clients_get_one_sentence() -> None:
    over = str(LoginNeeded(files.LoggedOut(URL, "has expired")))
    assert over == f"The login to {URL} has expired. Type: mcp-tool-filter login {URL}"
    failed = str(LoginNeeded(files.RenewalFailed(URL, why="Connection refused")))
    assert failed == f"Cannot renew the login to {URL}. Connection refused"


def test_no_error_shows_a_secret_in_the_url_or_obeys_a_server() -> None:
    """Clients and log files get these texts."""
    url = "https://mcp.example/s/Zk3v9QpX7dRt5WmN2bLc/mcp?key=k-1"
    failed = files.LoginFailed(url, why="\x1b[2J"), files.RenewalFailed(url, why="a\nb")
    for text in map(str, (*failed, files.LoggedOut(url))):
        assert "https://mcp.example/s/…/mcp?key=…" in text
        assert len(text.splitlines()) == 2
        assert all(line.isprintable() for line in text.splitlines())


# Registrations outlive the process, in a file that only its user can read
URI = "http://127.0.0.1:1/cb"
UPSTREAM = "https://mcp.example"


async def register(folder: Path, name: str) -> Registrations:
    registrations = Registrations()
    registrations.keep(name, registrations.begin((URI,), "http://localhost"))
    await files.KeptRegistrations(folder, UPSTREAM).write(registrations)
    return registrations


async def kept(folder: Path, upstream: str = UPSTREAM) -> Registrations:
    found = Registrations()
    await files.KeptRegistrations(folder, upstream).read_into(found)
    return found


async def test_processes_add_to_the_same_file(tmp_path: Path) -> None:
    await asyncio.gather(*[register(tmp_path, f"client-{number}") for number in range(8)])
    found = await kept(tmp_path)
    assert all(found.of(f"client-{number}") for number in range(8))
    assert (await kept(tmp_path, "https://other.example")).of("client-0") is None


async def test_a_running_process_reads_what_another_writes(tmp_path: Path) -> None:
    file, found = files.KeptRegistrations(tmp_path, UPSTREAM), Registrations()
    await file.read_into(found)
    before = await register(tmp_path, "a")
    await file.read_into(found)
    assert found.of("a") == before.of("a")


NO_URL = b'{"version":1,"registrations":{"b":["http://[",[],true]}}'


@pytest.mark.parametrize("content", [b"nonsense", b"{}", b"[" * 100_000, NO_URL])
async def test_a_broken_file_is_reported_and_replaced(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    files.KeptRegistrations(tmp_path, UPSTREAM).path.write_bytes(content)
    await register(tmp_path, "a")
    assert "Clients must register again after a restart" in caplog.text
    assert (await kept(tmp_path)).of("a")


async def test_a_folder_that_cannot_be_written_does_no_harm(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    assert (await register(tmp_path / "file" / "below", "a")).of("a")
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

    def _open(self) -> dict[tuple[str, str], str]:
        if self.problem is not None:
            raise self.errors.KeyringError(self.problem)
        return self.kept

    def get_password(self, service: str, name: str) -> str | None:
        return self._open().get((service, name))

    def set_password(self, service: str, name: str, secret: str) -> None:
        self._open()[service, name] = secret

    def delete_password(self, service: str, name: str) -> None:
        del self._open()[service, name]


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
    files.keyring_remove("one")  # which is not there


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
    state = replace(STATE, in_keyring=True)
    for act in (files.check_keyring, lambda: files.keyring_remove("n"), lambda: store.save(state)):
        with pytest.raises(files.KeyringFailed) as failed:
            act()
        assert failed.value.why.startswith(why)
        assert failed.value.why.isprintable()
        assert len(failed.value.why) <= 200
