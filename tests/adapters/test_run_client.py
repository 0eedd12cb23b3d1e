"""The client that we start, its variables and certificates, and the proxy that it would use."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import certifi
import pytest

from mcp_tool_filter.adapters.run import (
    TRUSTED,
    CannotRun,
    Proxy,
    command_for,
    environment_for,
    find_program,
    find_proxy,
    is_mcp_remote,
    run_client,
    write_bundles,
)
from mcp_tool_filter.errors import StartError


async def ran(code: str, cwd: str | None = None) -> int:
    return await run_client([sys.executable, "-c", code], os.environ, cwd)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("", 0),
        ("raise SystemExit(3)", 3),
        ("import os; os.kill(os.getpid(), 9)", 128 + signal.SIGKILL),
    ],
)
async def test_the_clients_exit_status_is_that_of_a_shell(code: str, status: int) -> None:
    assert await ran(code) == status


async def test_the_client_runs_in_the_given_folder(tmp_path: Path) -> None:
    assert await ran("open('here', 'w')", str(tmp_path)) == 0
    assert (tmp_path / "here").exists()
    with pytest.raises(StartError, match="There is no such folder"):
        await ran("", str(tmp_path / "missing"))


async def test_signals_are_passed_on_to_the_client(capfd: pytest.CaptureFixture[str]) -> None:
    code = (
        "import os, signal\n"
        "signal.signal(signal.SIGUSR1, lambda *_: os._exit(7))\n"
        "os.kill(os.getppid(), signal.SIGUSR1)\n"
        "signal.pause()"
    )
    assert await ran(code) == 7


def test_a_program_is_looked_up_in_the_clients_path(tmp_path: Path) -> None:
    program = tmp_path / "client"
    program.touch(0o755)
    assert find_program(["client"], {"PATH": str(tmp_path)}) == str(program)


@pytest.mark.parametrize(
    ("is_there", "status", "why"),
    [(False, 127, "Command not found"), (True, 126, "Permission denied")],
)
def test_a_program_that_cannot_run_has_a_reason_and_a_shells_status(
    is_there: bool, status: int, why: str, tmp_path: Path
) -> None:
    program = tmp_path / "client"
    if is_there:
        program.touch(0o644)
    with pytest.raises(CannotRun) as caught:
        find_program([str(program)], {"PATH": ""})
    assert (caught.value.exit_status, caught.value.why) == (status, why)


@pytest.mark.parametrize(
    ("text", "status", "why"),
    [
        ("#!/no/such/shell\n", 127, "there is no /no/such/shell, which its first line names"),
        ("echo\n", 126, "A script's first line must name what runs it"),
    ],
)
async def test_a_script_that_cannot_run_has_a_reason(
    text: str, status: int, why: str, tmp_path: Path
) -> None:
    """For each of them the system says no more than for a command that is not there."""
    program = tmp_path / "client"
    program.write_text(text)
    program.chmod(0o755)
    with pytest.raises(CannotRun) as caught:
        await run_client([str(program)], {}, None)
    assert caught.value.exit_status == status
    assert why in caught.value.why


def test_a_folder_is_not_a_program(tmp_path: Path) -> None:
    with pytest.raises(CannotRun) as caught:
        find_program([str(tmp_path)], {})
    assert (caught.value.exit_status, caught.value.why) == (
        126,
        f"{tmp_path} is a folder, not a program",
    )


BEFORE = {"PATH": "/bin", "NO_PROXY": "*", "https_proxy": "http://other"}


def test_the_environment_names_our_proxy_without_exceptions() -> None:
    found = environment_for(BEFORE, "http://127.0.0.1:1", Path("ca.pem"))
    for name in ("HTTP_PROXY", "https_proxy", "all_proxy", "WSS_PROXY"):
        assert found[name] == "http://127.0.0.1:1"
    assert found["NO_PROXY"] == found["no_proxy"] == ""
    assert {found[name] for name in TRUSTED} == {"ca.pem"}
    assert found["PATH"] == "/bin"


@pytest.mark.parametrize(
    ("command", "is_it"),
    [
        (["npx", "mcp-remote", "u"], True),
        (["C:\\tools\\mcp-remote", "u"], True),
        (["npx", "mcp-remote@1.2", "u"], True),
        (["npx", "my-mcp-remote", "u"], False),
    ],
)
def test_mcp_remote_is_recognised_and_told_to_use_a_proxy(command: list[str], is_it: bool) -> None:
    assert is_mcp_remote(command) is is_it
    told = command_for(command)
    assert told == ([*command, "--enable-proxy"] if is_it else command)
    assert command_for(told) == told


OURS = b"-----BEGIN CERTIFICATE-----\nours\n"
THEIRS = b"-----BEGIN CERTIFICATE-----\ntheirs\n"


def test_the_client_trusts_us_and_both_trust_what_it_trusted_before(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs.pem"
    theirs.write_bytes(THEIRS)
    environment = {"NODE_EXTRA_CA_CERTS": str(theirs)}
    client, upstream = write_bundles(tmp_path, ours=OURS, own=None, environment=environment)
    usual = Path(certifi.where()).read_bytes()
    for file in (client, upstream):
        assert usual in file.read_bytes()
        assert THEIRS in file.read_bytes()
    assert OURS in client.read_bytes()
    assert OURS not in upstream.read_bytes()


def test_a_file_that_the_user_names_must_have_certificates(tmp_path: Path) -> None:
    own = tmp_path / "own.pem"
    own.write_bytes(b"nothing")
    with pytest.raises(StartError, match="Cannot read --ca"):
        write_bundles(tmp_path, ours=OURS, own=str(own), environment={})
    own.write_bytes(THEIRS)
    client, _ = write_bundles(tmp_path, ours=OURS, own=str(own), environment={})
    assert THEIRS in client.read_bytes()


def test_missing_files_are_left_out(tmp_path: Path) -> None:
    environment = {"SSL_CERT_FILE": str(tmp_path / "missing.pem")}
    client, _ = write_bundles(tmp_path, ours=OURS, own=None, environment=environment)
    assert OURS in client.read_bytes()


@pytest.mark.parametrize(
    ("environment", "mode"),
    [
        ({"HTTPS_PROXY": "http://a:3128", "HTTP_PROXY": "http://b"}, "upstream:http://a:3128"),
        ({"http_proxy": "b.example:8080"}, "upstream:http://b.example:8080"),
        ({"ALL_PROXY": "https://c"}, "upstream:https://c:443"),
        ({"https_proxy": "http://[::1]"}, "upstream:http://[::1]:80"),
    ],
)
def test_the_most_specific_proxy_variable_counts(environment: dict[str, str], mode: str) -> None:
    found = find_proxy(environment)
    assert found
    assert (found.mode, found.login) == (mode, None)


def test_an_environment_without_a_proxy_has_none() -> None:
    assert find_proxy({"HTTPS_PROXY": "", "NO_PROXY": "*"}) is None


def test_a_login_is_unquoted_and_in_no_repr() -> None:
    found = find_proxy({"https_proxy": "http://me:p%40ss@proxy:1"})
    assert found
    assert found.login == "me:p@ss"
    assert "p@ss" not in repr(found)


@pytest.mark.parametrize("url", ["socks5://a:1", "http://a:port", "http://"])
def test_a_proxy_that_cannot_be_used_is_named_without_its_password(url: str) -> None:
    with pytest.raises(StartError) as caught:
        find_proxy({"HTTPS_PROXY": url})
    assert caught.value.what == "The proxy in HTTPS_PROXY cannot be used"


@pytest.mark.parametrize(
    ("entry", "host", "is_direct"),
    [
        ("*", "a.example", True),
        ("a.example", "a.example", True),
        ("a.example", "b.a.example", True),
        (".a.example", "b.a.example", True),
        ("*.a.example", "b.a.example", True),
        ("a.example:443", "a.example", True),
        ("a.example", "xa.example", False),
        ("10.0.0.0/8", "10.1.2.3", True),
        ("10.0.0.0/8", "11.1.2.3", False),
        ("a.example", "A.EXAMPLE", True),
        ("a.example", "127.0.0.1", True),
    ],
)
def test_no_proxy_hosts_are_reached_directly(entry: str, host: str, is_direct: bool) -> None:
    assert Proxy("", None, (entry,)).is_direct(host) is is_direct
