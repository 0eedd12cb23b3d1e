"""Who is the same asker: what is pinned for one request judges the next one of the same asker."""

from __future__ import annotations

from typing import Any

import pytest

from mcp_tool_filter.http.exchange import Answered, Passed
from mcp_tool_filter.http.listener import Listener
from mcp_tool_filter.policy.effects import CannotList, FetchTools, waits
from mcp_tool_filter.protocol.limits import R2025_06_18, R2026_07_28
from tests.conversation.asking_kinds import finished as after_pauses
from tests.http.listening import BOTH, JSON, answer, ask, listener, send, session_with
from tests.make import answering, asking, calling, definition, head, listing

OTHER = "2025-11-25"  # not the revision of our own fetch
PINNED, NEW = listing("mine"), listing("mine", "new")
CHANGED = answering(
    f'{{"tools":[{definition("mine", ',"title":"x"').decode()},{definition("new").decode()}]}}'
)
ANN = {"authorization": "Bearer ann"}


def listed(door: Listener, raw: bytes, params: str = "{}", **headers: str) -> bytes:
    """Ask for the list with these headers; return what the client gets."""
    return heard(door, ask(asking("tools/list", params=params), door, **stateless(headers)), raw)


def heard(door: Listener, outcome: Passed | Answered, raw: bytes) -> bytes:
    """Let the upstream answer a request; return what the client gets."""
    assert isinstance(outcome, Passed)
    answered = answer(door, outcome.exchange, 200, JSON, "", raw)
    return raw if answered is None else answered.body


def stateless(headers: dict[str, str]) -> dict[str, str]:
    return {"mcp_protocol_version": OTHER, **headers}


def asks_for_a_list(door: Listener, raw: bytes, **headers: str) -> Any:
    """Return the decision if it waits for the asker's list, else None."""
    decision = door.judge_request(head(**{**BOTH, **headers}), raw)
    if not waits(decision):
        return None
    assert isinstance(next(decision), FetchTools)
    return decision


def finished(decision: Any, *pages: bytes) -> Passed | Answered:
    if pages:
        answered: Passed | Answered = after_pauses(decision, pages)
        return answered
    with pytest.raises(StopIteration) as made:
        decision.throw(CannotList("not now"))
    outcome: Passed | Answered = made.value.value
    return outcome


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"x_request_id": "1"}, {"x_request_id": "2"}),
        ({"x_made_up": "1"}, {"x_made_up": "2"}),
        ({"traceparent": "1", "baggage": "a=1"}, {"baggage": "a=2"}),
        ({"mcp_param_city": "Rome"}, {"mcp_param_city": "Oslo"}),
        ({"x_forwarded_for": "10.0.0.1"}, {"x_forwarded_for": "10.0.0.2"}),
        ({**ANN, "idempotency_key": "1"}, {**ANN, "idempotency_key": "2", "x_made_up": "1"}),
        ({**ANN, "dpop": "1"}, {**ANN, "dpop": "2"}),
        ({"cookie": "id=ann; AWSALB=1"}, {"cookie": "AWSALB=2; id=ann"}),
        (
            {"authorization": "AWS4-HMAC-SHA256 Credential=ann, Signature=1"},
            {"authorization": "AWS4-HMAC-SHA256 Credential=ann, Signature=2"},
        ),
        ({"authorization": 'Digest username="ann", nonce="1"'},
         {"authorization": 'Digest username="ann", nonce="2"'}),
    ],
)  # fmt: skip
def test_a_header_that_differs_per_request_makes_no_other_asker(
    door: Listener, one: dict[str, str], other: dict[str, str]
) -> None:
    """Else nothing would be pinned: each changed or new tool would pass."""
    assert listed(door, PINNED, **one) == PINNED
    assert listed(door, CHANGED, **other) == PINNED
    waiting = asks_for_a_list(door, calling("mine"), **stateless(other))
    assert waiting is None
    assert isinstance(ask(calling("new"), door, **stateless(other)), Answered)


@pytest.mark.parametrize(
    "other",
    [
        {"authorization": "Bearer bob"},
        {"cookie": "id=bob"},
        {"x_api_key": "bob"},
        {"x_tenant": "bob"},
        {"x_forwarded_user": "bob"},
        {"x_mcp_toolsets": "bob"},
        {"private_token": "bob"},
        {"accept_language": "de"},
        {"mcp_session_id": "unknown"},
        {"mcp_session_id": "x" * 2000},
    ],
)
def test_other_credentials_make_another_asker(door: Listener, other: dict[str, str]) -> None:
    assert listed(door, PINNED, **ANN) == PINNED
    assert listed(door, PINNED) == PINNED
    assert listed(door, NEW, **other) == NEW
    assert listed(door, PINNED, **ANN) == PINNED


@pytest.mark.parametrize("target", ["/mcp?api_key=bob", "/mcp?user=bob&nonce=1"])
def test_a_query_may_name_the_asker(door: Listener, target: str) -> None:

    def listed_at(target: str, raw: bytes) -> bytes:
        asks = head("POST", target, **BOTH, mcp_protocol_version=OTHER)
        return heard(door, send(door, asks, asking("tools/list")), raw)

    assert listed_at("/mcp", PINNED) == PINNED
    assert listed_at(target, NEW) == NEW
    assert listed_at(target.replace("nonce=1", "nonce=2"), listing("third")) == listing()


VARIANT = '{"_meta":{"io.modelcontextprotocol/server-variant":"small"}}'


def test_a_server_variant_is_part_of_the_asker(door: Listener) -> None:
    assert listed(door, PINNED) == PINNED
    assert listed(door, NEW, VARIANT) == NEW
    assert listed(door, NEW) == PINNED
    assert listed(door, listing("mine", "third"), VARIANT) == PINNED


def test_a_server_variant_counts_if_the_client_states_no_revision(door: Listener) -> None:

    def listed_for(params: str, raw: bytes) -> bytes:
        return heard(door, ask(asking("tools/list", params=params), door), raw)

    assert listed_for(VARIANT, NEW) == NEW
    assert listed_for("{}", NEW) == listing()  # the start has neither


@pytest.mark.parametrize("params", ['{"filter":"x"}', '{"_meta":{"com.example/part":1}}'])
def test_a_list_asked_for_with_unusual_params_is_not_pinned(door: Listener, params: str) -> None:
    """We ask for the whole list first; this one may be another, or a part of it."""
    waiting = asks_for_a_list(door, asking("tools/list", params=params), **stateless({}))
    outcome = finished(waiting, listing("mine", "yours"))
    assert heard(door, outcome, CHANGED) == PINNED
    assert listed(door, listing("yours", "mine")) == listing("yours", "mine")


def test_a_list_asked_for_with_unusual_params_is_not_pinned_if_we_get_no_list(
    door: Listener,
) -> None:
    unusual = asking("tools/list", params='{"filter":"x"}')
    outcome = finished(asks_for_a_list(door, unusual, **stateless({})))
    assert heard(door, outcome, CHANGED) == CHANGED
    assert listed(door, listing("mine", "yours")) == listing("mine", "yours")


@pytest.mark.parametrize(
    ("method", "target", "status", "is_known"),
    [
        ("POST", "/mcp", 404, False),
        ("POST", "/mcp", 400, True),
        ("POST", "/elsewhere", 404, True),
        ("GET", "/favicon.ico", 404, True),
        ("GET", "/mcp", 404, True),
        ("DELETE", "/mcp", 405, True),
        ("DELETE", "/mcp", 500, True),
        ("DELETE", "/mcp", 204, False),
        ("DELETE", "/mcp", 404, False),
        ("DELETE", "/elsewhere", 200, True),
    ],
)
def test_only_the_upstream_ends_a_session(
    door: Listener, method: str, target: str, status: int, is_known: bool
) -> None:
    headers = session_with(door)
    raw = asking("ping") if method == "POST" else b""
    outcome = send(door, head(method, target, **{**BOTH, **headers}), raw)
    assert isinstance(outcome, Passed)
    door.note_answer_head(outcome.exchange, status, None)
    assert (door.sessions.get("s1", 0.0) is not None) is is_known


@pytest.mark.parametrize("revision", [{}, {"mcp_protocol_version": R2025_06_18}])
def test_a_session_that_we_do_not_know_is_judged_by_its_own_list(
    door: Listener, revision: dict[str, str]
) -> None:
    """We were restarted: its client has other tools than our own fetch."""
    headers = {"mcp_session_id": "before", **revision}
    outcome = finished(asks_for_a_list(door, calling("mine"), **headers), listing("mine", "rm"))
    assert isinstance(outcome, Passed)
    assert isinstance(ask(calling("read"), door, **headers), Answered)
    assert listed(door, listing("mine", "rm"), **headers) == PINNED


def test_a_stateless_client_keeps_its_pins_whatever_its_requests_are_called() -> None:
    door = listener(revision=R2026_07_28, sessions=False)
    for number in range(3):
        headers = {"mcp_protocol_version": R2026_07_28, "x_request_id": f"{number}"}
        assert asks_for_a_list(door, calling("read"), **headers) is None
        assert isinstance(ask(calling("rm"), door, **headers), Answered)
