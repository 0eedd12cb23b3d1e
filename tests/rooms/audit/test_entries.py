"""Which entries become of which messages, and when."""

from __future__ import annotations

import json
from collections.abc import Callable
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcp_tool_filter.cli.parsing import parse_config
from mcp_tool_filter.core.conversation.conversation import Conversation
from mcp_tool_filter.core.conversation.memory import example
from mcp_tool_filter.core.conversation.policy_in_force import Judged, PolicyInForce
from mcp_tool_filter.core.messages.large import find_result_envelope, read_tool_result
from mcp_tool_filter.core.messages.limits import Limits
from mcp_tool_filter.core.messages.messages import Response, UnreadPlace, parse_message
from mcp_tool_filter.core.messages.sizes import NAME
from mcp_tool_filter.core.policy.effects import WriteLog, at_once, waits
from mcp_tool_filter.core.policy.situation import Client, Session
from mcp_tool_filter.core.policy.snapshot import shown
from mcp_tool_filter.core.policy.verdict import Reason, Rewrite, Why
from mcp_tool_filter.rooms.audit import entries as module
from mcp_tool_filter.rooms.audit import open_requests
from mcp_tool_filter.rooms.audit.contents import Arguments, Contents
from mcp_tool_filter.rooms.audit.entries import AuditLine, Auditor, Unanswered, Wanted
from mcp_tool_filter.rooms.audit.entry import Entry, LazyValue
from mcp_tool_filter.rooms.catalog.catalog import with_catalog
from mcp_tool_filter.rooms.page.timeline import Timeline
from tests.make import answering, asking, calling
from tests.rows import each_row

DENIED = {"deny_prompts": ["^secret"], "deny_resources": ["^a:h"], "deny_skills": ["^refunds"]}
USUAL = Wanted()


class Audited:
    """One conversation, and the entries that became of it."""

    def __init__(
        self, wanted: Wanted = USUAL, soon: module.Soon | None = None, shadow: str = "false"
    ) -> None:
        self.entries: list[Entry] = []
        self.shown = Timeline()
        self.auditor = Auditor(self._write, wanted, instance="one", soon=soon)
        config = with_catalog(parse_config({"deny": ["^rm"], **DENIED, "shadow": shadow}))
        policy = PolicyInForce(config=config, fetched=example("read", "rm"))
        policy.observe = self.auditor.note
        client = Client(session=Session(id="s-1", revision="2025-06-18"))
        self.conversation = Conversation(policy, client)

    def _write(self, entry: Entry) -> None:
        assert entry.keys() <= AuditLine.__annotations__.keys()  # the schema has each member
        self.entries.append(entry)
        self.shown.note(entry)

    def ask(self, *messages: bytes) -> None:
        for raw in messages:
            assert isinstance(self.conversation.from_client(raw), Judged)

    def hear(self, *messages: bytes) -> None:
        for raw in messages:
            judged = self.conversation.from_upstream(raw)
            # What answers no call may be a long list, which is read with pauses.
            assert isinstance(at_once(judged) if waits(judged) else judged, Judged)

    def said(self, *keys: str) -> list[object]:
        """Return what these members of each entry say; the value, if it is one member."""
        said = [tuple(one.get(key) for key in keys) for one in self.entries]
        return [one[0] for one in said] if len(keys) == 1 else [*said]


def call(id: int, name: str = "read", text: str = "x") -> bytes:
    return calling(name, id=str(id), arguments=json.dumps({"text": text}))


def answer(id: int, text: str = "y") -> bytes:
    content = json.dumps([{"type": "text", "text": text}], ensure_ascii=False)
    return answering(f'{{"content":{content}}}', id=str(id))


@pytest.fixture
def audited() -> Audited:
    return Audited()


@pytest.mark.parametrize("size", [1, 5000, 50_000])
def test_a_call_is_entered_with_its_answer(audited: Audited, size: int) -> None:
    asked = call(1, text="x" * size)
    audited.ask(asked)
    assert audited.entries == []
    audited.hear(answer(1))
    assert audited.said("tool", "answered", "bytes") == [("read", True, len(asked))]
    arguments = made(audited.entries[0]["arguments"])
    assert arguments["bytes"] == len(asked) - asked.index(b'{"name"') - 1


@each_row("filler", ["x", "é", "😀"])
@each_row("how", [Arguments.HASH, Arguments.FULL])
def test_a_secret_where_a_long_text_is_cut_is_not_shown(how: Arguments, filler: str) -> None:
    token = "ghp_0123456789abcdefABCD0123"
    for longest in (16 * 1024, 64 * 1024):
        text = f"{filler * (longest - 55)} {token} {'z ' * 50_000}"
        audited = Audited(Wanted(arguments=how, for_people=True, with_calls=True))
        audited.ask(call(1, text=text))
        audited.hear(answer(1, text))
        details = audited.shown.details(1)
        shown = [*details.values(), *audited.entries[0].values()]
        written = json.dumps(shown, default=made, ensure_ascii=False)
        assert "ghp" not in written
        assert "…" in details["result"]
        assert len(details["arguments"]) <= 16 * 1024 + 1


def made(part: object) -> Entry:
    shown = part.made() if isinstance(part, LazyValue) else part
    assert isinstance(shown, dict)
    return shown


@each_row("shadow", ["false", "true"])
@each_row(("method", "params", "kind", "pattern"), [
    ("tools/call", {"name": "rm"}, "tool", "^rm"),
    ("prompts/get", {"name": "secret"}, "prompt", "^secret"),
    ("completion/complete", {"ref": {"name": "secret"}}, "prompt", "^secret"),
    ("tasks/create", {"method": "prompts/get", "params": {"name": "secret"}}, "prompt", "^secret"),
    ("resources/read", {"uri": "a:hidden"}, "resource", "^a:h"),
    ("skills/get", {"name": "refunds"}, "skill", "^refunds"),
    ("resources/read", {"uri": "skill://refunds/x.md"}, "skill", "^refunds"),
])  # fmt: skip
def test_a_refused_request_is_entered_with_what_it_names(
    method: str, params: dict[str, object], kind: str, pattern: str, shadow: str
) -> None:
    audited = Audited(shadow=shadow)
    audited.ask(asking(method, params=json.dumps(params)))
    audited.hear(answer(1))
    assert audited.said("verdict", "why", "pattern")[0] == ("refused", "denied", pattern)
    assert ("shadow" in audited.entries[0]) is (shadow == "true")
    assert str(audited.entries[0][kind]) in json.dumps(params)


def test_each_call_of_a_batch_is_an_entry(audited: Audited) -> None:
    audited.ask(b"[%b,%b,%b]" % (call(1), call(2, text="x" * 5000), call(3, "rm")))
    assert audited.said("verdict") == ["refused"]
    audited.hear(b"[%b,%b]" % (answer(2), answer(1)))
    assert audited.said("id") == ["3", "2", "1"]


def test_calls_that_get_no_answer_are_entered_before_the_end(audited: Audited) -> None:
    """A process may run for months; a failed call must not wait for its end to be logged."""
    audited.ask(call(1), call(2, text="x" * 5000), call(3))
    ends = [None, Unanswered(status=500), Unanswered("client_left")]
    audited.auditor.give_up(lambda _origin, client, age: ends.pop(0) if client and age else None)
    told = [("2", False, 500, None), ("3", False, None, "client_left")]
    assert audited.said("id", "answered", "status", "answer_why") == told
    audited.hear(answer(1), answer(2))  # too late
    assert audited.said("id") == ["2", "3", "1"]


@pytest.mark.parametrize("id", ["1", '"one"', "99999999999999999999", "1e400"])
def test_a_call_whose_answer_cannot_be_read_gets_an_error(audited: Audited, id: str) -> None:
    """The invalid message had a line of its own, and the call waited for the end."""
    audited.ask(calling("read", id=id), call(2))
    audited.conversation.unreadable_from_upstream(b'{"id":%b,' % id.encode(), "not valid JSON")
    assert audited.said("id", "answered", "error_code") == [(id, True, -32603)]
    assert audited.said("answer_verdict", "answer_why") == [("changed", "invalid")]
    audited.conversation.unreadable_from_upstream(b"nonsense", "not valid JSON")
    assert audited.said("verdict") == ["forwarded", "dropped"]


@pytest.mark.parametrize("id", ["1", '"one"'])
def test_a_call_that_its_client_cancels_is_entered_at_once(audited: Audited, id: str) -> None:
    """An upstream does not answer it; over stdio nothing else says that it is over."""
    audited.ask(calling("read", id=id), call(2))
    for wanted in ("7", id):
        said = b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":%b}}'
        audited.ask(said % wanted.encode())
    assert audited.said("id", "answered", "answer_why") == [(id, False, "cancelled")]


def test_sessions_without_an_id_are_told_apart() -> None:
    """Over stdio and HTTP+SSE there are none."""
    seen: list[object] = []
    auditor = Auditor(lambda entry: seen.append(entry["session"]), Wanted(), instance="one")
    for session in (one := Session(), one, Session()):
        policy = PolicyInForce(config=parse_config(deny=["^rm"]), fetched=example("rm"))
        policy.observe = auditor.note
        Conversation(policy, Client(session=session)).from_client(call(1, "rm"))
    assert None not in seen
    assert seen[0] == seen[1] != seen[2]


def never(_make: Callable[[], None]) -> None:
    """Make no entries later."""


def test_entries_are_made_together_and_in_order() -> None:
    waiting: list[Callable[[], None]] = []
    audited = Audited(soon=waiting.append)
    for id in range(3):
        audited.ask(call(id), call(id, "rm"))
        audited.hear(answer(id))
    assert audited.entries == []
    (make,) = waiting
    make()
    both = [(str(id), verdict) for id in range(3) for verdict in ("refused", "forwarded")]
    assert audited.said("id", "verdict") == both
    audited.ask(call(3))
    assert len(waiting) == 2


def test_the_number_of_messages_without_entries_is_bounded() -> None:
    audited = Audited(soon=never)
    audited.ask(*(call(id, "rm") for id in range(1000)))
    assert len(audited.entries) > 900


@pytest.mark.parametrize("name", ["read", "rm"])
def test_a_long_message_does_not_wait_for_its_entry(name: str) -> None:
    """Many of them would take much memory."""
    audited = Audited(soon=never)
    audited.ask(call(1, "rm"), call(2, name, text="x" * 5000))
    audited.hear(answer(2, "y" * 5000))
    assert audited.said("id") == ["1", "2"]


def test_a_waiting_answer_counts_and_waiting_messages_are_entered_at_the_end() -> None:
    audited = Audited(soon=never)
    audited.ask(call(1))
    audited.hear(answer(1))
    audited.auditor.give_up(lambda _origin, _client, _age: Unanswered("left"))
    assert audited.said("id", "answered") == [("1", True)]
    audited.ask(call(2), call(3))
    audited.hear(answer(3))
    audited.auditor.close()
    assert audited.said("id", "answered") == [("1", True), ("3", True), ("2", False)]


def test_a_rules_log_line_is_entered_after_earlier_messages() -> None:
    audited = Audited(soon=never)
    audited.ask(call(1, "rm"))
    audited.auditor.note_log(WriteLog("warn", "look here", "r"))
    assert audited.said("event") == [None, "rule"]


def test_times_are_those_of_the_messages_not_of_their_entries() -> None:
    clock = iter(float(second) for second in range(100))
    waiting: list[Callable[[], None]] = []
    audited = Audited(soon=waiting.append)
    gathering = audited.auditor
    gathering._now = gathering._clock = clock.__next__
    audited.ask(call(1))
    audited.hear(answer(1))
    (make,) = waiting
    for _ in range(50):
        next(clock)
    make()
    assert audited.said("time", "upstream_ms") == [("1970-01-01T00:00:00.000Z", 2000.0)]


def test_the_verdict_is_the_observed_one(audited: Audited) -> None:
    """Later, a request may get the header of a trace."""
    judged = audited.conversation.from_client(call(1))
    assert isinstance(judged, Judged)
    judged.verdict = Rewrite(call(1), Reason(Why.CHANGED))
    audited.hear(answer(1))
    assert audited.said("verdict") == ["forwarded"]


@pytest.mark.parametrize("name", ["rm", "read"])
def test_no_long_name_is_kept(audited: Audited, name: str) -> None:
    """Clients choose names, and there is a cache that keeps what it is asked."""
    audited.conversation.client.session = None
    audited.conversation.client.said_revision = "2025" * 10_000
    with patch.object(module, "shown", side_effect=shown) as asked:
        audited.ask(call(1, name + "x" * 100_000))
        audited.auditor.close()
    assert str(audited.entries[0]["tool"]).endswith("…")
    assert max(len(one.args[0]) for one in asked.call_args_list) <= NAME


def test_the_number_of_held_requests_is_bounded(audited: Audited) -> None:
    with patch.object(open_requests, "MOST", 10):
        audited.ask(*map(call, range(30)))
    assert audited.said("id", "answered") == [(str(id), False) for id in range(20)]


@pytest.mark.parametrize("how", [Arguments.HASH, Arguments.FULL])
def test_only_the_entry_of_a_long_request_is_kept_until_its_answer(how: Arguments) -> None:
    """A client may send many of them to a tool that never answers."""
    audited = Audited(Wanted(arguments=how))
    audited.ask(call(1, text="x" * 200_000))
    [kept] = [request.kept for request in audited.auditor._open.all]
    assert isinstance(kept, dict)
    assert len(json.dumps(kept, default=made)) < 70_000
    assert isinstance(kept["arguments"], LazyValue)
    assert kept["arguments"]._make is None


@given(text=st.text(max_size=200), before=st.text(" \n\t", max_size=3))
def test_equal_results_have_equal_hashes_however_they_were_read(text: str, before: str) -> None:
    """A long result is not decoded; its hash is that of the same bytes."""
    raw = before.encode() + answer(1, text + "é" * 20_000) + before.encode()
    envelope = find_result_envelope(raw)
    assert envelope
    assert read_tool_result(raw, envelope, Limits())
    quick, usual = envelope.response, parse_message(raw)
    assert isinstance(usual, Response)
    assert isinstance(quick.place, UnreadPlace)
    contents = Contents(Arguments.HASH)
    shown = in_entry(contents, quick)
    assert shown == in_entry(contents, usual)
    assert shown["bytes"] == len(raw.strip()) - len(answering(""))


def in_entry(contents: Contents, response: Response) -> Entry:
    assert response.result
    return made(contents.shown(response.place, response.result))


def test_hashes_need_the_key() -> None:
    message = parse_message(answer(1))
    assert isinstance(message, Response)
    first, same, other = (Contents(Arguments.HASH, key * 32) for key in (b"a", b"a", b"b"))
    hashes = [in_entry(one, message)["hash"] for one in (first, same, other)]
    assert hashes[0] == hashes[1] != hashes[2]
    assert first.hash_of_name("s-1") != other.hash_of_name("s-1")
