"""What is counted, and what is remembered of refusals; never without end."""

from __future__ import annotations

from mcp_tool_filter.core.conversation.policy_in_force import Judged
from mcp_tool_filter.core.policy.situation import Client, Direction, RpcExchange
from mcp_tool_filter.core.policy.verdict import Drop, Forward, Reason, Reply, Rewrite, Verdict, Why
from mcp_tool_filter.core.process.sentences import describe, hider_of
from mcp_tool_filter.core.process.statistics import Statistics
from tests.make import snapshot

SNAPSHOT = snapshot("read", "rm_rf", "rm_all", deny="^rm")


def judged(verdict: Verdict, tool: str | None) -> Judged:
    exchange = RpcExchange("tools/call", "1", tool) if tool else None
    return Judged(Direction.FROM_CLIENT, None, verdict, Client(), SNAPSHOT, exchange)


def note(*verdicts: Verdict, tool: str | None = None) -> Statistics:
    counted = Statistics()
    for second, verdict in enumerate(verdicts):
        counted.note(judged(verdict, tool), float(second))
    return counted


def refused(tool: str, why: Why = Why.DENIED) -> Reply:
    return Reply(b"", Reason(why, (tool,)))


def test_each_list_saves_what_the_denied_tools_would_cost() -> None:
    counted = note(Reply(b"", Reason(Why.CACHED)), Rewrite(b"", Reason(Why.HIDDEN, ("rm_rf",))))
    assert counted.lists == 2
    assert counted.saved_bytes == 2 * SNAPSHOT.denied_bytes > 0


def test_an_invalid_answer_is_no_refusal() -> None:
    counted = note(Drop(Reason(Why.INVALID, detail="x")))
    assert (counted.invalid, counted.refused) == (1, 0)


def test_a_client_cannot_make_the_statistics_grow_without_end() -> None:
    counted = note(*[refused(f"tool {n}", Why.UNKNOWN) for n in range(3000)])
    assert counted.refused == 3000
    assert len(counted.refused_calls) <= 1000
    assert len(counted.refusals) <= 100


def test_a_verdict_is_described_in_words() -> None:
    two = Reason(Why.DENIED, ("rm_rf", "nothing"))
    unknown = "nothing (the upstream has no such tool)"
    for verdict, said in (
        (Forward(), "forwarded"),
        (Reply(b"", two), f"not found: rm_rf (denied by ^rm); not found: {unknown}"),
        (Reply(b"", Reason(Why.CACHED)),
         "hidden 2 tools, answered from the snapshot\n  ^rm: rm_rf, rm_all"),
        (Rewrite(b"", Reason(Why.HIDDEN, ("rm_rf", "new"))),
         "hidden 2 tools\n  ^rm: rm_rf\n  not in the snapshot: new"),
        (Rewrite(b"", Reason(Why.HIDDEN)), "tools as they were at start-up"),
        (Drop(Reason(Why.MALFORMED, detail="not JSON")), "refused (malformed): not JSON"),
    ):  # fmt: skip
        assert describe(verdict, SNAPSHOT) == said


def test_a_tool_that_no_allow_pattern_matches_is_described_as_such() -> None:
    assert hider_of("read", snapshot("read", "x", allow="^x")) == "matches no allow pattern"
