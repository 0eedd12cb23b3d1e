"""What the filter itself costs, without a host: microseconds for each stage of a message's way.

python -m tests.bench.stages                     microseconds
python -m tests.bench.stages --instructions      with valgrind: what no other program disturbs
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial

from mcp_tool_filter.conversation.conversation import Conversation
from mcp_tool_filter.conversation.memory import Fetched
from mcp_tool_filter.http.event_stream import EventStream
from mcp_tool_filter.http.exchange import Passed
from mcp_tool_filter.http.head import Head, problem_in_fields
from mcp_tool_filter.http.listener import Listener, open_listener
from mcp_tool_filter.policy.chain import decide_from_client, decide_from_upstream
from mcp_tool_filter.policy.config import parse_config
from mcp_tool_filter.policy.exchange import Situation
from mcp_tool_filter.policy.snapshot import take_snapshot
from mcp_tool_filter.protocol.limits import Transport
from mcp_tool_filter.protocol.messages import Response, parse_message
from mcp_tool_filter.protocol.sse import EventParser
from mcp_tool_filter.protocol.tools import Listing, parse_listing
from tests.bench.upstream import DENY, definition, tool_names
from tests.make import message

_TOOLS = 200
_KILOBYTES = 100
_LEAST = 0.05  # seconds that a stage is repeated for, each time
_HEAD = Head(
    "POST",
    "/mcp",
    (
        (b"Host", b"127.0.0.1"),
        (b"Content-Type", b"application/json"),
        (b"Accept", b"application/json, text/event-stream"),
        (b"User-Agent", b"bench/1"),
        (b"Mcp-Session-Id", b"bench-1"),
        (b"MCP-Protocol-Version", b"2025-11-25"),
        (b"Content-Length", b"125"),
    ),
)

type Stage = Callable[[], object]


def stages() -> dict[str, tuple[Stage, int]]:
    """Each stage, and by how much to divide what it costs."""
    call, denied = _calling("answer"), _calling("danger_1")
    asked, answer, large = message(call), _answer(1024), _answer(_KILOBYTES * 1024)
    listing = _listing(_TOOLS)
    listed = message(listing)
    listener = _listener(listing)
    situation = Situation(snapshot=listener.snapshot)
    return {
        "scan a call": (partial(parse_message, call), 1),
        "judge a head": (partial(problem_in_fields, _HEAD), 1),
        "decide on a call": (partial(decide_from_client, asked, situation), 1),
        "decide on a denied call": (
            partial(decide_from_client, message(denied), situation),
            1,
        ),
        "forward a call and its answer of 1 KB": (
            partial(_forward, listener, call, answer),
            1,
        ),
        "answer a denied call": (partial(listener.judge_request, _HEAD, denied), 1),
        "frame an event of 1 KB": (lambda: EventParser().feed(_event(answer)), 1),
        "pass an event of 1 KB": (partial(_pass_event, listener, _event(answer)), 1),
        "scan an answer, each KB": (partial(parse_message, large), _KILOBYTES),
        "pass an answer, each KB": (partial(_forward, listener, call, large), _KILOBYTES),
        "pass an event, each KB": (partial(_pass_event, listener, _event(large)), _KILOBYTES),
        "rewrite a list, each tool": (partial(decide_from_upstream, listed, situation), _TOOLS),
        "scan and rewrite a list, each tool": (
            lambda: decide_from_upstream(message(listing), situation),
            _TOOLS,
        ),
        "take a snapshot, each tool": (
            lambda: take_snapshot([_page(listing)], parse_config(deny=[DENY]).choice),
            _TOOLS,
        ),
    }


def microseconds() -> dict[str, float]:
    """Return what each stage takes, at best."""
    return {name: _best(stage) * 1e6 / part for name, (stage, part) in stages().items()}


def instructions() -> dict[str, float]:
    """Return how many each stage executes, as valgrind counts them. Empty without valgrind."""
    if not shutil.which("valgrind"):
        return {}
    subprocess.run(_ourselves("", 0), env=_env(), check=True)  # so that all is compiled
    base = _counted("", 0)
    found = {}
    for name, (_, part) in stages().items():
        number = 200 if part == 1 else 5
        found[name] = (_counted(name, number) - base) / number / part
    return found


def _calling(tool: str) -> bytes:
    arguments = {"path": "src/main.py", "limit": 100}
    params = {"name": tool, "arguments": arguments}
    asked = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    return json.dumps(asked).encode()


def _answer(size: int) -> bytes:
    line = 'A line such as tools return it, with a "quote" and an end.\n'
    text = (line * (size // len(line) + 1))[:size]
    result = {"content": [{"type": "text", "text": text}]}
    return json.dumps({"jsonrpc": "2.0", "id": 1, "result": result}).encode()


def _event(data: bytes) -> bytes:
    return b"event: message\ndata: " + data + b"\n\n"


def _listing(number: int) -> bytes:
    tools = [definition(name) for name in tool_names(number)]
    return json.dumps({"jsonrpc": "2.0", "id": 1, "result": {"tools": tools}}).encode()


def _page(raw: bytes) -> Listing:
    message = parse_message(raw)
    assert isinstance(message, Response)
    found = parse_listing(message)
    assert found
    return found


def _listener(listing: bytes) -> Listener:
    fetched = Fetched(
        transport=Transport.STREAMABLE,
        revision="2025-11-25",
        endpoint="/mcp",
        server_name="bench",
        server_version="1",
        sessions=True,
        pages=(listing,),
    )
    config = parse_config(deny=[DENY])
    listener = open_listener(upstream="http://127.0.0.1:1", config=config, fetched=fetched)
    listener.sessions.open("bench-1", listener.policy.clock()).revision = fetched.revision
    return listener


def _forward(listener: Listener, call: bytes, answer: bytes) -> None:
    outcome = listener.judge_request(_HEAD, call)
    assert isinstance(outcome, Passed)
    listener.judge_answer(outcome.exchange, 200, "application/json", "", answer)


def _pass_event(listener: Listener, event: bytes) -> bytes:
    return EventStream(Conversation(listener.policy)).feed(event)


def _best(stage: Stage) -> float:
    number = 1
    while (took := _took(stage, number)) < _LEAST:
        number *= 2
    return min(took, *(_took(stage, number) for _ in range(4))) / number


def _took(stage: Stage, number: int) -> float:
    began = time.perf_counter()
    for _ in range(number):
        stage()
    return time.perf_counter() - began


def _counted(name: str, number: int) -> int:
    command = ["valgrind", "--tool=callgrind", f"--callgrind-out-file={os.devnull}"]
    done = subprocess.run(
        [*command, *_ourselves(name, number)], capture_output=True, text=True, env=_env()
    )
    return collected_in(done.stderr)


def collected_in(said: str) -> int:
    """Return how many instructions callgrind says that it has counted."""
    collected = re.search(r"Collected\s*:\s*(\d+)", said)
    if not collected:
        raise RuntimeError(said[-500:])
    return int(collected[1])


def _ourselves(name: str, number: int) -> list[str]:
    return [sys.executable, "-m", "tests.bench.stages", "--stage", name, str(number)]


def _env() -> dict[str, str]:
    env = {**os.environ, "PYTHONHASHSEED": "0"}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    return env


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--instructions", action="store_true")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--stage", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.stage:
        stage, _ = stages().get(args.stage[0], (None, 0))
        for _ in range(int(args.stage[1])):
            assert stage
            stage()
        return
    times, counts = microseconds(), instructions() if args.instructions else {}
    if args.json:
        print(json.dumps({"microseconds": times, "instructions": counts}))
        return
    for name, took in times.items():
        counted = f"{counts[name]:12,.0f} instructions" if counts else ""
        print(f"{name:40}{took:9.2f} µs{counted}")


if __name__ == "__main__":
    main()
