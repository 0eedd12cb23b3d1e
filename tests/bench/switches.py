"""How often does a message change modules on its way? python -m tests.bench.switches [--show HOST]

A switch is a call of a function in another module of ours, or the return from it. Few mean that a
reader follows a message without jumping to and fro. Both hosts and the relay run in this process.
Each passes each message once before, so that nothing is counted that happens only the first time.

"no host" leaves out what moves bytes (sockets, rooms, process) and the command line, "core" also
the HTTP engine.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from mcp_tool_filter.rooms.mitmproxy.addon import ToolFilter
from mcp_tool_filter.rooms.stdio.relay import Relay
from tests.mcp_upstream import mcp_upstream, tool
from tests.proxy import RunningProxy, proxy
from tests.raw_client import MCP_HEADERS, post, raw_client
from tests.raw_upstream import SSE_HEAD, Peer, RawRequest, answer
from tests.rooms.stdio.test_relay_lines import Relayed
from tests.served import RunningSockets, served
from tests.stdio_client import upstream

type Running = RunningProxy | RunningSockets
type Options = dict[str, Any]
type Show = Callable[[str, Switches], None]

_OURS = ("mcp_tool_filter.", "jsregex.")
_HOSTS = ("core.sockets.", "core.process.", "core.upstream.", "rooms.", "cli.")
_VIEWS = {
    "all": ("no such module",),
    "no host": _HOSTS,
    "core": (*_HOSTS, "core.engine."),
}
"""What each column leaves out."""
_DENIED = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"delete_file"}}'
_ALLOWED = _DENIED.replace(b"delete", b"read")
_EVENT = _DENIED.replace(b"delete", b"stream")
_LIST = b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}'
_PROMPTS = b'{"jsonrpc":"2.0","id":1,"method":"prompts/list"}'
_TWO_PROMPTS = (
    b'{"jsonrpc":"2.0","id":1,"result":{"prompts":[{"name":"ask"},{"name":"delete_all"}]}}'
)
_RESULT = b'{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"yes"}]}}'
_TOOLS = [tool("read_file"), tool("delete_file"), tool("stream_file")]
_RULES = """\
interceptor:
  rules:
    - id: no-notes
      conditions: [tool_equals: read_file]
      actions: [block: no]
"""
_MESSAGES = {
    "denied call": _DENIED, "allowed call": _ALLOWED, "call answered in an event": _EVENT,
    "list": _LIST,
}  # fmt: skip
_HTTP_HOSTS = ("sockets", "mitmproxy")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.switches", description=__doc__)
    hosts = [*_HTTP_HOSTS, "stdio"]
    parser.add_argument("--show", choices=hosts, default="", help="show each step in this host")
    args = parser.parse_args(argv)
    print(f"{'switches (modules)':36}" + "".join(f"{view:>12}" for view in _VIEWS))
    with tempfile.TemporaryDirectory() as home:
        rules = Path(home) / "rules.yaml"
        rules.write_text(_RULES)
        asyncio.run(_count_all(Path(home), rules, shown=args.show))
    _count_relay(is_long=args.show == "stdio")
    return 0


@dataclass(slots=True)
class Switches:
    """Each change of module, in order."""

    path: list[tuple[str, str]] = field(default_factory=list)
    """The module, and the function that is entered or returned to."""

    def follow(self, frame: FrameType, event: str, _value: object) -> None:
        """Take what ``sys.setprofile`` tells."""
        here: FrameType | None = frame if event == "call" else frame.f_back
        if event not in ("call", "return") or not _is_ours(frame):
            return
        while here is not None and not _is_ours(here):
            here = here.f_back
        if here is None:
            return
        module = here.f_globals["__name__"].removeprefix("mcp_tool_filter.")
        if not self.path or self.path[-1][0] != module:
            self.path.append((module, here.f_code.co_qualname))

    def without(self, *left_out: str) -> list[tuple[str, str]]:
        """Return the changes between modules that do not begin with one of these."""
        kept = [one for one in self.path if not one[0].startswith(left_out)]
        before = [None, *(module for module, _ in kept)]
        return [one for one, last in zip(kept, before, strict=False) if one[0] != last]


def _is_ours(frame: FrameType) -> bool:
    """Is it a function that somebody has written, no constructor that a dataclass has made?"""
    is_written = frame.f_code.co_filename != "<string>"
    return is_written and str(frame.f_globals.get("__name__", "")).startswith(_OURS)


@contextmanager
def counting() -> Iterator[Switches]:
    """Count the switches of everything that runs in this process."""
    switches = Switches()
    threading.setprofile_all_threads(switches.follow)
    try:
        yield switches
    finally:
        threading.setprofile_all_threads(None)


async def _result(request: RawRequest, peer: Peer) -> None:
    if b"prompts" in request.body:
        await peer.say(answer(_TWO_PROMPTS))
    else:
        await peer.say(_as_event(_RESULT) if b"stream" in request.body else answer(_RESULT))


def _as_event(message: bytes) -> bytes:
    data = b"data: " + message + b"\n\n"
    return SSE_HEAD.replace(b"Transfer-Encoding: chunked", b"Content-Length: %d" % len(data)) + data


async def _count_all(home: Path, rules: Path, *, shown: str) -> None:
    async with mcp_upstream(tools=_TOOLS, respond=_result) as upstream:
        for host in _HTTP_HOSTS:

            def running(given: Options, host: str = host) -> AbstractAsyncContextManager[Running]:
                options = {"deny": ["^delete_"], "endpoint": ["/mcp"], **given}
                if host == "sockets":
                    return served(to=upstream.url, **options)
                return proxy(ToolFilter(), to=upstream.url, home=home, host="lean", **options)

            show = partial(_show, host, is_long=host == shown)
            await _count(running({}), _MESSAGES, show)
            await _count(
                running({"rules": [str(rules)]}), {"call that a rule blocks": _ALLOWED}, show
            )
            await _count(
                running({"deny_prompts": ["^delete_"]}), {"list of two prompts": _PROMPTS}, show
            )


async def _count(
    running: AbstractAsyncContextManager[Running], messages: dict[str, bytes], show: Show
) -> None:
    async with running as it, raw_client(it.port) as client:
        for title, body in messages.items():
            await client.ask(post(body, headers=MCP_HEADERS))
            with counting() as switches:
                await client.ask(post(body, headers=MCP_HEADERS))
            show(title, switches)


def _count_relay(*, is_long: bool) -> None:
    relayed, (stdin, to_us) = Relayed(command=upstream()), os.pipe()
    relaying = threading.Thread(target=Relay(relayed.lines, stdin=stdin).run)
    relaying.start()

    def ask(line: bytes) -> None:
        os.write(to_us, line + b"\n")
        relayed.client_hears()

    for title, line in {"denied call": _DENIED, "allowed call": _ALLOWED}.items():
        ask(line)
        with counting() as switches:
            ask(line)
        _show("stdio", title, switches, is_long=is_long)
    os.close(to_us)
    relaying.join()


def _show(host: str, title: str, switches: Switches, *, is_long: bool) -> None:
    found = [switches.without(*left_out) for left_out in _VIEWS.values()]
    counted = [f"{len(one) - 1} ({len({module for module, _ in one})})" for one in found]
    print(f"{host + ': ' + title:36}" + "".join(f"{one:>12}" for one in counted))
    if is_long:
        for module, function in found[0]:
            print(f"    {module:48} {function}")


if __name__ == "__main__":
    sys.exit(main())
