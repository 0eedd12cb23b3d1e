"""What people read: verdicts, the log, and the report."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest

from mcp_tool_filter.cli.report import render_report
from mcp_tool_filter.core.conversation.policy_in_force import Judged
from mcp_tool_filter.core.policy.situation import Client, Direction, RpcExchange, Session
from mcp_tool_filter.core.policy.snapshot import Snapshot
from mcp_tool_filter.core.policy.taking import take_snapshot
from mcp_tool_filter.core.policy.verdict import Drop, Forward, Reason, Reply, Rewrite, Verdict, Why
from mcp_tool_filter.core.process.sentences import Introduction, Once
from mcp_tool_filter.core.process.verdict_log import VerdictLog
from tests.make import definition, listing, listing_of, snapshot, snapshot_of

# What people read about a message that rules have decided on
NO_TOOLS = take_snapshot([])


# A log in which one line stands a thousand times is not read
LOG = logging.getLogger(__name__)


def test_a_text_is_logged_once_with_its_values(caplog: pytest.LogCaptureFixture) -> None:
    once = Once()
    for name in ("a", "b", "a"):
        once.log(LOG, logging.WARNING, "tool %s is gone", name)
    once.log(LOG, logging.WARNING, "100 %")
    assert caplog.messages == ["tool a is gone", "tool b is gone", "100 %"]


# What the log says of verdicts


def judged(verdict: Verdict, client: Client | None = None) -> Judged:
    exchange = RpcExchange("tools/list", capabilities='{"roots":{}}')
    return Judged(Direction.FROM_UPSTREAM, None, verdict, client or Client(), NO_TOOLS, exchange)


def drifted(*sentences: str) -> Rewrite:
    return Rewrite(b"", Reason(Why.HIDDEN, drift=sentences))


@pytest.mark.parametrize(("verdict", "line"), [
    (Reply(b"", Reason(Why.DENIED, ("rm", "a\nb"))), r"Refused (denied): rm, a\nb"),
    (Reply(b"", Reason(Why.BLOCKED, ("rm",), rule="r")), "Refused (blocked by rule r): rm"),
    (Drop(Reason(Why.MALFORMED, detail="not JSON")), "Refused (malformed): not JSON"),
])  # fmt: skip
def test_a_refusal_is_logged_if_verbose(
    verdict: Verdict, line: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    VerdictLog().tell_of(judged(verdict))
    assert [(one.levelno, one.message) for one in caplog.records] == [(logging.INFO, line)]


@pytest.mark.parametrize("why", [Why.CACHED, Why.HIDDEN, Why.CHANGED, Why.STORED])
def test_ordinary_events_are_not_logged(why: Why, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    log = VerdictLog()
    log.tell_of(judged(Rewrite(b"", Reason(why))))
    log.tell_of(judged(Forward()))
    assert not caplog.messages


def test_an_upstreams_invalid_messages_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    log = VerdictLog()
    for detail in ("not JSON", "not JSON", "the same key twice"):
        log.tell_of(judged(Drop(Reason(Why.INVALID, detail=detail))))
    assert [one.partition(": ")[2] for one in caplog.messages] == ["not JSON", "the same key twice"]


def test_a_hidden_tool_is_named_once_for_each_kind_of_client() -> None:
    said: list[str] = []
    log = VerdictLog(said.append)
    old, new = (Client(said_revision=one) for one in ("2025-06-18", "2025-11-25"))
    for client in (old, new, old):
        log.tell_of(judged(drifted('tool "b" is new'), client))
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
    assert "and the capabilities roots and credentials" in caplog.text
    assert "s3cret" not in caplog.text


# What the user reads at start
WHO = Introduction(
    upstream="http://127.0.0.1:3000/mcp",
    server="files 1.0",
    transport="Streamable HTTP",
    revision="2025-06-18",
    listens_at="http://127.0.0.1:8080/mcp",
)


def test_the_report_names_the_upstream_hidden_tools_and_savings() -> None:
    saved = len(definition("rm_a")) * 2
    assert render_report(WHO, snapshot("read", "rm_a", "rm_b", deny="^rm")).splitlines() == [
        "MCP tool filter: http://127.0.0.1:8080/mcp -> http://127.0.0.1:3000/mcp",
        "  Upstream: files 1.0, Streamable HTTP, 2025-06-18",
        "  Tools: 3, of which 2 denied, 1 exposed",
        '    "^rm": rm_a, rm_b',
        f"  Saved: {saved} bytes of context, about {saved // 4} tokens per tools/list",
    ]


def test_a_revision_that_nobody_has_named_leaves_no_gap() -> None:
    said = render_report(replace(WHO, revision=""), snapshot("a"))
    assert "  Upstream: files 1.0, Streamable HTTP\n" in said


@pytest.mark.parametrize(("options", "said"), [
    ({"deny": "rm"}, 'no tool is left: the pattern "rm" matches every tool'),
    ({"deny": "a,b"}, "no tool is left"),
    ({"deny": "_b", "allow": "b"},
     "no tool is left: deny wins over allow; to keep a tool that deny hides, use --except"),
    ({"deny": "rm_a"}, None),
])  # fmt: skip
def test_a_filter_that_leaves_no_tool_gets_a_warning(
    options: dict[str, str], said: str | None
) -> None:
    report = render_report(WHO, snapshot("rm_a", "rm_b", **options)).splitlines()
    warnings = [line for line in report if line.startswith("Warning:")]
    assert warnings == ([f"Warning: {said}"] if said else [])


def test_no_other_pattern_is_blamed_if_allow_matches_nothing() -> None:
    *_, last = render_report(WHO, snapshot("a", "b", allow="x", deny="y")).splitlines()
    assert last == "Warning: no tool is left: no allow pattern matches one"


@pytest.mark.parametrize(("tools", "said"), [
    (snapshot("a", "b", allow="a"), "    not allowed: b\n"),
    (snapshot(*(f"rm{number}" for number in range(100)), deny="^rm"), "rm11 and 88 more"),
    (snapshot_of(listing_of(b"1")), "Warning: a tool that is not an object: not exposed"),
    (snapshot_of(listing("rm\\u001b[31m"), deny="^rm"), "rm\\x1b[31m"),  # for the terminal
])  # fmt: skip
def test_the_report_names_tools_that_are_not_exposed(tools: Snapshot, said: str) -> None:
    report = render_report(WHO, tools)
    assert said in report
    assert "\x1b" not in report


# What people see of a client and of an error
