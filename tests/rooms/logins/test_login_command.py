"""Commands that log in, with a browser that a script plays."""

from __future__ import annotations

import asyncio
import json
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from mcp_tool_filter.rooms.logins.store import LoginStore
from tests.cli.launched import ADDON, Typed, launched
from tests.login_browser import browser_command
from tests.make import calling
from tests.oauth_server import OAuthUpstream
from tests.oauth_upstream import oauth_upstream
from tests.proxy import SCRIPT, RunningTool, certified, tool
from tests.raw_client import post, raw_client
from tests.rooms.stdio.relaying import names_in
from tests.stdio_client import filtered


@pytest.fixture(autouse=True)
def store(home: Path, monkeypatch: pytest.MonkeyPatch) -> LoginStore:
    monkeypatch.setenv("BROWSER", browser_command())
    return LoginStore(home / ".config" / "mcp-tool-filter" / "logins")


def shows_no_secret(upstream: OAuthUpstream, *texts: str) -> bool:
    found = upstream.all_secrets()
    assert found
    return not any(secret in text for text in texts for secret in found)


def test_a_person_logs_in_and_out(ran: Typed) -> None:
    with oauth_upstream() as upstream:
        out, err = ran("login", upstream.url)
        assert out == f"Logged in to {upstream.url}\n"
        assert shows_no_secret(upstream, out, err)
        assert ran("login", "--list").out == f"{upstream.url}\trenews itself\ttools\n"
        refused = ran("-u", upstream.url, "--host", "0.0.0.0", "--port", "0", status=2).err
        assert "everybody on the network acts with your login" in refused
        assert ran("logout", upstream.url) == (f"Logged out of {upstream.url}\n", "")
        assert [one[:8] for one in upstream.revoked] == ["refresh-"]
        assert ran("login", "--list").out == ""
        err = ran("logout", upstream.url, status=1).err
        assert err.startswith(f"Error: Not logged in to {upstream.url}\n")


def test_a_device_without_a_browser_prints_the_page(home: Path) -> None:
    """The user opens it elsewhere, and copies the address at which that browser ends."""
    with (
        oauth_upstream() as upstream,
        filtered("login", upstream.url, "--no-browser", home=home) as process,
    ):
        said = process.said_on_stderr("code_challenge").splitlines()
        url = next(line.strip() for line in said if line.strip().startswith("http"))
        asked = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        process.say(b"something else", upstream.authorize(asked)[1].encode())
        assert process.hears_line().decode() == f"Logged in to {upstream.url}\n"
        assert process.ends() == 0


def test_a_browser_that_cannot_be_opened_is_no_error(ran: Typed) -> None:
    with oauth_upstream() as upstream:
        err = ran("login", upstream.url, "--timeout", "1", status=1, BROWSER="false").err
    assert "open the page yourself" in err
    assert err.endswith(f"Error: Cannot log in to {upstream.url}\nNobody logged in within 1 s\n")


def test_more_scopes_are_requested_where_the_server_wants_them(ran: Typed) -> None:
    with oauth_upstream(scope_to_enter="write") as upstream:
        assert "The server wants more rights: write" in ran("login", upstream.url).err
        assert [one["scope"] for one in upstream.authorizations] == ["tools", "tools write"]


@pytest.mark.parametrize("secret", ["$SECRET", "${SECRET}"])
def test_a_clients_secret_is_read_from_a_variable(ran: Typed, secret: str) -> None:
    with oauth_upstream(fixed_client=("me", "geheim"), has_registration=False) as upstream:
        words = ("login", upstream.url, "--client-id", "me", "--client-secret", secret)
        assert "geheim" not in "".join(ran(*words, SECRET="geheim"))


def test_a_refused_login_stores_nothing(ran: Typed, store: LoginStore) -> None:
    way_back = {"error": "access_denied", "error_description": "No\x1b[31m", "code": ""}
    with oauth_upstream(way_back=way_back) as upstream:
        out, err = ran("login", upstream.url, status=1)
        assert err.endswith(f"Cannot log in to {upstream.url}\naccess_denied: No?[31m\n")
        assert (out, list(store.all())) == ("", [])


def test_what_a_server_says_cannot_write_to_the_terminal(ran: Typed) -> None:
    """Escape sequences can clear the screen, and forge lines of ours."""
    with oauth_upstream(scopes=["tools", "\x1b[2Jred\x9b31m"]) as upstream:
        done, listed = ran("login", upstream.url), ran("login", "--list")
        assert "tools \\x1b[2Jred\\x9b31m" in listed.out
        upstream.metadata = {"token_endpoint": f"{upstream.issuer}/\x1b[2J"}
        failed, ended = ran("login", upstream.url, status=1), ran("logout", upstream.url)
    for out, err in (done, listed, failed, ended):
        assert all(line.isprintable() for line in (out + err).replace("\t", "").splitlines())


def test_a_server_with_a_certificate_of_its_own_is_trusted_with_ca(ran: Typed, home: Path) -> None:
    with oauth_upstream(tls=certified(home), elsewhere=True) as upstream:
        assert "certificate verify failed" in ran("login", upstream.url, status=1).err
        ran("login", upstream.url, "--ca", home / "upstream-ca-cert.pem")
        assert ran("logout", upstream.url).err == ""  # it remembers whom to trust
        assert len(upstream.revoked) == 1


def test_other_commands_use_the_login(ran: Typed) -> None:
    with oauth_upstream() as upstream:
        listing = ("--upstream", upstream.url, "--list-tools")
        doctor = ("doctor", "-u", upstream.url, "--port", "0")
        refused = ran(*listing, status=1).err
        hint = f"Log in with your browser: mcp-tool-filter login {upstream.url}\n"
        assert "HTTP 401" in refused
        assert refused.endswith(f"Hint: {hint}")
        assert ran("--stdio", "-u", upstream.url, status=1).err.endswith(f"Hint: {hint}")
        assert hint.strip() in ran(*doctor, status=1).out
        ran("login", upstream.url)
        assert "read_file\texposed" in ran(*listing).out
        ran(*listing, "--login", "off", status=1)
        assert f"Logged in to {upstream.url}" in ran(*doctor).out
        upstream.end_access()
        upstream.refuses_renewal = "invalid_grant"
        what, advice = f"The login to {upstream.url} has expired\n", f"login {upstream.url}\n"
        for words in (listing, ("-u", upstream.url, "-d", "^x", "-p", "0")):
            expired = ran(*words, status=1).err
            assert expired.endswith(f"Error: {what}Type: mcp-tool-filter {advice}")
        assert f"Type: mcp-tool-filter {advice}" in ran(*doctor, status=1).out


def test_a_pipe_uses_the_login(ran: Typed, home: Path, store: LoginStore) -> None:
    """The token is renewed while the pipe is open; a failed renewal is an error for the client."""
    with oauth_upstream() as upstream:
        ran("login", upstream.url)
        words = ("--stdio", "-u", upstream.url, "--deny", "^delete_")
        with filtered(*words, home=home) as pipe:
            assert "result" in pipe.opens()
            assert names_in(pipe.asks("tools/list")) == ["read_file"]
            upstream.end_access()
            assert "result" in pipe.calls("read_file", id="2")
            assert upstream.renewals == 1
            upstream.scope_of_calls = "write"
            said = pipe.calls("read_file", id="3")["error"]
            assert said["code"] == -32010
            assert f"(write). Type: mcp-tool-filter login {upstream.url}" in said["message"]
            store.forget(upstream.url)
            assert "Not logged in" in pipe.asks("ping", id="4")["error"]["message"]
            pipe.leaves()
            assert shows_no_secret(upstream, b"".join(pipe.raw).decode(), pipe.stderr())


@pytest.mark.parametrize("host", ["launcher", "mitmdump"])
async def test_no_output_or_recording_contains_a_secret(home: Path, ran: Typed, host: str) -> None:
    """Neither at the highest verbosity, nor in what the process is called."""
    with oauth_upstream() as upstream:
        await asyncio.to_thread(ran, "login", upstream.url)
        recording = home / "all.flow"
        hosted: AbstractAsyncContextManager[RunningTool]
        if host == "launcher":
            args = ["--upstream", upstream.url, "--deny", "^x", "-vv", "--record", str(recording)]
            hosted = launched(*args, home=home)
        else:
            sets = ("deny=^x", "endpoint=/mcp", "flow_detail=4")
            args = [word for one in sets for word in ("--set", one)]
            args += ["-s", SCRIPT, "--mode", f"reverse:{upstream.origin}", "-w", str(recording)]
            hosted = tool("mitmdump", *args, "-v", home=home)
        async with hosted as it:
            await it.says("Login: requests without their own credentials use yours")
            await it.listening()
            async with raw_client(it.port) as client:
                for _ in range(2):
                    got = await client.ask(post(calling("read_file")))
                    assert "result" in json.loads(got.body), got
                    upstream.end_access()
                upstream.refuses_renewal = "invalid_grant"
                got = await client.ask(post(calling("read_file")))
                assert json.loads(got.body)["error"]["code"] == -32010
            command_line = Path(f"/proc/{it.process.pid}/cmdline").read_text()
            it.interrupt()
            await it.exit_code()
        written = recording.read_bytes().decode("latin-1")
        assert "tools/call" in written
        assert shows_no_secret(upstream, it.stdout, it.stderr, written, command_line)
        assert "access-" not in it.stdout + it.stderr + written


def test_logout_can_end_all_logins(ran: Typed) -> None:
    with oauth_upstream() as first, oauth_upstream() as second:
        for upstream in (first, second):
            ran("login", upstream.url)
        ended = ran("logout", "--all").out.splitlines()
        assert set(ended) == {f"Logged out of {one.url}" for one in (first, second)}
        assert "There are no logins" in ran("logout", "--all").err


FAKE_KEYRING = """
import json, os, pathlib
from keyring import errors
_file = pathlib.Path(os.environ["FAKE_KEYRING"])

def _all():
    if not _file.exists():
        return {}
    if _file.read_text() == "locked":
        raise errors.KeyringError("it is locked")
    return json.loads(_file.read_text())

def get_password(service, name):
    return _all().get(f"{service} {name}")

def set_password(service, name, password):
    _file.write_text(json.dumps(_all() | {f"{service} {name}": password}))

def delete_password(service, name):
    kept = _all()
    del kept[f"{service} {name}"]
    _file.write_text(json.dumps(kept))
"""


@pytest.fixture
def kept(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A keyring that keeps all in this file."""
    (package := home / "fake" / "keyring").mkdir(parents=True)
    (package / "__init__.py").write_text(FAKE_KEYRING)
    (package / "errors.py").write_text("class KeyringError(Exception):\n    pass\n")
    monkeypatch.setenv("FAKE_KEYRING", str(home / "kept.json"))
    return home / "kept.json"


def test_tokens_can_be_stored_in_the_systems_keyring(
    home: Path, kept: Path, ran: Typed, store: LoginStore
) -> None:
    path = f"{home / 'fake'}:{ADDON}"
    with oauth_upstream() as upstream:
        listing = ("--upstream", upstream.url, "--list-tools")
        ran("login", upstream.url, "--keyring", PYTHONPATH=path)
        file = store.path_of(upstream.url)
        for _ in range(2):  # the second time with a renewal
            assert shows_no_secret(upstream, file.read_text())
            assert "access-" in kept.read_text()
            ran(*listing, PYTHONPATH=path)
            upstream.end_access()
        assert upstream.renewals == 1
        assert "\trenews itself" in ran("login", "--list", PYTHONPATH=path).out
        kept.write_text("locked")
        err = ran(*listing, PYTHONPATH=path, status=1).err
        assert err == "Error: Cannot use the system's keyring\nit is locked\n"
        kept.write_text("{}")
        err = ran(*listing, PYTHONPATH=path, status=None).err
        assert f"Type: mcp-tool-filter login {upstream.url}" in err


@pytest.mark.parametrize("then", ["logout", "login"])
def test_logging_out_or_in_again_removes_secrets_from_the_keyring(
    home: Path, kept: Path, ran: Typed, then: str
) -> None:
    path = f"{home / 'fake'}:{ADDON}"
    with oauth_upstream() as upstream:
        ran("login", upstream.url, "--keyring", PYTHONPATH=path)
        ran(then, upstream.url, PYTHONPATH=path)
    assert json.loads(kept.read_text()) == {}


def test_a_missing_keyring_package_says_what_to_install(home: Path, ran: Typed) -> None:
    (home / "keyring.py").write_text("raise ImportError")
    words = ("login", "http://127.0.0.1:1/mcp", "--keyring")
    err = ran(*words, status=1, PYTHONPATH=f"{home}:{ADDON}").err
    assert err.splitlines()[1] == "Type: pip install '.[keyring]' (in your clone)"
