"""Run the client: it keeps the terminal, gets the signals meant for it, and reaches us.

Variables make it send its traffic through us and trust our certificates. Programs read different
variables. A client that reads none of them bypasses us; ``expected`` detects that.

>>> found = environment_for({"NO_PROXY": "*"}, "http://127.0.0.1:1", Path("ca.pem"))
>>> found["https_proxy"], found["NO_PROXY"], found["NODE_USE_ENV_PROXY"]
('http://127.0.0.1:1', '', '1')

If the user's own environment names a proxy, we use it as the client would have done.

>>> found = find_proxy({"https_proxy": "http://me:secret@proxy.example:3128", "NO_PROXY": ".local"})
>>> found.mode, found.login, found.is_direct("a.local"), found.is_direct("a.example")
('upstream:http://proxy.example:3128', 'me:secret', True, False)
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import ssl
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network
from pathlib import Path
from urllib.parse import unquote, urlsplit

import certifi

from mcp_tool_filter.adapters.stdio.child import why_not_started
from mcp_tool_filter.errors import StartError
from mcp_tool_filter.policy.config import is_loopback

_PASSED_ON = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
_FROM_TERMINALS = ("SIGINT", "SIGQUIT")
"""A terminal sends these to the client itself."""
_NOT_FOUND, _NOT_EXECUTABLE = 127, 126


class CannotRun(StartError):
    """The client cannot be started; the exit status is the one that shells use."""

    def __init__(self, program: str, error: OSError, *, file: str) -> None:
        is_missing = isinstance(error, FileNotFoundError) and not os.path.isdir(file)
        self.exit_status = _NOT_FOUND if is_missing else _NOT_EXECUTABLE
        if is_missing and not os.path.exists(file):
            why = "Command not found"
        elif isinstance(error, PermissionError):
            why = "Permission denied"
        else:
            why = why_not_started(error, program, file)
        super().__init__(f"Cannot start {program}", why=why)


def find_program(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return the program that a command names. Raises CannotRun."""
    found = shutil.which(command[0], path=environment.get("PATH"))
    if found is None:
        error = PermissionError() if os.path.isfile(command[0]) else FileNotFoundError()
        raise CannotRun(command[0], error, file=command[0])
    return found


async def run_client(
    command: Sequence[str], environment: Mapping[str, str], cwd: str | None
) -> int:
    """Run a client until it ends; return its exit status like a shell."""
    program = find_program(command, environment)
    if cwd is not None and not os.path.isdir(cwd):
        raise StartError(f"Cannot start {command[0]} in {cwd}", why="There is no such folder")
    loop = asyncio.get_running_loop()
    waiting: list[int] = []  # signals that came before the client had started
    client: asyncio.subprocess.Process | None = None

    def pass_on(number: int) -> None:
        if client is None:
            waiting.append(number)
        else:
            with suppress(ProcessLookupError):
                client.send_signal(number)

    def unless_from_terminal(number: int) -> None:
        if not _is_in_foreground():
            pass_on(number)

    for names, act in ((_PASSED_ON, pass_on), (_FROM_TERMINALS, unless_from_terminal)):
        for name in names:
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) is not signal.SIG_IGN:
                with suppress(NotImplementedError):  # Windows
                    loop.add_signal_handler(number, act, number)
    try:
        client = await asyncio.create_subprocess_exec(
            command[0], *command[1:], executable=program, env=dict(environment), cwd=cwd
        )
    except OSError as error:
        raise CannotRun(command[0], error, file=program) from None
    for number in waiting:
        pass_on(number)
    status = await client.wait()
    return status if status >= 0 else 128 - status


def _is_in_foreground() -> bool:
    """Tell whether a terminal sends its signals to us, and so to the client too."""
    try:
        with open("/dev/tty") as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:
        return False


_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "WS_PROXY", "WSS_PROXY")
TRUSTED = (
    "SSL_CERT_FILE",  # OpenSSL, and with it Python; Go; curl; uv
    "REQUESTS_CA_BUNDLE",  # Python's requests
    "CURL_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "DENO_CERT",
    "GIT_SSL_CAINFO",
    "AWS_CA_BUNDLE",
    "PIP_CERT",
    "CARGO_HTTP_CAINFO",
    "NIX_SSL_CERT_FILE",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
)
"""Variables that name a file of certificates to trust."""


def environment_for(before: Mapping[str, str], proxy: str, certificates: Path) -> dict[str, str]:
    """Return an environment that makes a client send its traffic through us.

    We set each variable in upper and lower case, because programs differ in which they read.
    """
    upper = {**dict.fromkeys(_PROXIES, proxy), "NO_PROXY": ""}
    lower = {name.lower(): value for name, value in upper.items()}
    trusted = dict.fromkeys(TRUSTED, str(certificates))
    return {**before, **upper, **lower, **trusted, "NODE_USE_ENV_PROXY": "1"}


_BEGIN = b"-----BEGIN"


def write_bundles(
    folder: Path, *, ours: bytes, own: str | None, environment: Mapping[str, str]
) -> tuple[Path, Path]:
    """Write the certificates for the client and for us; return both files. Raises StartError.

    ``ours`` is our own CA, ``own`` a file that the user names. We trust whatever the client would
    have trusted without us.
    """
    known = b"\n".join(dict.fromkeys(_known(own, environment)))
    client, upstream = folder / "client.pem", folder / "upstream.pem"
    upstream.write_bytes(known + b"\n")
    client.write_bytes(known + b"\n" + ours)
    return client, upstream


def _known(own: str | None, environment: Mapping[str, str]) -> Iterator[bytes]:
    system = ssl.get_default_verify_paths().cafile
    yield Path(certifi.where()).read_bytes()
    for name in filter(None, (system, *map(environment.get, TRUSTED))):
        if (found := _read(name)) is not None:
            yield found
    if own is not None:
        if (found := _read(os.path.expanduser(own))) is None:
            raise StartError(f"Cannot read --ca {own}", why="It must be a file of PEM certificates")
        yield found


def _read(name: str) -> bytes | None:
    try:
        found = Path(name).read_bytes()
    except OSError:
        return None
    return found if _BEGIN in found else None


_NAMES = ("https_proxy", "all_proxy", "http_proxy")


@dataclass(frozen=True, slots=True)
class Proxy:
    mode: str
    """In mitmproxy's spelling."""
    login: str | None = field(repr=False)
    exceptions: tuple[str, ...] = ()
    """The hosts that are reached without the proxy."""

    def is_direct(self, host: str) -> bool:
        return is_loopback(host) or any(_fits(host.lower(), one) for one in self.exceptions)


def find_proxy(environment: Mapping[str, str]) -> Proxy | None:
    """Return the proxy of an environment, if there is one. Raises StartError."""
    lower = {name.lower(): value for name, value in environment.items() if value}
    for name in _NAMES:
        if url := lower.get(name):
            entries = (one.strip().lower() for one in lower.get("no_proxy", "").split(","))
            return _parse(name, url, tuple(filter(None, entries)))
    return None


def _parse(name: str, url: str, exceptions: tuple[str, ...]) -> Proxy:
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if host is None or parts.scheme not in ("http", "https"):
        why = "It must be an http or https proxy; unset it to connect directly"
        raise StartError(f"The proxy in {name.upper()} cannot be used", why=why)
    where = f"[{host}]" if ":" in host else host
    usual = 443 if parts.scheme == "https" else 80
    login = None
    if parts.username is not None:
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return Proxy(f"upstream:{parts.scheme}://{where}:{port or usual}", login, exceptions)


def _fits(host: str, entry: str) -> bool:
    if entry == "*":
        return True
    try:
        return ip_address(host) in ip_network(entry, strict=False)
    except ValueError:
        name = entry.rpartition(":")[0] if entry.rpartition(":")[2].isdigit() else entry
        name = name.removeprefix("*").removeprefix(".")
        return host == name or host.endswith(f".{name}")
