"""What we remember: all of it is bounded, and nothing is needed to filter."""

from __future__ import annotations

from mcp_tool_filter.core.conversation.conversation import Exchanges, exchange_for
from mcp_tool_filter.core.conversation.memory import HeldRequests, Sessions
from mcp_tool_filter.core.messages.limits import Limits
from mcp_tool_filter.core.messages.messages import parse_message, singles
from mcp_tool_filter.core.policy.situation import Client
from tests.make import answering, asking, message, request
from tests.rows import each_row

ANSWER = answering("{}", id="1")


def waiting(*ids: str, most: int = 10) -> Exchanges:
    exchanges = Exchanges(most=most)
    for id in ids:
        begin(exchanges, asking("ping", id=id))
    return exchanges


def begin(exchanges: Exchanges, raw: bytes) -> None:
    """Remember what a client asked, as it is remembered when it has been sent on."""
    for one in singles(parse_message(raw)):
        if exchange := exchange_for(one, len(raw), 0.0):
            exchanges.open(exchange)


def method_of(exchanges: Exchanges, answer: bytes) -> str | None:
    exchange = exchanges.answered_by(message(answer))
    return exchange.method if exchange else None


def test_an_answer_to_the_number_1_does_not_answer_the_string_1() -> None:
    exchanges = waiting("1")
    assert method_of(exchanges, ANSWER) == "ping"
    assert method_of(exchanges, answering("{}", id='"1"')) is None


@each_row(("asked", "answered"), [
    ('"\\u0061"', '"a"'), ('"a"', '"\\u0061"'), ("1.0", "1"), ("100", "1e2"), ("-0.50", "-5E-1"),
    ("0", "-0"),
])  # fmt: skip
def test_ids_are_compared_by_value_and_kept_as_written(asked: str, answered: str) -> None:
    """Most servers read an id and write it anew."""
    exchanges = waiting(asked)
    assert method_of(exchanges, answering("{}", id=answered)) == "ping"
    assert exchanges.take([answered]) == [asked]
    assert len(exchanges) == 0


def test_the_number_and_the_bytes_of_remembered_ids_are_bounded() -> None:
    exchanges = Exchanges(most=1000, most_bytes=10_000)
    ids = [f'"{number:04}{"x" * 2994}"' for number in range(100)]
    for id in ids:
        begin(exchanges, asking("ping", id=id))
    assert exchanges.take_all() == ids[-3:]
    assert waiting("1", "2", "3", most=2).take_all() == ["2", "3"]


def test_a_reused_id_is_counted_once() -> None:
    exchanges = Exchanges(most_bytes=10)
    for _ in range(100):
        begin(exchanges, asking("ping", id="12345"))
    assert exchanges.take_all() == ["12345"]


def test_a_long_method_is_cut() -> None:
    exchanges = Exchanges()
    begin(exchanges, asking("x" * 1000))
    assert max(map(len, exchanges.methods)) < 100


def test_a_late_answer_ends_no_other_request_with_the_same_id() -> None:
    """While the decision on the answer waited, the client has used the id again."""
    exchanges = waiting("1")
    answered = exchanges.answered_by(message(ANSWER))
    begin(exchanges, asking("tools/list", id="1"))
    assert answered
    exchanges.close(answered)
    assert method_of(exchanges, ANSWER) == "tools/list"
    assert exchanges.lists == 1


def test_the_oldest_of_too_many_held_requests_can_no_longer_be_cancelled() -> None:
    held, client = HeldRequests(most=2), Client(claimed_session="one")
    for id in "123":
        exchange = exchange_for(message(asking("ping", id=id)), 1, 0.0)
        assert exchange is not None
        held.add(client, exchange)
    assert [held.cancel(client, id) for id in "123"] == [False, True, True]


def test_without_a_session_nothing_is_cancelled() -> None:
    """Behind one address, or on one machine, clients use the same small ids."""
    held, exchange = HeldRequests(), exchange_for(message(asking("ping", id="1")), 1, 0.0)
    assert exchange is not None
    client = Client(address="127.0.0.1", identity=b"a")
    held.add(client, exchange)
    assert not held.cancel(client, "1")
    assert not held.requests


def test_a_waiting_request_can_be_taken_only_once() -> None:
    exchanges = waiting("1", "2")
    assert exchanges.take(["1", "3", "1"]) == ["1"]
    assert exchanges.take(["1"]) == []


def test_the_least_recently_used_of_too_many_sessions_is_forgotten() -> None:
    sessions = Sessions(Limits(sessions=2))
    first = sessions.open("a", 0)
    sessions.open("b", 1)
    assert sessions.get("a", 2) is first
    sessions.open("c", 3)
    assert sessions.get("b", 4) is None
    assert len(sessions) == 2


def test_a_silent_session_is_forgotten_and_a_used_one_is_not() -> None:
    sessions = Sessions(Limits(idle=10))
    sessions.open("silent", 0)
    sessions.open("used", 0)
    assert sessions.get("used", 9) is not None
    sessions.open("new", 15)
    assert len(sessions) == 2
    assert sessions.get("silent", 15) is None
    assert sessions.get("used", 15) is not None


def test_a_closed_session_and_one_with_an_overlong_id_are_forgotten() -> None:
    """The upstream chooses the id; without it, lists come from the upstream."""
    sessions = Sessions()
    sessions.open("a", 0)
    sessions.open("x" * 60_000, 0)
    sessions.close("a")
    sessions.close("never there")
    assert (len(sessions), sessions.get("a", 0)) == (0, None)


@each_row("asked, is_taken", [
    (asking("ping", id="1"), False), (asking("tools/list", id="1"), True),
    (asking("tools/list", id="1.0"), True), (asking("ping", id="2"), False),
    (asking("ping", id='"1"'), False),
])  # fmt: skip
def test_an_id_is_taken_by_another_open_request_that_rules_see(
    asked: bytes, is_taken: bool
) -> None:
    """The same request once more is no other: its answer is the same."""
    exchanges = Exchanges()
    begun = [exchange_for(request(raw), len(raw), 0.0) for raw in (asking("ping", id="1"), asked)]
    before, now = begun
    assert before is not None
    assert now is not None
    assert not exchanges.is_taken(now)
    exchanges.open(before)
    assert not exchanges.is_taken(now), "rules do not see the one before"
    before.request, now.request = request(asking("ping", id="1")), request(asked)
    assert exchanges.is_taken(now) == is_taken
