"""Commands that log in, with a browser that a script plays."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from mcp_tool_filter.adapters.oauth.store import LoginStore
from tests.cli.launched import launched
from tests.login_browser import browser_command
from tests.oauth_server import OAuthUpstream
from tests.oauth_upstream import oauth_upstream
from tests.proxy import REPOSITORY, SCRIPT, RunningTool, certified, tool
from tests.raw_client import post, raw_client

CALL = b'{"jsonrpc":"2.0","id":8,"method":"tools/call","params":{"name":"read_file"}}'


def command(*args: str, home: Path, browser: str = "", **more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "mcp_tool_filter", *args],
        cwd=REPOSITORY / "addon",
        env={
            **os.environ,
            "XDG_CONFIG_HOME": str(home),
            "BROWSER": browser or browser_command(),
            **more,
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(*args: str, home: Path, browser: str = "", **more: str) -> tuple[int, str, str]:
    process = command(*args, home=home, browser=browser, **more)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def store_of(home: Path) -> LoginStore:
    return LoginStore(home / "mcp-tool-filter" / "logins")


def shows_no_secret(upstream: OAuthUpstream, *texts: str) -> bool:
    found = upstream.all_secrets()
    assert found
    return not any(secret in text for text in texts for secret in found)


def test_a_person_logs_in_and_out(tmp_path: Path) -> None:
    with oauth_upstream() as upstream:
        status, out, err = run("login", upstream.url, home=tmp_path)
        assert (status, out) == (0, f"Logged in to {upstream.url}\n"), err
        assert shows_no_secret(upstream, out, err)
        status, out, err = run("login", "--list", home=tmp_path)
        assert (status, out) == (0, f"{upstream.url}\trenews itself\ttools\n")
        flags = ("--upstream", upstream.url, "--host", "0.0.0.0", "--port", "0")
        status, _, err = run(*flags, home=tmp_path)
        assert (status, "everybody on the network acts with your login" in err) == (2, True)
        status, out, err = run("logout", upstream.url, home=tmp_path)
        assert (status, out, err) == (0, f"Logged out of {upstream.url}\n", "")
        assert [one[:8] for one in upstream.revoked] == ["refresh-"]
        assert run("login", "--list", home=tmp_path)[1] == ""
        status, _, err = run("logout", upstream.url, home=tmp_path)
        assert (status, err.splitlines()[0]) == (1, f"Error: Not logged in to {upstream.url}")


def test_a_device_without_a_browser_prints_the_page(tmp_path: Path) -> None:
    """The user opens it elsewhere, and copies the address at which that browser ends."""
    with oauth_upstream() as upstream:
        process = command("login", upstream.url, "--no-browser", home=tmp_path, browser="false")
        assert process.stderr
        assert process.stdin
        url = next(line.strip() for line in process.stderr if line.strip().startswith("http"))
        asked = {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}
        process.stdin.write("something else\n" + upstream.authorize(asked)[1] + "\n")
        process.stdin.flush()
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out) == (0, f"Logged in to {upstream.url}\n"), err


def test_a_browser_that_cannot_be_opened_is_no_error(tmp_path: Path) -> None:
    with oauth_upstream() as upstream:
        status, _, err = run(
            "login", upstream.url, "--timeout", "1", home=tmp_path, browser="false"
        )
        assert status == 1
        assert "open the page yourself" in err
        assert err.endswith(
            f"Error: Cannot log in to {upstream.url}\nNobody logged in within 1 s\n"
        )


def test_more_scopes_are_requested_where_the_server_wants_them(tmp_path: Path) -> None:
    with oauth_upstream(scope_to_enter="write") as upstream:
        status, _, err = run("login", upstream.url, home=tmp_path)
        assert status == 0, err
        assert [one["scope"] for one in upstream.authorizations] == ["tools", "tools write"]
        assert "The server wants more rights: write" in err


@pytest.mark.parametrize("secret", ["$SECRET", "${SECRET}"])
def test_a_clients_secret_is_read_from_a_variable(tmp_path: Path, secret: str) -> None:
    with oauth_upstream(fixed_client=("me", "geheim"), has_registration=False) as upstream:
        args = ("login", upstream.url, "--client-id", "me", "--client-secret", secret)
        status, out, err = run(*args, home=tmp_path, SECRET="geheim")
        assert status == 0, err
        assert "geheim" not in out + err


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((), "Log in to which server?"),
        (("http://mcp.example/mcp",), "https only"),
        (("ftp://x/",), "Unsupported URL scheme: ftp"),
        (("http://127.0.0.1:1/mcp",), "Connection refused"),
        (("x", "--callback-port", "99999"), "--callback-port"),
        (("x", "--client-secret", "a"), "needs --client-id"),
        (("x", "--client-id", "a", "--client-secret", "$NOT_SET"), "NOT_SET is not set"),
        (("x", "--unknown"), "--unknown"),
        (("http://127.0.0.1:1/mcp", "--ca", "/none"), "--ca: '/none'"),
    ],
)
def test_mistakes_give_two_lines(tmp_path: Path, args: tuple[str, ...], said: str) -> None:
    status, out, err = run("login", *args, home=tmp_path)
    assert (status > 0, out, len(err.splitlines())) == (True, "", 2)
    assert err.startswith("Error: ")
    assert said in err


def test_a_refused_login_stores_nothing(tmp_path: Path) -> None:
    way_back = {"error": "access_denied", "error_description": "No\x1b[31m", "code": ""}
    with oauth_upstream(way_back=way_back) as upstream:
        status, out, err = run("login", upstream.url, home=tmp_path)
        assert (status, out) == (1, "")
        assert err.endswith(f"Cannot log in to {upstream.url}\naccess_denied: No?[31m\n")
        assert list(store_of(tmp_path).all()) == []


def test_what_a_server_says_cannot_write_to_the_terminal(tmp_path: Path) -> None:
    """Escape sequences can clear the screen, and forge lines of ours."""
    with oauth_upstream(scopes=["tools", "\x1b[2Jred\x9b31m"]) as upstream:
        done = run("login", upstream.url, home=tmp_path)
        listed = run("login", "--list", home=tmp_path)
        assert (done[0], listed[0]) == (0, 0), done
        assert "tools \\x1b[2Jred\\x9b31m" in listed[1]
        upstream.metadata = {"token_endpoint": f"{upstream.issuer}/\x1b[2J"}
        failed = run("login", upstream.url, home=tmp_path)
        ended = run("logout", upstream.url, home=tmp_path)
    for _, out, err in (done, listed, failed, ended):
        assert all(line.isprintable() for line in (out + err).replace("\t", "").splitlines())


def test_a_server_with_a_certificate_of_its_own_is_trusted_with_ca(tmp_path: Path) -> None:
    with oauth_upstream(tls=certified(tmp_path), elsewhere=True) as upstream:
        status, _, err = run("login", upstream.url, home=tmp_path)
        assert (status, "certificate verify failed" in err) == (1, True), err
        ca = str(tmp_path / "upstream-ca-cert.pem")
        status, _, err = run("login", upstream.url, "--ca", ca, home=tmp_path)
        assert status == 0, err
        status, _, err = run("logout", upstream.url, home=tmp_path)  # it remembers whom to trust
        assert (status, err) == (0, "")
        assert len(upstream.revoked) == 1


def test_other_commands_use_the_login(tmp_path: Path) -> None:
    with oauth_upstream() as upstream:
        listing = ("--upstream", upstream.url, "--list-tools", "--format", "names")
        status, _, err = run(*listing, home=tmp_path)
        assert (status, "HTTP 401" in err) == (1, True)
        hint = f"Hint: Log in with your browser: mcp-tool-filter login {upstream.url}\n"
        assert err.endswith(hint)
        assert run("--stdio", "-u", upstream.url, home=tmp_path)[2].endswith(hint)
        status, out, _ = run("doctor", "-u", upstream.url, "--port", "0", home=tmp_path)
        assert f"Log in with your browser: mcp-tool-filter login {upstream.url}" in out
        assert run("login", upstream.url, home=tmp_path)[0] == 0
        assert run(*listing, home=tmp_path)[:2] == (0, "read_file\ndelete_file\n")
        assert run(*listing, "--login", "off", home=tmp_path)[0] == 1
        status, out, err = run("doctor", "-u", upstream.url, "--port", "0", home=tmp_path)
        assert status == 0, out
        assert f"Logged in to {upstream.url}" in out
        upstream.end_access()
        upstream.refuses_renewal = "invalid_grant"
        status, _, err = run(*listing, home=tmp_path)
        assert (status, err) == (
            1,
            f"Error: The login to {upstream.url} has expired\n"
            f"Type: mcp-tool-filter login {upstream.url}\n",
        )
        status, out, err = run("doctor", "-u", upstream.url, "--port", "0", home=tmp_path)
        assert status == 1
        assert f"Type: mcp-tool-filter login {upstream.url}" in out


def test_a_pipe_uses_the_login(tmp_path: Path) -> None:
    """The token is renewed while the pipe is open; a failed renewal is an error for the client."""
    with oauth_upstream() as upstream:
        assert run("login", upstream.url, home=tmp_path)[0] == 0
        pipe = command("--stdio", "-u", upstream.url, "--deny", "^delete_", home=tmp_path)
        assert pipe.stdin
        assert pipe.stdout

        def ask(method: str, params: object = None, id: int = 1) -> dict[str, Any]:
            assert pipe.stdin
            assert pipe.stdout
            message = {"jsonrpc": "2.0", "id": id, "method": method, "params": params or {}}
            pipe.stdin.write(json.dumps(message) + "\n")
            pipe.stdin.flush()
            said: dict[str, Any] = json.loads(pipe.stdout.readline())
            assert said["id"] == id
            return said

        hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {}}
        assert "result" in ask("initialize", hello)
        listed = ask("tools/list")["result"]["tools"]
        assert [tool["name"] for tool in listed] == ["read_file"]
        upstream.end_access()
        call = {"name": "read_file", "arguments": {}}
        assert "result" in ask("tools/call", call, 2)
        assert upstream.renewals == 1
        upstream.scope_of_calls = "write"
        said = ask("tools/call", call, 3)["error"]
        assert said["code"] == -32010
        assert f"(write). Type: mcp-tool-filter login {upstream.url}" in said["message"]
        store_of(tmp_path).forget(upstream.url)
        assert "Not logged in" in ask("ping", id=4)["error"]["message"]
        out, err = pipe.communicate(timeout=60)
        assert shows_no_secret(upstream, out, err)


@pytest.mark.parametrize("host", ["launcher", "mitmdump"])
async def test_no_output_or_recording_contains_a_secret(tmp_path: Path, host: str) -> None:
    """Neither at the highest verbosity, nor in what the process is called."""
    with oauth_upstream() as upstream:
        status, _, err = await asyncio.to_thread(run, "login", upstream.url, home=tmp_path)
        assert status == 0, err
        recording = tmp_path / "all.flow"
        environment = {"XDG_CONFIG_HOME": str(tmp_path)}
        args: tuple[str, ...]
        hosted: AbstractAsyncContextManager[RunningTool]
        if host == "launcher":
            args = ("--upstream", upstream.url, "--deny", "^x", "-vv", "--record", str(recording))
            hosted = launched(*args, home=tmp_path, environment=environment)
        else:
            mode = f"reverse:{upstream.origin}"
            args = ("-s", SCRIPT, "--mode", mode, "--set", "deny=^x", "--set", "endpoint=/mcp")
            more = ("-w", str(recording), "--set", "flow_detail=4", "-v")
            hosted = tool("mitmdump", *args, *more, home=tmp_path, environment=environment)
        async with hosted as it:
            await it.says("Login: requests without their own credentials use yours")
            await it.listening()
            async with raw_client(it.port) as client:
                for _ in range(2):
                    got = await client.ask(post(CALL))
                    assert "result" in json.loads(got.body), got
                    upstream.end_access()
                upstream.refuses_renewal = "invalid_grant"
                got = await client.ask(post(CALL))
                assert json.loads(got.body)["error"]["code"] == -32010
            command_line = Path(f"/proc/{it.process.pid}/cmdline").read_text()
            it.interrupt()
            await it.exit_code()
        written = recording.read_bytes().decode("latin-1")
        assert "tools/call" in written
        assert shows_no_secret(upstream, it.stdout, it.stderr, written, command_line)
        assert "access-" not in it.stdout + it.stderr + written


async def test_a_start_with_an_expired_login_says_what_to_type(tmp_path: Path) -> None:
    with oauth_upstream() as upstream:
        await asyncio.to_thread(run, "login", upstream.url, home=tmp_path)
        upstream.end_access()
        upstream.refuses_renewal = "invalid_grant"
        environment = {"XDG_CONFIG_HOME": str(tmp_path)}
        args = ("--upstream", upstream.url, "--deny", "^x")
        async with launched(*args, home=tmp_path, environment=environment) as it:
            assert await it.exit_code() == 1
        assert it.stderr.endswith(
            f"Error: The login to {upstream.url} has expired\n"
            f"Type: mcp-tool-filter login {upstream.url}\n"
        )


def test_logout_can_end_all_logins(tmp_path: Path) -> None:
    with oauth_upstream() as first, oauth_upstream() as second:
        for upstream in (first, second):
            assert run("login", upstream.url, home=tmp_path)[0] == 0
        status, out, _ = run("logout", "--all", home=tmp_path)
        assert status == 0
        assert set(out.splitlines()) == {f"Logged out of {one.url}" for one in (first, second)}
        assert "There are no logins" in run("logout", "--all", home=tmp_path)[2]


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
def keyring(tmp_path: Path) -> dict[str, str]:
    """Variables with which a process finds a keyring that keeps all in a file."""
    package = tmp_path / "fake" / "keyring"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(FAKE_KEYRING)
    (package / "errors.py").write_text("class KeyringError(Exception):\n    pass\n")
    kept = str(tmp_path / "kept.json")
    return {"PYTHONPATH": str(tmp_path / "fake"), "FAKE_KEYRING": kept}


def test_tokens_can_be_stored_in_the_systems_keyring(
    tmp_path: Path, keyring: dict[str, str]
) -> None:
    with oauth_upstream() as upstream:
        listing = ("--upstream", upstream.url, "--list-tools", "--format", "names")
        status, _, err = run("login", upstream.url, "--keyring", home=tmp_path, **keyring)
        assert status == 0, err
        path = store_of(tmp_path).path_of(upstream.url)
        kept = Path(keyring["FAKE_KEYRING"])
        for _ in range(2):  # the second time with a renewal
            assert shows_no_secret(upstream, path.read_text())
            assert "access-" in kept.read_text()
            assert run(*listing, home=tmp_path, **keyring)[0] == 0
            upstream.end_access()
        assert upstream.renewals == 1
        assert run("login", "--list", home=tmp_path, **keyring)[1].split("\t")[1] == "renews itself"
        kept.write_text("locked")
        status, _, err = run(*listing, home=tmp_path, **keyring)
        assert err == "Error: Cannot use the system's keyring\nit is locked\n"
        kept.write_text("{}")
        status, _, err = run(*listing, home=tmp_path, **keyring)
        assert f"Type: mcp-tool-filter login {upstream.url}" in err


@pytest.mark.parametrize("then", ["logout", "login"])
def test_logging_out_or_in_again_removes_secrets_from_the_keyring(
    tmp_path: Path, keyring: dict[str, str], then: str
) -> None:
    with oauth_upstream() as upstream:
        assert run("login", upstream.url, "--keyring", home=tmp_path, **keyring)[0] == 0
        assert run(then, upstream.url, home=tmp_path, **keyring)[0] == 0
        assert json.loads(Path(keyring["FAKE_KEYRING"]).read_text()) == {}


def test_a_missing_keyring_package_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "keyring.py").write_text("raise ImportError")
    args = ("login", "http://127.0.0.1:1/mcp", "--keyring")
    status, _, err = run(*args, home=tmp_path, PYTHONPATH=str(tmp_path))
    assert (status, err.splitlines()[1]) == (1, "Type: pip install 'mcp-tool-filter[keyring]'")
