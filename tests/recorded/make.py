"""Makes the recordings: real upstreams and real clients, the filter between them, secrets out.

    python -m tests.recorded.make                    all of them
    python -m tests.recorded.make mcp2-stateless     one

The peers have to be installed: tests/end_to_end/peers/setup. What is recorded is what happened:
ids, times and ports differ each time, and the transcripts beside the recordings with them.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.end_to_end.filtering import mitmdump
from tests.end_to_end.peer import Step, play, upstream
from tests.make import asking, calling

RECORDINGS = Path(__file__).resolve().parents[2] / "recordings"
DENY = "^(delete|drop)_"

SECRET = "not-really-a-secret-0123456789"

LIST: Step = {"list": "tools"}
READ: Step = {"call": "read_file", "arguments": {"path": "/ä/b.txt"}}
DENIED: Step = {"call": "delete_file", "arguments": {"path": "/ä/b.txt"}}
UNKNOWN: Step = {"call": "no_such_tool"}
FAIL: Step = {"call": "fail"}
# The TypeScript SDKs lose progress that arrives in one chunk with the result.
PROGRESS: Step = {"call": "progress", "arguments": {"steps": 3, "ms": 40}, "progress": True}
SAMPLE: Step = {"call": "sample", "arguments": {"prompt": "say something"}}
ELICIT: Step = {"call": "elicit", "arguments": {"question": "really?"}}
TWO: Step = {"parallel": [{"call": "echo", "arguments": {"n": n}} for n in (1, 2)]}

type Play = Callable[[str], object]


@dataclass(frozen=True)
class Session:
    """Which client meets which server, and what they do."""

    server: str
    client: str
    steps: Sequence[Step] = ()
    server_flags: Sequence[str] = ()
    client_flags: Sequence[str] = ()
    options: dict[str, str] = field(default_factory=dict)
    play: Play | None = None
    """Where no SDK does it."""

    def run(self, url: str) -> None:
        if self.play:
            self.play(url)
            return
        document = play(self.client, url, self.steps, *self.client_flags)
        assert document.error is None, document.error


def speak_in_batches(url: str) -> None:
    """Batches came with 2025-03-26 and went with it; no SDK's client has ever sent one."""
    asyncio.run(_speak_in_batches(url))


async def _speak_in_batches(url: str) -> None:
    from tests.raw_client import MCP_HEADERS, post, raw_client

    port = int(url.rpartition(":")[2].partition("/")[0])
    about = '"clientInfo":{"name":"batches","version":"1"}'
    hello = f'{{"protocolVersion":"2025-03-26","capabilities":{{}},{about}}}'
    async with raw_client(port) as client:

        async def ask(message: bytes, session: bytes = b"") -> bytes:
            headers = MCP_HEADERS + (b"Mcp-Session-Id: " + session + b"\r\n" if session else b"")
            answer = await client.ask(post(message, headers=headers))
            found = answer.all("mcp-session-id")
            return found[0].encode() if found else b""

        session = await ask(asking("initialize", id="0", params=hello))
        await ask(b'{"jsonrpc":"2.0","method":"notifications/initialized"}', session)
        await ask(b"[%b,%b]" % (asking("tools/list"), _call(2, "read_file", "a")), session)
        for one, other in (
            (_call(3, "delete_file", "a"), _call(4, "read_file", "b")),
            (_call(5, "delete_file", "a"), calling("no_such_tool", id="6")),
        ):
            await ask(b"[%b,%b]" % (one, other), session)


def _call(id: int, name: str, path: str) -> bytes:
    return calling(name, id=str(id), arguments=f'{{"path":"{path}"}}')


SSE = ("--transport", "sse")
SESSIONS = {
    "mcp1-sse": Session(
        "mcp1", "mcp1", [LIST, READ, DENIED, TWO, PROGRESS, SAMPLE, FAIL], SSE, SSE
    ),
    "mcp1-streamable-sse": Session(
        "mcp1", "mcp1", [LIST, READ, DENIED, UNKNOWN, PROGRESS, SAMPLE, ELICIT, FAIL]
    ),
    "mcp1-streamable-json": Session("mcp1", "mcp1", [LIST, READ, DENIED, TWO], ["--json"]),
    "mcp1-paginated": Session(
        "mcp1", "mcp1", [LIST, {"list": "tools", "cursor": "5"}, DENIED],
        ["--json", "--page-size", "5"], options={"new_tools": "judge"},
    ),
    "ts1-batch": Session("ts1", "raw", play=speak_in_batches),
    "ts1-streamable-resumable": Session(
        "ts1", "ts1", [LIST, READ, {"call": "hang_up"}, DENIED], ["--resumable"]
    ),
    "mcp2-stateless": Session(
        "mcp2", "mcp2", [LIST, READ, DENIED, UNKNOWN, PROGRESS, ELICIT, FAIL],
        client_flags=["--header", f"Authorization: Bearer {SECRET}"],
    ),
    "ts2-stateless": Session(
        "ts2", "ts2", [LIST, READ, DENIED, PROGRESS, SAMPLE], client_flags=["--mode", "modern"]
    ),
    "ts1-errors": Session(
        "ts1", "ts1", [UNKNOWN, FAIL, {"read": "file:///nowhere"}, {"prompt": "no_such_prompt"}]
    ),
}  # fmt: skip


def make(name: str, target: Path) -> None:
    """Record one session."""
    from mcp_tool_filter.cli.launcher import main as launch
    from mcp_tool_filter.rooms.recordings.flow_dump import read_recording
    from mcp_tool_filter.rooms.recordings.replay import replay

    session = SESSIONS[name]
    with tempfile.TemporaryDirectory() as folder:
        raw = Path(folder) / "raw.flow"
        options = {"deny": DENY, "save_stream_file": str(raw), **session.options}
        with (
            upstream(session.server, *session.server_flags) as server,
            mitmdump(server.origin, **options) as between,
        ):
            session.run(between.url(server.path))
        launch(["scrub", str(raw), str(target)])
    transcript = replay(read_recording(target), deny=DENY, **session.options)
    target.with_suffix(".transcript.txt").write_text(transcript.render(), "utf-8")


def main(names: Sequence[str]) -> int:
    if unknown := [name for name in names if name not in SESSIONS]:
        sys.stderr.write(f"unknown: {', '.join(unknown)}; known: {', '.join(SESSIONS)}\n")
        return 2
    RECORDINGS.mkdir(exist_ok=True)
    for name in names or SESSIONS:
        make(name, RECORDINGS / f"{name}.flow")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
