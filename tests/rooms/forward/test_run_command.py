"""``mcp-tool-filter run``: the client's surroundings, its signals, its exit status, its errors."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.launched import Typed, surroundings
from tests.rooms.stdio.relaying import pid_in, written_in
from tests.stdio_client import is_alive

PYTHON = sys.executable


@pytest.fixture(autouse=True)
def _no_proxy(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if "proxy" in name.lower():
            monkeypatch.delenv(name)


def words(*arguments: str) -> list[str]:
    return [PYTHON, "-m", "mcp_tool_filter", "run", *arguments]


def test_the_clients_environment_names_our_proxy_and_all_certificates(
    tmp_path: Path, ran: Typed
) -> None:
    """Whatever the user had set: NO_PROXY would lead around us."""
    own = "-----BEGIN CERTIFICATE-----\nabc\n-----END CERTIFICATE-----\n"
    (tmp_path / "corporate.pem").write_text(own)
    show = (
        "import json, os\n"
        "print(json.dumps([dict(os.environ), open(os.environ['SSL_CERT_FILE']).read()]))"
    )
    trusted = str(tmp_path / "corporate.pem")
    none = {"NO_PROXY": "localhost,*", "no_proxy": "*"}
    out, err = ran("run", "--", PYTHON, "-c", show, NODE_EXTRA_CA_CERTS=trusted, **none)
    assert "has no effect" not in err  # the user has set no option
    found, certificates = json.loads(out)
    proxy = found["HTTPS_PROXY"]
    assert proxy.startswith("http://127.0.0.1:")
    for name in ("HTTP_PROXY", "https_proxy", "http_proxy", "ALL_PROXY"):
        assert found[name] == proxy
    assert found["NO_PROXY"] == found["no_proxy"] == ""
    assert found["NODE_USE_ENV_PROXY"] == "1"
    assert found["SSL_CERT_FILE"] == found["NODE_EXTRA_CA_CERTS"] == found["REQUESTS_CA_BUNDLE"]
    assert not Path(found["SSL_CERT_FILE"]).exists()  # any more
    assert own in certificates
    assert (tmp_path / ".mitmproxy" / "mitmproxy-ca-cert.pem").read_text() in certificates
    assert certificates.count("BEGIN CERTIFICATE") > 50


@pytest.mark.parametrize("status", [7, 255])
def test_the_clients_exit_status_is_ours(ran: Typed, status: int) -> None:
    ran("run", "--", "sh", "-c", f"exit {status}", status=status)


def test_a_client_ended_by_a_signal_has_a_shells_status(ran: Typed) -> None:
    ran("run", "--", "sh", "-c", "kill -9 $$", status=128 + 9)


def test_a_file_of_certificates_that_cannot_be_read_is_an_error(ran: Typed) -> None:
    assert "Cannot read --ca /no/such" in ran("run", "--ca", "/no/such", "--", "sh", status=2).err


def test_a_host_that_is_none_is_an_error(ran: Typed) -> None:
    err = ran("run", "--host", "a b", "--", "sh", status=2).err
    assert "Invalid value for --host: 'a b'" in err


def test_without_a_host_nothing_is_filtered_and_run_says_so(ran: Typed) -> None:
    said = "Warning: nothing is filtered, because no host is named"
    assert said in ran("run", "--", "true").err
    assert said not in ran("run", "--host", "mcp.example", "--", "true").err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_signals_go_to_the_client(tmp_path: Path, number: signal.Signals) -> None:
    ready = tmp_path / "ready"
    program = (
        "import os, signal, sys, time\n"
        f"signal.signal({int(number)}, lambda *_: sys.exit(9))\n"
        f"open({str(ready)!r}, 'w').write(str(os.getpid()))\n"
        "time.sleep(60)"
    )
    command, around = words("--", PYTHON, "-c", program), surroundings(tmp_path)
    with subprocess.Popen(command, env=around, start_new_session=True) as process:
        pid = pid_in(ready)
        process.send_signal(number)
        assert process.wait(30) == 9
    assert not is_alive(pid)


def test_the_client_keeps_its_terminal(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    file = tmp_path / "said"
    program = (
        "import os\n"
        "text = f'{[os.isatty(n) for n in (0, 1, 2)]} {os.tcgetpgrp(0) == os.getpgrp()}'\n"
        f"open({str(file)!r}, 'w').write(text)"
    )
    # setsid --ctty makes the terminal that of the session, as a terminal program does.
    command = ["setsid", "--ctty", *words("--", PYTHON, "-c", program)]
    around = surroundings(tmp_path)
    with subprocess.Popen(command, env=around, stdin=theirs, stdout=theirs, stderr=theirs) as run:
        assert written_in(file) == "[True, True, True] True"
        run.wait(30)
    os.close(ours)
    os.close(theirs)


def test_the_proxy_listens_on_the_loopback_only_and_ends_with_the_client(ran: Typed) -> None:
    show = (
        "import os, socket, urllib.parse\n"
        "proxy = urllib.parse.urlsplit(os.environ['HTTPS_PROXY'])\n"
        "socket.create_connection((proxy.hostname, proxy.port)).close()\n"
        "other = socket.socket()\n"
        "other.bind(('127.0.0.2', proxy.port))\n"  # nobody listens there
        "print(proxy.port)"
    )
    port = int(ran("run", "--", PYTHON, "-c", show).out)
    check = f"import socket; socket.create_connection(('127.0.0.1', {port}))"
    gone = subprocess.run([PYTHON, "-c", check], capture_output=True, check=False)
    assert b"ConnectionRefusedError" in gone.stderr
