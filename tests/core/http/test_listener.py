"""What a listener does with a client's request, and with the upstream's answer."""

from __future__ import annotations

import gzip
import json
import random
from base64 import b64encode
from dataclasses import replace
from typing import Any

import brotli
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mcp_tool_filter.core.conversation.conversation import Conversation
from mcp_tool_filter.core.errors import FetchFailed
from mcp_tool_filter.core.http.asked import Answered, Passed
from mcp_tool_filter.core.http.listener import Listener
from mcp_tool_filter.core.http.places import KnownPaths
from mcp_tool_filter.core.messages.limits import R2025_06_18, R2026_07_28
from mcp_tool_filter.core.policy.effects import CannotList, FetchTools, waits
from mcp_tool_filter.core.policy.verdict import Drop, Reply
from tests import make
from tests.core.conversation.asking_kinds import finished as after_pauses
from tests.core.http import listening
from tests.core.http.listening import (
    BOTH,
    answer,
    ask,
    asked,
    hear,
    listener,
    message_of,
    passed,
    say,
    send,
)
from tests.make import answering, asking, calling, definition, event, head, listing, text_of
from tests.rows import each_row


def test_a_denied_notification_is_dropped() -> None:
    raw = b'{"jsonrpc":"2.0","method":"tools/call","params":{"name":"rm"}}'
    assert ask(raw) == Answered(202)


@pytest.mark.parametrize("headers", [
    {"mcp_method": "tools/call"}, {"mcp_name": "rm"},
    {"mcp_method": "ping", "mcp_name": "rm"},
    {"mcp_method": "tools/call", "mcp_name": "=?base64?cm0=?="},
])  # fmt: skip
def test_headers_that_contradict_the_body_get_their_own_error_code(headers: dict[str, str]) -> None:
    assert message_of(ask(asking("ping"), None, **headers)) == (400, 1, -32020)


@pytest.mark.parametrize("raw", [b"", b"{}"])
def test_headers_without_a_message_are_refused(raw: bytes) -> None:
    assert message_of(ask(raw, mcp_method="tools/call", mcp_name="rm")) == (400, None, -32600)


def test_a_refusal_has_the_requests_id_if_it_is_certain() -> None:
    assert message_of(ask(asking("Tools/Call", id='"a"'))) == (400, "a", -32600)


@given(raw=st.sampled_from(listening.ATTACKS) | st.binary(max_size=60), at=st.integers(0, 200))
@settings(max_examples=150)
def test_any_bytes_are_forwarded_or_answered(raw: bytes, at: int) -> None:
    """Nothing is raised, and no call of the denied tool passes that was not damaged."""
    outcome = ask(raw[:at] + raw[at + 1 :])
    if isinstance(outcome, Passed) and raw in listening.ATTACKS and at >= len(raw):
        assert b"rm" not in (outcome.body or raw)


# Request bodies with a coding, too large, too deep, or where none belongs


def test_an_encoded_request_that_could_be_read_as_json_is_forwarded_decoded() -> None:
    """An upstream that does not undo codings would read another message."""
    text = b64encode(random.Random(1).randbytes(100_000)).decode()
    raw = calling("read", arguments=f'{{"x":"{text}"}}')
    coded = brotli.compress(raw)
    assert coded[:1] == b"["  # as of every stream of this size
    assert passed(ask(coded, content_encoding="br")).body == raw


def test_a_body_that_decodes_to_nothing_is_refused() -> None:
    """A gzip head has room for a message; a server that does not decode could read it."""
    assert message_of(ask(gzip.compress(b""), content_encoding="gzip"))[0] == 400


def test_a_too_large_request_gets_an_error_with_its_id_if_that_can_be_read() -> None:
    """A 4xx ends the session of some clients."""
    door = listener(message_limit="1KB")
    raw = calling("read", id='"a"', arguments='{"id":5,"x":"' + "x" * 12_000 + '"}')
    assert message_of(ask(raw, door)) == (200, "a", -32600)
    assert message_of(ask(b"x" * 2000, door)) == (413, None, -32600)
    bomb = gzip.compress(bytes(20_000_000))
    assert message_of(ask(bomb, door, content_encoding="gzip")) == (413, None, -32600)
    assert message_of(ask(b'{"id":1,"id":2' + b" " * 2000, door)) == (413, None, -32600)


def test_a_too_deep_request_gets_an_error_too() -> None:
    raw = calling("rm", id="7", arguments="[" * 200 + "]" * 200)
    assert message_of(ask(raw)) == (200, 7, -32600)
    assert message_of(ask(b"[" * 1_000_000)) == (413, None, -32600)


def test_a_head_or_a_batch_that_is_too_long_is_answered_clearly() -> None:
    batch = b"[" + b",".join(calling("read", id=str(id)) for id in range(1001)) + b"]"
    for outcome, status, why in (
        (ask(asking("ping"), x="y" * 33_000), 431, "a header longer than 32768 bytes"),
        (ask(batch), 413, "more than 1000 messages in one batch"),
    ):
        assert message_of(outcome) == (status, None, -32600)
        assert isinstance(outcome, Answered)
        assert json.loads(outcome.body)["error"]["message"] == f"Request too large: {why}"


def test_json_that_is_no_message_may_have_any_number_of_elements() -> None:
    telemetry = b"[" + b",".join([b'{"event":"x"}'] * 30_000) + b"]"
    head_elsewhere = head("POST", "/events", content_type="application/json")
    assert isinstance(send(listener(), head_elsewhere, telemetry), Passed)
    wide = b"{" + b",".join(b'"%d":0' % number for number in range(30_000)) + b"}"
    assert isinstance(send(listener(), head_elsewhere, wide), Passed)


# A conversation: both sides are judged, message by message


def test_unreadable_messages_on_a_socket_are_answered_or_dropped(door: Listener) -> None:
    socket = Conversation(door.policy)
    assert isinstance(say(socket, b"\xff", True), Reply)
    assert isinstance(say(socket, b"\xff", False), Drop)
    say(socket, asking("ping", id="7"), True)
    verdict = say(socket, b'{"jsonrpc":"2.0","id":7,"result":{},"x', False)
    assert json.loads(text_of(verdict))["id"] == 7


# What a listener does with the upstream's answer


@each_row("to", [asking("tools/list"), asking("ping"), asking("initialize", id="9")])
@each_row("status", [200, 202, 400, 404, 500])
def test_a_list_is_filtered_in_the_answer_to_any_request(to: bytes, status: int) -> None:
    outcome = hear(listing("read", "rm"), to, status=status)
    assert outcome == Answered(status, listing("read"))


@each_row("is_gone", [False, True])
@each_row(("text", "is_shown"), [
    (f"callback({listening.RM})", False),
    (f"<pre>{listening.RM.replace('"', '&quot;')}</pre>", False),
    ("- name: rm\n  inputSchema:\n    type: object\n", False),
    ("<h1>rm</h1>", True), ("rm: removes a file", True),
])  # fmt: skip
def test_text_never_shows_a_denied_tool(text: str, *, is_shown: bool, is_gone: bool) -> None:
    door = listener()
    if is_gone:
        door.policy.kinds.note_change_for_all()
        hear(listing("read"), asking("tools/list"), door)
        assert not door.snapshot.denied
    outcome = send(door, head("GET", "/any"), b"")
    shown = answer(door, outcome, text.encode(), kind="text/plain")
    assert (shown is None) is is_shown


def test_a_body_that_some_clients_read_as_a_stream_is_not_shown(door: Listener) -> None:
    """The TypeScript SDK looks for the words anywhere in the content type."""
    outcome = send(door, head("GET", "/mcp"), b"")
    judged = answer(door, outcome, b"data: hidden\n\n", kind="text/plain; x=text/event-stream")
    assert message_of(judged) == (502, None, -32603)


def test_an_encoded_answer_is_forwarded_decoded() -> None:
    """The client did not ask us for it, and may not undo it."""
    page, list_ = gzip.compress(b"<html></html>"), gzip.compress(listing("read", "rm"))
    shown = Answered(404, b"<html></html>", content_type="text/html")
    assert hear(page, status=404, kind="text/html", coding="gzip") == shown
    assert hear(list_, coding="gzip") == Answered(200, listing("read"))


def test_a_too_large_answer_becomes_an_error() -> None:
    judged = hear(answering('"' + "x" * 12_000 + '"'), door=listener(message_limit="1KB"))
    assert message_of(judged) == (200, 1, -32603)


def test_the_answers_of_removed_batch_members_are_added(door: Listener) -> None:
    outcome = ask(b"[" + asking("ping", id="1") + b"," + calling("rm", id="2") + b"]", door)
    assert passed(outcome).body == b"[" + asking("ping", id="1") + b"]"
    judged = answer(door, outcome, b"[ " + answering("{}") + b" ]")
    assert isinstance(judged, Answered)
    assert [answer["id"] for answer in json.loads(judged.body)] == [1, 2]


@pytest.mark.parametrize(
    ("status", "raw"), [(202, b""), (200, answering("{}")), (200, b"[]"), (200, b"x"), (502, b"")]
)
def test_a_batch_gets_its_missing_answers(door: Listener, status: int, raw: bytes) -> None:
    notification = b'{"jsonrpc":"2.0","method":"notifications/x"}'
    outcome = ask(b"[" + notification + b"," + calling("rm", id="2") + b"]", door)
    judged = answer(door, outcome, raw, status)
    owed = judged is not None and b'"id":2,"error"' in judged.body
    assert owed or status == 502


@given(
    raw=st.binary(max_size=80) | st.sampled_from(listening.ATTACKS), status=st.integers(200, 599)
)
@settings(max_examples=150)
def test_no_answer_of_the_upstream_raises(raw: bytes, status: int) -> None:
    outcome = hear(raw, status=status)
    assert outcome is None or outcome.status in (200, status)


# When a listener answers tools/list from its snapshot, and when it asks the upstream


def test_a_list_is_answered_at_once_in_a_session_that_was_opened_here(door: Listener) -> None:
    listed = ask(asking("tools/list", id="5"), door, **listening.session_with(door))
    assert listed == Answered(200, listing("read", id="5"))


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_session_belongs_to_the_first_user_with_credentials(door: Listener, method: str) -> None:
    headers = listening.session_with(door)
    with_token = {**listening.BOTH, **headers, "authorization": "Bearer x"}
    send(door, head(method, **with_token), b"" if method == "GET" else asking("ping"))
    assert isinstance(ask(asking("tools/list"), door, **headers), Passed)


def test_a_stateless_list_is_answered_at_once() -> None:
    page = answering('{"resultType":"complete","tools":[' + listening.RM + '],"ttlMs":7}')
    door = listener(page, revision=R2026_07_28, sessions=False)
    modern = {"mcp_protocol_version": R2026_07_28, "mcp_method": "tools/list"}
    expected = answering('{"resultType":"complete","tools":[],"ttlMs":7}')
    assert ask(listening.MODERN, door, **modern) == Answered(200, expected)


def test_the_first_list_of_a_revision_gives_the_result_its_other_members() -> None:
    door = listener(revision=R2026_07_28, sessions=False)
    headers = {"mcp_protocol_version": "2025-11-25", "mcp_session_id": ""}
    first, more = ask(asking("tools/list"), door, **headers), ',"_meta":{"a":1}'
    judged = answer(door, first, listing("read", "rm", more=more))
    assert judged == Answered(200, listing("read", more=more))
    again = ask(asking("tools/list", id="2"), door, **headers)
    assert again == Answered(200, listing("read", id="2", more=more))


@pytest.mark.parametrize(
    "page", [b"{}", answering("{}"), answering('{"tools":{}}'), b"[1]", answering('{"Tools":[]}')]
)
def test_a_fetched_list_that_cannot_be_read_stops_the_start(page: bytes) -> None:
    with pytest.raises(FetchFailed):
        listener(page)


def test_a_handshake_on_a_stream_opens_a_session_too(door: Listener) -> None:
    hello = asked(listening.INITIALIZE, door)
    door.note_answer_head(hello, 200, "s1")
    door.open_stream(hello, "/mcp", None).feed(event(listening.INITIALIZED))
    headers = {"mcp_session_id": "s1"}
    assert isinstance(ask(asking("tools/list"), door, **headers), Answered)


# Patterns that are edited apply at once, also to what was asked or opened before


@pytest.mark.parametrize("target", ["/mcp", "/sse"])
def test_an_open_stream_follows_the_patterns_in_force(door: Listener, target: str) -> None:
    """A stream may stay open for days; a tool that is denied meanwhile must not show on it."""
    waiting = asked(asking("tools/list"), door)
    stream = door.open_stream(waiting, target, None)
    assert stream.feed(event(listing("read", "rm"))) == event(listing("read"))
    listening.change_patterns(door, "^read")
    assert stream.feed(event(listing("read", "rm"))) == event(listing("rm"))
    named = b'event: other\ndata: {"x":' + definition("read") + b"}\n\n"
    assert stream.feed(named) == b""


def test_an_open_socket_and_a_waiting_request_follow_the_patterns_in_force(door: Listener) -> None:
    socket, waiting = Conversation(door.policy), asked(asking("tools/list"), door)
    say(socket, asking("tools/list"), True)
    listening.change_patterns(door, "^read")
    assert isinstance(say(socket, calling("read"), True), Reply)
    assert text_of(say(socket, listing("read", "rm"), False)) == listing("rm")
    judged = answer(door, waiting, listing("read", "rm"))
    assert judged == Answered(200, listing("rm"))


# Who is the same asker: what is pinned for one request judges the next one of the same asker


OTHER = "2025-11-25"  # not the revision of our own fetch
PINNED, NEW = listing("mine"), listing("mine", "new")
CHANGED = make.listing_of(definition("mine", ',"title":"x"'), definition("new"))
ANN = {"authorization": "Bearer ann"}


def listed(door: Listener, raw: bytes, params: str = "{}", **headers: str) -> bytes:
    """Ask for the list with these headers; return what the client gets."""
    return heard(door, ask(asking("tools/list", params=params), door, **stateless(headers)), raw)


def heard(door: Listener, outcome: Passed | Answered, raw: bytes) -> bytes:
    """Let the upstream answer a request; return what the client gets."""
    answered = answer(door, outcome, raw)
    return raw if answered is None else answered.body


def stateless(headers: dict[str, str]) -> dict[str, str]:
    return {"mcp_protocol_version": OTHER, **headers}


def asks_for_a_list(door: Listener, raw: bytes, **headers: str) -> Any:
    """Return the decision if it waits for the asker's list, else None."""
    decision = door.judge_request(head(**{**listening.BOTH, **headers}), raw)
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


@pytest.mark.parametrize(("one", "other"), [
    ({"x_request_id": "1"}, {"x_request_id": "2"}),
    ({"traceparent": "1", "baggage": "sentry-a=1,b=2"}, {"baggage": "b=2,sentry-a=2"}),
    ({"x_forwarded_for": "10.0.0.1:80"}, {"x_forwarded_for": "10.0.0.1:81"}),
    ({**ANN, "idempotency_key": "1"}, {**ANN, "idempotency_key": "2"}),
    ({**ANN, "dpop": "1"}, {**ANN, "dpop": "2"}),
    ({"cookie": "id=ann; AWSALB=1"}, {"cookie": "AWSALB=2; id=ann"}),
    ({"authorization": "AWS4-HMAC-SHA256 Credential=ann, Signature=1"},
     {"authorization": "AWS4-HMAC-SHA256 Credential=ann, Signature=2"}),
    ({"authorization": 'Digest username="ann", nonce="1"'},
     {"authorization": 'Digest username="ann", nonce="2"'}),
])  # fmt: skip
def test_a_header_that_differs_per_request_makes_no_other_asker(
    door: Listener, one: dict[str, str], other: dict[str, str]
) -> None:
    """Else nothing would be pinned: each changed or new tool would pass."""
    assert listed(door, PINNED, **one) == PINNED
    assert listed(door, CHANGED, **other) == PINNED
    waiting = asks_for_a_list(door, calling("mine"), **stateless(other))
    assert waiting is None
    assert isinstance(ask(calling("new"), door, **stateless(other)), Answered)


def test_an_argument_that_a_header_repeats_makes_no_other_asker(door: Listener) -> None:
    assert listed(door, PINNED) == PINNED
    for city in ("Rome", "Oslo"):
        said = stateless({"mcp_param_city": city})
        assert asks_for_a_list(door, calling("mine"), **said) is None
        assert isinstance(ask(calling("new"), door, **said), Answered)


@pytest.mark.parametrize("other", [
    {"authorization": "Bearer bob"}, {"cookie": "id=bob"}, {"x_api_key": "bob"},
    {"x_tenant": "bob"}, {"x_forwarded_user": "bob"}, {"x_mcp_toolsets": "bob"},
    {"private_token": "bob"}, {"accept_language": "de"}, {"x_made_up": "bob"},
    {"baggage": "sentry-a=1,user=bob"}, {"x_forwarded_host": "bob"}, {"dn": "bob"},
    {"mcp_session_id": "unknown"},
    {"mcp_session_id": "x" * 2000},
])  # fmt: skip
def test_other_credentials_make_another_asker(door: Listener, other: dict[str, str]) -> None:
    assert listed(door, PINNED, **ANN) == PINNED
    assert listed(door, PINNED) == PINNED
    assert listed(door, NEW, **other) == NEW
    assert listed(door, PINNED, **ANN) == PINNED


@pytest.mark.parametrize("target", ["/mcp?api_key=bob", "/mcp?user=bob&nonce=1"])
def test_a_query_may_name_the_asker(door: Listener, target: str) -> None:

    def listed_at(target: str, raw: bytes) -> bytes:
        asks = head("POST", target, **listening.BOTH, mcp_protocol_version=OTHER)
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
@pytest.mark.parametrize(("pages", "shown"), [([listing("mine", "yours")], PINNED), ([], CHANGED)])
def test_a_list_asked_for_with_unusual_params_is_not_pinned(
    door: Listener, params: str, pages: list[bytes], shown: bytes
) -> None:
    """We ask for the whole list first, and may get none; this one may be a part of it."""
    waiting = asks_for_a_list(door, asking("tools/list", params=params), **stateless({}))
    assert heard(door, finished(waiting, *pages), CHANGED) == shown
    assert listed(door, listing("yours", "mine")) == listing("yours", "mine")


@pytest.mark.parametrize(("method", "target", "status", "is_known"), [
    ("POST", "/mcp", 404, False), ("POST", "/mcp", 400, True),
    ("POST", "/elsewhere", 404, True),
    ("GET", "/favicon.ico", 404, True),
    ("GET", "/mcp", 404, True), ("DELETE", "/mcp", 405, True), ("DELETE", "/mcp", 500, True),
    ("DELETE", "/mcp", 204, False), ("DELETE", "/mcp", 404, False),
    ("DELETE", "/elsewhere", 200, True),
])  # fmt: skip
def test_only_the_upstream_ends_a_session(
    door: Listener, method: str, target: str, status: int, is_known: bool
) -> None:
    headers = listening.session_with(door)
    raw = asking("ping") if method == "POST" else b""
    outcome = send(door, head(method, target, **{**listening.BOTH, **headers}), raw)
    door.note_answer_head(passed(outcome).exchange, status, None)
    assert (door.sessions.get("s1", 0.0) is not None) is is_known


@pytest.mark.parametrize("revision", [{}, {"mcp_protocol_version": R2025_06_18}])
def test_an_unknown_session_is_judged_by_its_list(door: Listener, revision: dict[str, str]) -> None:
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


@each_row("path", [
    "/.well-known/mcp/server-card.json", "/.well-known/mcp.json", "/mcp/server-card",
    "/.well-known//%6dcp.json;v=1", "/one/.Well-Known/mcp-catalog", "/server_card.json/?x=/y",
])  # fmt: skip
def test_a_server_card_is_not_found_and_one_warning_says_so(path: str) -> None:
    """It names the upstream's own URL, and would lead clients past the filter."""
    door, warned = listener(), list[str]()
    door.policy.tell_hidden = lambda faults, _judged: warned.extend(faults)
    for method in ("GET", "HEAD", "OPTIONS"):
        outcome = send(door, head(method, path), b"")
        assert isinstance(outcome, Answered)
        assert (outcome.status, len(set(warned))) == (404, 1)
    assert isinstance(send(replace(door, is_forward=True), head("GET", path), b""), Passed)


def test_other_paths_pass_also_an_endpoint_with_the_path_of_a_card() -> None:
    door = listener()
    door.policy.fetched = replace(door.policy.fetched, endpoint="/.well-known/mcp")
    for path in ("/.well-known/mcp", "/x/mcp?server-card", "/server-cards", "/.well-known/x/mcp"):
        assert isinstance(send(door, head("POST", path, **BOTH), asking("ping")), Passed)


class _LoginsEverywhere(KnownPaths):
    def has(self, _method: str, _target: str) -> bool:
        return True


@each_row("raw, passes", [
    (b"grant_type=client_credentials", True), (b'{"client_name":"x"}', True),
    (calling("read"), False), (b"[" + calling("read") + b"]", False),
])  # fmt: skip
def test_a_path_of_a_login_takes_no_message(raw: bytes, passes: bool) -> None:
    door = listener()
    door.logins = _LoginsEverywhere()
    door.policy.config = replace(door.policy.config, only_mcp=True)
    kind = "application/x-www-form-urlencoded" if b"=" in raw else listening.JSON
    outcome = send(door, head("POST", "/token", content_type=kind), raw)
    assert isinstance(outcome, Passed) == passes
    assert isinstance(ask(calling("read"), door), Passed)
