"""What does the core add to a message? Microseconds, and how often orjson could have read it.

python tests/bench/core.py
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from timeit import repeat

import orjson

ROOT = Path(__file__).parent.parent.parent
sys.path[:0] = [str(ROOT / "addon"), str(ROOT)]

from mcp_tool_filter.conversation.conversation import Conversation  # noqa: E402 - needs the path above
from mcp_tool_filter.http.event_stream import EventStream  # noqa: E402 - as above
from mcp_tool_filter.policy.chain import (  # noqa: E402 - as above
    decide_from_client,
    decide_from_upstream,
)
from mcp_tool_filter.policy.exchange import Situation  # noqa: E402 - as above
from mcp_tool_filter.protocol.sse import EventParser  # noqa: E402 - as above
from tests.make import (  # noqa: E402 - as above
    answering,
    asking,
    calling,
    chunks,
    event,
    listing,
    message,
    policy,
    snapshot_of,
)

NAMES = [f"tool_{number}" for number in range(10_000)]
LIST = listing(*NAMES)
SITUATION = Situation(snapshot=snapshot_of(LIST, deny="7$"))
POLICY = policy(*NAMES, deny="7$")
TEXT = answering('{"content":[{"type":"text","text":"' + "x" * 5_000_000 + '"}]}')
ROWS = answering('{"content":[],"structuredContent":[' + '{"a":1,"b":"x"},' * 300_000 + "0]}")
HOSTILE = b'{"jsonrpc":"2.0","id":1,"method":"x","params":[' + b"[]," * 3_000_000 + b"1]}"


def main() -> None:
    print(f"{'':32}{'bytes':>12}{'us':>12}{'/ orjson':>10}")
    for name, raw in {
        "allowed call": calling("tool_1", arguments='{"path":"/tmp/x"}'),
        "denied call": calling("tool_7"),
        "ping": asking("ping"),
        "hostile: a million of brackets": HOSTILE,
    }.items():
        show(name, raw, partial(ask, raw))
    for name, raw in {
        "small result": answering('{"content":[{"type":"text","text":"ok"}]}'),
        "5 MB of text": TEXT,
        "5 MB of rows": ROWS,
        "list of 10,000 tools": LIST,
    }.items():
        show(name, raw, partial(hear, raw))
    small = event(answering('{"content":[{"type":"text","text":"ok"}]}')) * 10_000
    show_stream("10,000 events in one chunk", small, 1 << 30)
    show_stream("the same in chunks of 100", small, 100)
    show_stream("5 MB event in chunks of 64 KB", event(TEXT), 65536)
    show_framing("20 MB line in chunks of 16 B", b"data: " + b"x" * 20_000_000, 16)
    show_framing("10 MB of line feeds", b"\n" * 10_000_000, 65536)
    show_framing("10 MB of tiny comments", b":\n" * 5_000_000, 65536)


def ask(raw: bytes) -> object:
    return decide_from_client(message(raw), SITUATION)


def hear(raw: bytes) -> object:
    return decide_from_upstream(message(raw), SITUATION)


def show(name: str, raw: bytes, work: Callable[[], object]) -> None:
    ours = fastest(work)
    theirs = fastest(lambda: orjson.loads(raw))
    print(f"{name:32}{len(raw):12}{ours * 1e6:12.1f}{ours / theirs:10.1f}")


def show_stream(name: str, stream: bytes, size: int) -> None:
    cut = chunks(stream, [size])

    def work() -> None:
        filtered = EventStream(Conversation(POLICY))
        for chunk in cut:
            filtered.feed(chunk)

    print(f"{name:32}{len(stream):12}{fastest(work) * 1e6:12.1f}")


def show_framing(name: str, stream: bytes, size: int) -> None:
    cut = chunks(stream, [size])

    def work() -> None:
        parser = EventParser()
        for chunk in cut:
            parser.feed(chunk)

    print(f"{name:32}{len(stream):12}{fastest(work) * 1e6:12.1f}")


def fastest(work: Callable[[], object]) -> float:
    """Return the seconds of the fastest of some runs."""
    (once,) = repeat(work, number=1, repeat=1)
    number = max(1, int(0.02 / max(once, 1e-9)))
    return min(repeat(work, number=number, repeat=5 if once < 1 else 1)) / number


if __name__ == "__main__":
    main()
