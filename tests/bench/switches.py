"""How often does a message change modules on its way? python -m tests.bench.switches [--show]

A switch is a call of a function in another module of ours, or the return from it. Few mean that a
reader follows a message without jumping to and fro. A real mitmproxy in this process passes each
question once before, so that nothing is counted that happens only at the first time.

"hooks" leaves out our replacements of mitmproxy's own layers, "core" all that knows a host.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from mcp_tool_filter.adapters.mitmproxy.addon import ToolFilter
from tests.mcp_upstream import mcp_upstream, tool, tool_list
from tests.proxy import proxy
from tests.raw_client import MCP_HEADERS, post, raw_client
from tests.raw_upstream import SSE_HEAD, RawRequest

_OURS = "mcp_tool_filter."
_VIEWS = {
    "all": ("no such module",),
    "hooks": ("adapters.mitmproxy.layer", "engine."),
    "core": ("adapters.", "cli."),
}
"""What each column leaves out."""
_DENIED = b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"delete_file"}}'
_ALLOWED = _DENIED.replace(b"delete", b"read")
_LIST = b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}'
_READ, _DELETE = tool("read_file"), tool("delete_file")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.switches", description=__doc__)
    parser.add_argument("--show", action="store_true", help="show from where to where, too")
    args = parser.parse_args(argv)
    with tempfile.TemporaryDirectory() as home:
        asyncio.run(_count_all(Path(home), is_long=args.show))
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
        module = here.f_globals["__name__"].removeprefix(_OURS)
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
    """Count the switches of everything that runs in this thread."""
    switches = Switches()
    sys.setprofile(switches.follow)
    try:
        yield switches
    finally:
        sys.setprofile(None)


def _as_event(_request: RawRequest, id: str) -> bytes:
    data = b"data: " + tool_list([_READ, _DELETE], id=id) + b"\n\n"
    return SSE_HEAD.replace(b"Transfer-Encoding: chunked", b"Content-Length: %d" % len(data)) + data


async def _count_all(home: Path, *, is_long: bool) -> None:
    print(f"{'switches (modules)':24}" + "".join(f"{view:>14}" for view in _VIEWS))
    given = {"deny": ["^delete_"], "endpoint": ["/mcp"]}
    async with (
        mcp_upstream(tools=[_READ, _DELETE], lists=_as_event) as upstream,
        proxy(ToolFilter(), to=upstream.url, home=home, **given) as it,
        raw_client(it.port) as client,
    ):
        for title, body in {
            "denied call": _DENIED,
            "allowed call": _ALLOWED,
            "list in an event": _LIST,
        }.items():
            await client.ask(post(body, headers=MCP_HEADERS))
            with counting() as switches:
                await client.ask(post(body, headers=MCP_HEADERS))
            _show(title, switches, is_long=is_long)


def _show(title: str, switches: Switches, *, is_long: bool) -> None:
    found = [switches.without(*left_out) for left_out in _VIEWS.values()]
    counted = [f"{len(one) - 1} ({len({module for module, _ in one})})" for one in found]
    print(f"{title:24}" + "".join(f"{one:>14}" for one in counted))
    if is_long:
        for module, function in found[1]:
            print(f"    {module:48} {function}")


if __name__ == "__main__":
    sys.exit(main())
