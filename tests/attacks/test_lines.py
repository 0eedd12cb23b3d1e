"""The attacks by clients and upstreams, and the honest exchanges, as lines over stdio."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mcp_tool_filter.cli.parsing import parse_config
from mcp_tool_filter.core.policy.verdict import Drop, Forward, Reply, Rewrite, Verdict
from mcp_tool_filter.rooms.stdio.judge import LineJudge
from mcp_tool_filter.rooms.stdio.lines import CutLine, LineParser
from tests.attacks.answers import messages
from tests.attacks.honest import calls, methods, results
from tests.attacks.hostile_requests import CALL, bodies
from tests.attacks.readings import shows
from tests.attacks.stage import ALLOWED_TOOL, DENIED, DENIED_TOOL, MARK
from tests.make import asking
from tests.mcp_upstream import tool_list
from tests.stdio_client import filtered

PING = asking("ping", id='"x"')
IS_LISTED = pytest.mark.parametrize("is_listed", [False, True], ids=["before", "after"])


class Session:
    """A judge whose client has seen the list, or has not."""

    def __init__(self, *, is_listed: bool) -> None:
        self._judge = LineJudge(
            parse_config(deny=["^wipe"]), observe=lambda _: None, on_listed=lambda _: None
        )
        if is_listed:
            self.to_upstream(asking("tools/list", id='"list"'))
            self.to_client(
                tool_list([ALLOWED_TOOL, DENIED_TOOL]).replace(b'"id":1', b'"id":"list"')
            )

    def to_upstream(self, said: bytes) -> bytes:
        """Return what the upstream reads of what a client says."""
        return b"".join(
            sent
            for line in lines_of(said)
            for sent, _ in carried_out(line, at_once(self._judge.from_client(line)))
        )

    def to_client(self, said: bytes) -> bytes:
        """Return what a client reads of what the upstream says."""
        return b"".join(
            sent
            for line in lines_of(said)
            for sent, _ in carried_out(line, at_once(self._judge.from_upstream(line)))
        )


def at_once(verdict: object) -> Verdict:
    assert isinstance(verdict, Forward | Rewrite | Reply | Drop)
    return verdict


def lines_of(said: bytes) -> list[bytes | CutLine]:
    parser = LineParser()
    return [*parser.feed(said), *parser.finish()]


def carried_out(line: bytes | CutLine, verdict: Verdict) -> Iterator[tuple[bytes, bool]]:
    match verdict:
        case Forward():
            assert isinstance(line, bytes)
            yield line + b"\n", True
        case Rewrite(text):
            yield text + b"\n", False


OTHER_NAME = "name in upper case letters"  # the pattern does not match it; no list has it
METHODS = ("tools/list", "resources/list", "tools/call", None)
ALLOWED_CALL = CALL.replace(DENIED.encode(), b"read_file").replace(b"7", b"1")


@IS_LISTED
def test_a_call_does_not_get_through(is_listed: bool) -> None:
    for label, body in bodies():
        session = Session(is_listed=is_listed)
        for said in (
            body + b"\n",
            body + b"\r\n",
            PING + b"\r" + body + b"\n",
            PING[:-1] + b",\r" + body + b"\r}\n",
            PING + b" " + body,
            b"[" + PING + b"," + body + b"]\n",
            b"\x00" + body + b"\n",
            b"\x1e" + body + b"\n",
        ):
            if is_listed or label != OTHER_NAME:
                assert not shows(session.to_upstream(said), DENIED), label


@IS_LISTED
@pytest.mark.parametrize("method", METHODS)
def test_a_definition_does_not_get_through(method: str | None, is_listed: bool) -> None:
    for label, body in messages():
        if "instead of" in label and method not in ("tools/list", None):
            continue  # mere names may be anything
        session = Session(is_listed=is_listed)
        if method:
            session.to_upstream(ALLOWED_CALL if method == "tools/call" else asking(method))
        for said in (body + b"\n", PING + b"\r" + body + b"\n", b"[" + body + b"]\n"):
            assert not shows(session.to_client(said), DENIED, MARK), label


@IS_LISTED
def test_honest_lines_of_a_client_pass(is_listed: bool) -> None:
    for label, body in [*calls(), *methods()]:
        line = body.strip(b"\r\n")
        if b"\n" not in line and b"\r" not in line:
            assert Session(is_listed=is_listed).to_upstream(line + b"\n") == line + b"\n", label


@IS_LISTED
def test_honest_lines_of_an_upstream_pass(is_listed: bool) -> None:
    for label, body in results():
        line = body.strip(b"\r\n")
        session = Session(is_listed=is_listed)
        session.to_upstream(ALLOWED_CALL)
        if b"\n" not in line and b"\r" not in line:
            assert session.to_client(line + b"\n") == line + b"\n", label


def test_no_attack_gets_through_a_real_relay(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    command = ("sh", "-c", f"cat > {journal}")
    with filtered("-q", "--deny", "^wipe", "--", *command, home=tmp_path) as client:
        for label, body in bodies():
            if len(body) < 100_000 and label != OTHER_NAME:
                client.say_bytes(body + b"\n" + PING + b"\r" + body + b"\r\n")
        client.say(PING)
        assert client.leaves() == 0
    reached = journal.read_bytes()
    assert not shows(reached, DENIED), reached
    assert reached.endswith(PING + b"\n")
