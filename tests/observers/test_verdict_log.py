"""What the log says of verdicts."""

from __future__ import annotations

import logging

import pytest

from mcp_tool_filter.conversation.policy_in_force import Judged
from mcp_tool_filter.observers.sentences import VerdictLog
from mcp_tool_filter.policy.exchange import Client, Direction, Exchange, Session
from mcp_tool_filter.policy.snapshot import take_snapshot
from mcp_tool_filter.policy.verdict import Drop, Forward, Reason, Reply, Rewrite, Verdict, Why

NO_TOOLS = take_snapshot([], deny=[])


def judged(
    verdict: Verdict, client: Client | None = None, capabilities: str | None = None
) -> Judged:
    exchange = Exchange("tools/list", capabilities=capabilities)
    return Judged(Direction.FROM_UPSTREAM, None, verdict, client or Client(), NO_TOOLS, exchange)


def drifted(*sentences: str) -> Rewrite:
    return Rewrite(b"", Reason(Why.HIDDEN, drift=sentences))


@pytest.mark.parametrize(
    ("verdict", "line"),
    [
        (Reply(b"", Reason(Why.DENIED, ("rm", "a\nb"))), r"Refused (denied): rm, a\nb"),
        (Reply(b"", Reason(Why.BLOCKED, ("rm",), rule="r")), "Refused (blocked by rule r): rm"),
        (Drop(Reason(Why.MALFORMED, detail="not JSON")), "Refused (malformed): not JSON"),
    ],
)  # fmt: skip
def test_a_refusal_is_logged_if_verbose(
    verdict: Verdict, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    VerdictLog().tell_of(judged(verdict))
    assert caplog.messages == [line]
    assert caplog.records[0].levelno == logging.INFO


@pytest.mark.parametrize("why", [Why.CACHED, Why.HIDDEN, Why.CHANGED, Why.STORED])
def test_ordinary_events_are_not_logged(why: Why, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    log = VerdictLog()
    log.tell_of(judged(Rewrite(b"", Reason(why))))
    log.tell_of(judged(Forward()))
    assert not caplog.messages


def test_repeated_invalid_messages_of_an_upstream_are_reported_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = VerdictLog()
    for detail in ("not JSON", "not JSON", "the same key twice"):
        log.tell_of(judged(Drop(Reason(Why.INVALID, detail=detail))))
    assert [one.partition(": ")[2] for one in caplog.messages] == ["not JSON", "the same key twice"]


def test_a_hidden_tool_is_named_once_for_each_kind_of_client() -> None:
    said: list[str] = []
    log = VerdictLog(said.append)
    old, new = (Client(said_revision=one) for one in ("2025-06-18", "2025-11-25"))
    for client in (old, new, old):
        log.tell_of(judged(drifted('tool "b" is new'), client, capabilities='{"roots":{}}'))
    assert said == [
        f'Warning: tool "b" is new (for clients with MCP {revision} and the capabilities roots)'
        for revision in ("2025-06-18", "2025-11-25")
    ]


def test_warnings_of_the_report_are_not_repeated() -> None:
    said: list[str] = []
    log = VerdictLog(said.append)
    log.know(["a"])
    log.tell(drifted("a", "b"))
    assert said == ["Warning: b"]


def test_a_logged_kind_of_client_reveals_no_credentials(caplog: pytest.LogCaptureFixture) -> None:
    session = Session(id="s3cret", revision="2025-06-18", is_like_the_fetch=False)
    VerdictLog().tell_of(judged(drifted("a"), Client(session=session)))
    assert "and no capabilities and credentials" in caplog.text
    assert "s3cret" not in caplog.text
