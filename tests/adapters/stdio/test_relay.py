"""How a session between a client and a real command goes and ends.

``cli/commands/test_relay*.py`` have more, with the whole program around it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from threading import Thread
from typing import Any

import pytest

from mcp_tool_filter.adapters.stdio.child import Child
from mcp_tool_filter.adapters.stdio.judge import LineJudge
from mcp_tool_filter.adapters.stdio.relay import Happened, Patience, Relay, RelayedLines
from mcp_tool_filter.policy.config import parse_config
from mcp_tool_filter.protocol.limits import Limits
from tests.make import asking, calling
from tests.stdio_client import upstream

LOST = b'"message":"Upstream connection lost"'


class Session:
    """What stands around a relay that runs."""

    def __init__(self, stdin: int, stdout: int) -> None:
        self.to_us = os.fdopen(stdin, "wb", buffering=0)
        self.from_us = os.fdopen(stdout, "rb")
        self.happened: SimpleQueue[Happened] = SimpleQueue()
        self.said: list[str] = []
        self.code: int | None = None

    def asks(self, line: bytes) -> bytes:
        self.to_us.write(line + b"\n")
        return self.from_us.readline()


@contextmanager
def relayed(*flags: str, **patience: float) -> Iterator[tuple[Session, Thread]]:
    (from_client, to_us), (from_us, to_client) = os.pipe(), os.pipe()
    session = Session(to_us, from_us)
    child = Child(upstream(*flags))
    judge = LineJudge(
        parse_config(deny=["^delete_"]), observe=lambda _: None, on_listed=lambda _: None
    )
    usual: dict[str, Any] = {"eof": 20.0, "term": 20.0, "passed_on": 20.0}
    lines = RelayedLines(
        child,
        judge,
        session.happened,
        say=session.said.append,
        limits=Limits(),
        stdout=to_client,
    )
    relay = Relay(lines, stdin=from_client, patience=Patience(**usual | patience))

    def run() -> None:
        session.code = relay.run()
        os.close(to_client)

    thread = Thread(target=run)
    thread.start()
    try:
        yield session, thread
    finally:
        session.to_us.close()
        thread.join()
        session.from_us.close()
        os.close(from_client)
        child.close_stdin()
        child.close_output()


def test_lines_pass_and_a_denied_call_is_answered() -> None:
    with relayed() as (session, running):
        assert b'"read_file"' in session.asks(calling("read_file"))
        assert b"Tool not found: delete_file" in session.asks(calling("delete_file"))
        session.to_us.close()
        running.join()
    assert (session.code, session.said) == (0, [])


@pytest.mark.parametrize(
    ("tool", "how"),
    [
        ("crash", "the command exited with code 3"),
        ("vanish", "the command was ended by signal 9 (exit code 137)"),
        ("close", "the command has closed its output"),
    ],
)
def test_a_request_to_a_lost_command_gets_an_error(tool: str, how: str) -> None:
    with relayed() as (session, running):
        assert LOST in session.asks(calling(tool))
        running.join()
    assert session.code == 1
    said = "Error: Lost connection to upstream MCP\nShutting down proxy"
    assert session.said == [f"{said}: {how}"]


def test_a_signal_is_passed_on_and_the_commands_status_is_ours() -> None:
    with relayed("--exit-on-term", "9") as (session, running):
        session.asks(asking("ping"))
        session.happened.put(signal.SIGTERM)
        running.join()
    assert (session.code, session.said) == (9, [])


def test_a_command_that_does_not_end_is_terminated_and_then_killed() -> None:
    flags = ("--ignore-eof", "--ignore-term")
    with relayed(*flags, eof=0.05, term=0.05) as (session, running):
        session.asks(asking("ping"))
        session.to_us.close()
        running.join()
    assert session.code == 128 + signal.SIGKILL
    assert session.said == ["Warning: The command did not end, so it was killed"]


def test_an_internal_error_ends_the_session_and_nothing_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def stumble(*_: object) -> None:
        raise ZeroDivisionError

    with relayed() as (session, running):
        session.asks(asking("ping"))
        monkeypatch.setattr(
            "mcp_tool_filter.adapters.stdio.relay.RelayedLines._pass_from_client", stumble
        )
        assert LOST in session.asks(calling("read_file"))
        running.join()
    assert session.code == 1
    assert session.said == ["Error: Internal error: ZeroDivisionError()\nShutting down proxy"]
