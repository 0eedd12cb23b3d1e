"""A real mitmproxy for tests: a master in this process, or a tool as users start it.

In process (one master at a time, for ``mitmproxy.ctx`` is global):

    async with proxy(MyAddon(), to=upstream.url, home=tmp_path) as running:
        ...  # running.port, running.master, running.said

In a process of its own, which leaving the block ends:

    mode = f"reverse:{upstream.url}"
    async with tool("mitmdump", "-s", SCRIPT, "--mode", mode, home=tmp_path) as it:
        await it.listening()
        assert await it.exit_code() == 1
"""

from __future__ import annotations

import asyncio
import logging
import os
import pty
import re
import signal
import ssl
import sys
import termios
import warnings
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any

with warnings.catch_warnings():
    # mitmproxy and ldap3 use names that pyparsing and pyasn1 have changed since.
    warnings.simplefilter("ignore", DeprecationWarning)
    from cryptography import x509
    from cryptography.hazmat.primitives import serialization
    from mitmproxy import certs, master, options
    from mitmproxy.addons import (
        core,
        default_addons,
        disable_h2c,
        next_layer,
        proxyserver,
        tlsconfig,
    )

from tests.raw_upstream import TIMEOUT, free_port

REPOSITORY = Path(__file__).parent.parent
SCRIPT = str(REPOSITORY / "addon" / "tool_filter.py")

type ToolName = str
CRASHES = re.compile("crashed|Unhandled|internal error; connection closed")


@dataclass
class RunningProxy:
    """A master in this process."""

    master: master.Master
    server: proxyserver.Proxyserver
    said: list[logging.LogRecord] = field(default_factory=list)

    @property
    def port(self) -> int:
        return int(self.server.listen_addrs()[0][1])

    def errors(self) -> list[str]:
        """What was logged at ERROR or above."""
        return [r.getMessage() for r in self.said if r.levelno >= logging.ERROR]


def _make_master(host: object, addons: Sequence[object]) -> master.Master:
    """Make the smallest master that can proxy, ours for --record (lean), or mitmdump's (dump)."""
    if host == "lean":
        from mcp_tool_filter.rooms.mitmproxy.masters import LeanMaster  # tests/core has no rooms

        [addon] = addons
        return LeanMaster(options.Options(), addon)
    own = master.Master(options.Options())
    if host == "dump":
        own.addons.add(*default_addons())
    else:
        own.addons.add(
            core.Core(),
            disable_h2c.DisableH2C(),
            proxyserver.Proxyserver(),
            next_layer.NextLayer(),
            tlsconfig.TlsConfig(),
        )
    for position, addon in enumerate(addons):  # before all others, as our bootstrap does it
        own.addons.chain.insert(position, own.addons.register(addon))
    return own


class _Listener(logging.Handler):
    def __init__(self, said: list[logging.LogRecord]) -> None:
        super().__init__(logging.DEBUG)
        self._said = said

    def emit(self, record: logging.LogRecord) -> None:
        self._said.append(record)


@contextmanager
def kept_log(said: list[logging.LogRecord]) -> Iterator[None]:
    """Keep what is logged."""
    listener, root = _Listener(said), logging.getLogger()
    root.addHandler(listener)
    try:
        yield
    finally:
        root.removeHandler(listener)


@asynccontextmanager
async def proxy(
    *addons: object, to: str | Sequence[str], home: Path, host: object = "plain", **more: Any
) -> AsyncIterator[RunningProxy]:
    """Run a master in front of ``to`` (one upstream's URL, or several modes) with these addons.

    The options are those we set for users; ``more`` sets others. A test fails when mitmproxy
    says that it has crashed.
    """
    own = _make_master(host, addons)
    server = own.addons.get("proxyserver")
    own.options.update(
        **{
            "confdir": str(home),
            "mode": [f"reverse:{to}"] if isinstance(to, str) else list(to),
            "listen_host": "127.0.0.1",
            "listen_port": 0,
            "connection_strategy": "lazy",
            "ssl_insecure": True,
            **more,
        }
    )
    running = RunningProxy(own, server)
    with kept_log(running.said):
        task = asyncio.create_task(own.run())
        try:
            async with asyncio.timeout(TIMEOUT):
                while not server.is_running and not task.done():
                    await asyncio.sleep(0.002)
            yield running
        finally:
            async with asyncio.timeout(TIMEOUT):
                await _hang_up(server)
                own.shutdown()
                await task
            own._legacy_log_events.uninstall()
    crashed = [text for text in running.errors() if CRASHES.search(text)]
    assert not crashed, crashed


async def _hang_up(server: proxyserver.Proxyserver) -> None:
    """Listen no longer and close every connection, so that nothing is left for a warning."""
    await server.servers.update([])
    for handler in list(server.connections.values()):
        if handler.client in handler.transports:
            handler.close_connection(handler.client)
    while server.connections:
        await asyncio.sleep(0.002)
    for _ in range(3):  # closed sockets are told of theirs in the turns that follow
        await asyncio.sleep(0)


@dataclass
class RunningTool:
    """mitmdump, mitmweb or mitmproxy in a process of its own."""

    process: asyncio.subprocess.Process
    port: int = 0
    _stdout: bytearray = field(default_factory=bytearray)
    _stderr: bytearray = field(default_factory=bytearray)
    _news: asyncio.Condition = field(default_factory=asyncio.Condition)
    _readers: list[asyncio.Task[None]] = field(default_factory=list)

    @property
    def stdout(self) -> str:
        return self._stdout.decode(errors="replace")

    @property
    def stderr(self) -> str:
        return self._stderr.decode(errors="replace")

    async def listening(self) -> int:
        """Wait until it says where it listens; the port."""
        if self.port:  # the console says it nowhere, but was given a port
            await self._accepting()
            return self.port
        found = await self.says(r"proxy to .* listening at \S*:(\d+)")
        self.port = int(found[1])
        return self.port

    async def _accepting(self) -> None:
        async with asyncio.timeout(TIMEOUT):
            while True:
                with suppress(ConnectionRefusedError):
                    _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                    writer.close()
                    return
                await asyncio.sleep(0.02)

    async def says(self, pattern: str) -> re.Match[str]:
        """Wait until its output has a match for ``pattern``; fail when it ends before."""
        async with asyncio.timeout(TIMEOUT), self._news:
            while not (found := re.search(pattern, self.stdout + self.stderr)):
                if all(reader.done() for reader in self._readers):
                    raise AssertionError(f"{pattern!r} is not in:\n{self.stdout}\n{self.stderr}")
                await self._news.wait()
            return found

    async def exit_code(self) -> int:
        """Wait until it has ended."""
        async with asyncio.timeout(TIMEOUT):
            await asyncio.gather(*self._readers)
            return await self.process.wait()

    def interrupt(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)

    async def _read(self, stream: asyncio.StreamReader, into: bytearray) -> None:
        while data := await self._some(stream):
            async with self._news:
                into += data
                self._news.notify_all()
        async with self._news:
            self._news.notify_all()

    @staticmethod
    async def _some(stream: asyncio.StreamReader) -> bytes:
        with suppress(OSError):  # a terminal whose process has ended
            return await stream.read(65536)
        return b""


@asynccontextmanager
async def tool(
    name: ToolName,
    *arguments: str,
    home: Path,
    listen_host: str | None = "127.0.0.1",
    environment: dict[str, str] | None = None,
    stderr_in_terminal: bool = False,
) -> AsyncIterator[RunningTool]:
    """Start mitmdump, mitmweb or mitmproxy (this one in a terminal) as a user does.

    It listens on a free port of the loopback, unless ``listen_host`` is None.
    """
    port = free_port() if name == "mitmproxy" else 0
    own = ["--set", f"confdir={home}"]
    if listen_host is not None:
        own += ["--listen-host", listen_host, "--listen-port", str(port)]
    if name == "mitmweb":
        own += ["--no-web-open-browser", "--web-port", str(free_port())]
    terminal = _Terminal() if name == "mitmproxy" else None
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        f"import sys; from mitmproxy.tools.main import {name}; sys.argv[0] = '{name}'; {name}()",
        *own,
        *arguments,
        stdin=terminal.end if terminal else asyncio.subprocess.DEVNULL,
        stdout=terminal.end if terminal else asyncio.subprocess.PIPE,
        stderr=terminal.end if terminal and stderr_in_terminal else asyncio.subprocess.PIPE,
        env={
            **os.environ,
            "NO_COLOR": "1",
            "PYTHONUNBUFFERED": "1",
            "TERM": "xterm",
            **(environment or {}),
        },
    )
    running = RunningTool(process, port)
    stdout = await terminal.reader() if terminal else process.stdout
    for stream, text in (stdout, running._stdout), (process.stderr, running._stderr):
        if stream:
            running._readers.append(asyncio.create_task(running._read(stream, text)))
    try:
        yield running
    finally:
        if process.returncode is None:
            process.kill()
        await asyncio.gather(*running._readers)
        await process.wait()
        if terminal:
            terminal.close()


class _Terminal:
    """A pseudoterminal: ``end`` is for the process, ``reader`` is what a person would see."""

    def __init__(self) -> None:
        self._ours, self.end = pty.openpty()
        termios.tcsetwinsize(self.end, (24, 80))
        self._transport: asyncio.ReadTransport | None = None

    async def reader(self) -> asyncio.StreamReader:
        os.close(self.end)  # the process has it now; it hangs up by ending
        reader = asyncio.StreamReader()
        self._transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(self._ours, "rb")
        )
        return reader

    def close(self) -> None:
        if self._transport:
            self._transport.close()


def certified(home: Path) -> ssl.SSLContext:
    """TLS for an upstream on the loopback, its certificate signed by a CA in ``home``."""
    store = certs.CertStore.from_store(home, "upstream", 2048)
    names = [x509.DNSName("localhost"), x509.IPAddress(ip_address("127.0.0.1"))]
    entry = store.get_cert("localhost", names)
    pem = home / "upstream-server.pem"
    key = entry.privatekey.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )
    pem.write_bytes(key + entry.cert.to_pem())
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    return context
