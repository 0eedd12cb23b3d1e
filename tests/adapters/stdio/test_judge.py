"""What becomes of each line of a stdio session."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest

from mcp_tool_filter.adapters.stdio.judge import LineJudge
from mcp_tool_filter.conversation.judged import Judged as Told
from mcp_tool_filter.policy.chain import Situation
from mcp_tool_filter.policy.config import Config, parse_config
from mcp_tool_filter.policy.effects import Deciding, Delay, waits
from mcp_tool_filter.policy.snapshot import Snapshot
from mcp_tool_filter.policy.verdict import Drop, Forward, Reason, Reply, Rewrite, Verdict, Why
from mcp_tool_filter.protocol.lines import CutLine
from mcp_tool_filter.protocol.messages import Single
from tests.make import answering, asking, calling, definition, error_in, listing, text_of

FORWARDED = Forward()


class Judged:
    """A judge, and what it told those who watch."""

    def __init__(self, deny: Sequence[str] = (), config: Config | None = None) -> None:
        self.verdicts: list[Verdict] = []
        self.listed: list[Snapshot] = []
        self.judge = LineJudge(
            config or parse_config(deny=deny or None),
            observe=self._observe,
            on_listed=self.listed.append,
        )

    def _observe(self, told: Told) -> None:
        self.verdicts.append(told.verdict)

    def client(self, line: bytes | CutLine) -> Verdict:
        verdict = self.judge.from_client(line)
        assert not waits(verdict)
        return verdict

    def upstream(self, line: bytes | CutLine) -> Verdict:
        verdict = self.judge.from_upstream(line)
        assert not waits(verdict)
        return verdict

    def lists(self, *names: str, id: str = "1", more: str = "", params: str = "{}") -> Verdict:
        """Let the client ask for a list that the upstream answers."""
        assert self.client(asking("tools/list", id=id, params=params)) == FORWARDED
        return self.upstream(listing(*names, id=id, more=more))


def names_in(verdict: Verdict) -> list[str]:
    return [tool["name"] for tool in json.loads(text_of(verdict))["result"]["tools"]]


def test_a_denied_name_is_refused_before_any_list_was_seen() -> None:
    refused = Judged(["^rm"]).client(calling("rm_rf", id='"\\u0061"'))
    assert text_of(refused) == (
        b'{"jsonrpc":"2.0","id":"\\u0061","error":{"code":-32601,'
        b'"message":"Tool not found: rm_rf"}}'
    )


def test_any_other_name_is_forwarded_before_the_list_is_known() -> None:
    assert Judged(["^rm"]).client(calling("read_file")) == FORWARDED


def test_a_name_on_no_allow_pattern_is_refused_before_the_list_is_known() -> None:
    judged = Judged(config=parse_config(allow=["^read"]))
    assert isinstance(judged.client(calling("write_file")), Reply)
    assert judged.client(calling("read_file")) == FORWARDED


@pytest.mark.parametrize("name", ["x" * 257, "x" * 10_000, "\U0001f600" * 129])
def test_an_overlong_name_is_never_forwarded(name: str) -> None:
    assert isinstance(Judged().client(calling(name)), Reply)


def test_the_longest_name_is_forwarded() -> None:
    assert Judged().client(calling("x" * 256)) == FORWARDED


def test_an_unknown_tool_is_not_found_once_the_list_is_known() -> None:
    judged = Judged(["^rm"])
    assert names_in(judged.lists("read_file", "rm_rf")) == ["read_file"]
    assert judged.client(calling("read_file", id="2")) == FORWARDED
    unknown, denied = (judged.client(calling(name, id="3")) for name in ("nothing", "rm_rf"))
    assert error_in(unknown) == (-32601, "Tool not found: nothing")
    assert error_in(denied) == (-32601, "Tool not found: rm_rf")


def test_the_whole_list_is_told_once() -> None:
    judged = Judged(["^rm"])
    judged.lists("read_file", "rm_rf")
    judged.lists("read_file", "rm_rf", id="2")
    [snapshot] = judged.listed
    assert (list(snapshot.allowed), list(snapshot.denied)) == (["read_file"], ["rm_rf"])


def test_a_list_of_several_pages_is_known_after_the_last_one() -> None:
    judged = Judged(["^rm"])
    judged.lists("a", "rm_a", more=',"nextCursor":"2"')
    assert judged.client(calling("b", id="5")) == FORWARDED
    page = judged.lists("b", "rm_b", id="2", params='{"cursor":"2"}')
    assert names_in(page) == ["b"]
    assert isinstance(judged.client(calling("c", id="6")), Reply)
    assert judged.client(calling("a", id="7")) == FORWARDED
    assert [list(snapshot.allowed) for snapshot in judged.listed] == [["a", "b"]]


def test_a_page_that_does_not_follow_the_last_one_is_not_the_end_of_the_list() -> None:
    judged = Judged()
    judged.lists("z", params='{"cursor":"9"}')
    assert judged.client(calling("a")) == FORWARDED
    judged.lists("a", id="2", more=',"nextCursor":"2"')
    judged.lists("z", id="3", params='{"cursor":"9"}')
    assert judged.client(calling("b", id="4")) == FORWARDED
    assert not judged.listed


def test_a_definition_is_pinned_when_it_is_first_seen() -> None:
    judged = Judged()
    judged.lists("a", more=',"nextCursor":"2"')
    judged.client(asking("tools/list", id="2"))
    changed = judged.upstream(
        answering(f'{{"tools":[{definition("a", ',"title":"new"').decode()}]}}', id="2")
    )
    assert text_of(changed) == listing("a", id="2")


def test_a_tool_that_appears_later_is_not_exposed() -> None:
    judged = Judged()
    assert judged.lists("a") == FORWARDED
    assert names_in(judged.lists("a", "b", id="2")) == ["a"]
    assert isinstance(judged.client(calling("b", id="3")), Reply)


def test_all_bytes_around_a_list_are_kept() -> None:
    judged = Judged(["^b"])
    judged.client(asking("tools/list", id='"\\u0041"'))
    before = b'{ "result" : {"x":1.0e2,"tools": ['
    after = b'] ,"nextCursor":null}, "id":"\\u0041","jsonrpc":"2.0" }'
    tools = definition("a") + b" , " + definition("b")
    assert text_of(judged.upstream(before + tools + after)) == before + definition("a") + after


def test_the_definition_of_a_denied_tool_passes_nowhere_before_the_list_is_known() -> None:
    judged = Judged(["^rm"])
    hidden = f'{{"x":{definition("rm_rf").decode()}}}'
    judged.client(asking("vendor/method"))
    assert error_in(judged.upstream(answering(hidden)))[0] == -32603


def test_a_tool_that_carries_the_definition_of_a_denied_one_is_hidden() -> None:
    """Although the denied tool itself may stand on another page."""
    judged = Judged(["^rm"])
    judged.client(asking("tools/list"))
    carrier = definition("a", f',"x":{definition("rm_rf").decode()}')
    page = b'{"jsonrpc":"2.0","id":1,"result":{"tools":[%s,%s],"nextCursor":"2"}}'
    verdict = judged.upstream(page % (carrier, definition("b")))
    assert names_in(verdict) == ["b"]
    judged.lists("c", id="2", params='{"cursor":"2"}')
    judged.client(asking("tools/list", id="3"))
    again = judged.upstream(page.replace(b'"id":1', b'"id":3') % (carrier, definition("b")))
    assert names_in(again) == ["b"]
    [snapshot] = judged.listed
    assert snapshot.faults == ("the tool a carries the definition of another: not exposed",)


def test_a_denied_tool_that_the_list_lacked_is_shown_nowhere_later() -> None:
    judged = Judged(["^rm"])
    judged.lists("a")
    judged.client(asking("vendor/method", id="2"))
    shown = f'{{"x":{definition("rm_rf").decode()}}}'
    assert error_in(judged.upstream(answering(shown, id="2")))[0] == -32603


def test_a_list_that_nobody_asked_for_is_filtered_by_the_patterns() -> None:
    assert names_in(Judged(["^rm"]).upstream(listing("a", "rm_rf", id="77"))) == ["a"]


AMBIGUOUS = [
    b'{"jsonrpc":"2.0","id":1,"method":"tools/call","method":"ping"}',
    b'{"jsonrpc":"2.0","id":1,"method":"tools/call","Method":"ping"}',
    b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"a","name":"b"}}',
    b'{"jsonrpc":"2.0","id":1,"method":"ping"}\r{"jsonrpc":"2.0","id":2,"method":"ping"}',
    b'{"jsonrpc":"2.0","id":1,\r"method":"ping"}',
    b'{"jsonrpc":"2.0","id":1,"method":"ping"}{"jsonrpc":"2.0","id":2,"method":"ping"}',
    b'{"jsonrpc":"2.0","id":1,"method":"Tools.Call","params":{"name":"a"}}',
    b'{"jsonrpc":"2.0","id":1,"method":"ping","x":NaN}',
    b'\xef\xbb\xbf{"jsonrpc":"2.0","id":1,"method":"ping"}',
    b'{"jsonrpc":"2.0","id":1,"method":"\xff"}',
    b"{}",
    b"[]",
    b"42",
    b"hello",
]


@pytest.mark.parametrize("line", AMBIGUOUS)
def test_an_ambiguous_line_from_the_client_is_refused(line: bytes) -> None:
    assert error_in(Judged().client(line))[0] == -32600


def test_the_id_of_a_refused_request_is_kept_byte_for_byte() -> None:
    line = b'{"jsonrpc":"2.0","id":1.0e0,"method":"ping","x":{},"X":{},"method":"ping"}'
    assert b'"id":1.0e0' in text_of(Judged().client(line))


def test_a_denied_notification_is_dropped() -> None:
    line = b'{"jsonrpc":"2.0","method":"tools/call","params":{"name":"rm_rf"}}'
    assert isinstance(Judged(["^rm"]).client(line), Drop)


def test_the_members_of_a_batch_are_judged_one_by_one() -> None:
    judged = Judged(["^rm"])
    batch = b"[" + calling("a", id="1") + b", " + calling("rm_rf", id="2") + b"]"
    verdict = judged.client(batch)
    assert isinstance(verdict, Rewrite)
    assert verdict.text == b"[" + calling("a", id="1") + b"]"
    [owed] = verdict.owed
    assert json.loads(owed)["id"] == 2
    judged.upstream(b"[" + answering("{}", id="1") + b"]")
    assert judged.judge.lost_replies() == []


def test_a_line_that_is_too_large_is_refused_with_its_id() -> None:
    judged = Judged(config=parse_config(message_limit="1KB"))
    long = calling("a", id="7", arguments=json.dumps({"x": "y" * 2000, "id": 8}))
    assert error_in(judged.client(long))[0] == -32600
    assert json.loads(text_of(judged.client(long)))["id"] == 7


def test_a_line_that_was_cut_is_refused_with_its_id() -> None:
    verdict = Judged().client(CutLine(b'{"jsonrpc":"2.0","id":7,"meth', b"x" * 100, 30_000_000))
    assert json.loads(text_of(verdict))["id"] == 7


def test_too_deep_a_line_is_refused_with_its_id() -> None:
    deep = calling("a", id="7", arguments='{"x":' + "[" * 130 + "]" * 130 + "}")
    verdict = Judged().client(deep)
    assert error_in(verdict)[0] == -32600
    assert json.loads(text_of(verdict))["id"] == 7


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","id":1,"result":{},"result":{}}',
        b'{"jsonrpc":"2.0","id":1,"result":{}} {}',
        b'{"jsonrpc":"2.0","id":1,\r"result":{}}',
        b'{"jsonrpc":"2.0","id":1,"result":{"a":' + b"[" * 130 + b"]" * 130 + b"}}",
        CutLine(b'{"jsonrpc":"2.0","id":1,"result":{"a":"xx', b"x" * 100, 30_000_000),
        CutLine(b'{"result":{"a":"xx', b'xxx"},"jsonrpc":"2.0","id":1}', 30_000_000),
        CutLine(b"x" * 4096, b"x" * 4096, 30_000_000),
    ],
    ids=repr,
)
def test_an_answer_that_must_not_pass_is_replaced_by_an_error(line: bytes | CutLine) -> None:
    judged = Judged()
    judged.client(asking("resources/list"))
    verdict = judged.upstream(line)
    assert error_in(verdict)[0] == -32603
    assert json.loads(text_of(verdict))["id"] == 1
    assert judged.judge.lost_replies() == []


@pytest.mark.parametrize("line", [b"Server listening", b'{"id":1,"event":"start"}', b"{'id': 1}"])
def test_a_line_of_a_log_is_dropped_and_harms_no_request(line: bytes) -> None:
    judged = Judged()
    judged.client(asking("resources/list"))
    assert isinstance(judged.upstream(line), Drop)
    assert judged.upstream(answering("{}")) == FORWARDED


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","method":"notifications/message","params":{"data":"\xe2\x80\xa8"}}',
        b'{"jsonrpc":"2.0","id":"q","method":"sampling/createMessage","params":{"tools":[{}]}}',
        b'{"jsonrpc":"2.0","id":"q","method":"roots/list"}',
        b'  {"jsonrpc" : "2.0", "id": 99, "error": {"code":-1,"message":"no"} } ',
        b'{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"Parse error"}}',
    ],
)
def test_what_else_the_upstream_says_is_forwarded(line: bytes) -> None:
    assert Judged(["."]).upstream(line) == FORWARDED


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","id":"q","result":{"roots":[]}}',
        b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}',
        b'{"jsonrpc":"2.0","id":1,"method":"prompts/get","params":{"name":"rm_rf"}}',
        b'{"jsonrpc":"2.0","id":1,"method":"vendor.acme/x","params":{"name":"rm","name":"b"}}',
    ],
)
def test_what_else_the_client_says_is_forwarded(line: bytes) -> None:
    assert Judged(["^rm"]).client(line) == FORWARDED


def test_everybody_who_waits_is_told_of_the_loss() -> None:
    judged = Judged()
    for id in ("1", '"a"', "2.50"):
        judged.client(asking("ping", id=id))
    judged.upstream(answering("{}", id="1"))
    replies = judged.judge.lost_replies()
    assert [b'"id":"a"' in replies[0], b'"id":2.50' in replies[1]] == [True, True]
    assert all(json.loads(reply)["error"]["code"] == -32000 for reply in replies)


def test_the_snapshot_answers_once_it_is_known_if_the_user_asks_for_that() -> None:
    judged = Judged(config=parse_config(deny=["^b"], tools_list="cache"))
    assert names_in(judged.lists("a", "b")) == ["a"]
    answered = judged.client(asking("tools/list", id="2"))
    assert isinstance(answered, Reply)
    assert json.loads(answered.text) == json.loads(listing("a", id="2"))


def test_an_error_of_ours_lets_nothing_through(monkeypatch: pytest.MonkeyPatch) -> None:
    judged = Judged()
    judged.client(asking("ping"))

    def stumble(*_: object) -> Verdict:
        raise RuntimeError("a bug")

    monkeypatch.setattr("mcp_tool_filter.conversation.from_client.decide_from_client", stumble)
    monkeypatch.setattr("mcp_tool_filter.conversation.from_upstream.decide_from_upstream", stumble)
    assert error_in(judged.client(asking("ping", id="2"))) == (-32603, "Internal error")
    assert error_in(judged.upstream(answering("{}")))[0] == -32603


def test_what_the_upstream_calls_itself_is_known() -> None:
    judged = Judged()
    judged.client(asking("initialize"))
    info = '{"protocolVersion":"2025-06-18","serverInfo":{"name":"files","version":"2"}}'
    judged.upstream(answering(info))
    assert (judged.judge.server.name, judged.judge.server.revision) == ("files 2", "2025-06-18")


def test_observers_hear_of_each_line_once_and_of_a_batch_with_its_members() -> None:
    told: list[Told] = []
    judge = LineJudge(parse_config(deny=["^rm"]), observe=told.append, on_listed=lambda _: None)
    judge.from_client(b"[" + calling("a", id="1") + b"," + calling("rm_rf", id="2") + b"]")
    judge.from_client(b"hello")
    judge.from_upstream(answering("{}", id="1"))
    judge.from_upstream(b"a line of a log")
    batch, unread, answer, stray = told
    assert [type(one.verdict) for one in batch.each] == [Forward, Reply]
    assert [type(one.verdict) for one in (unread, answer, stray)] == [Reply, Forward, Drop]
    assert answer.exchange is not None
    assert answer.exchange.tool == "a"


def test_a_line_that_waits_holds_no_other_back() -> None:
    """Also where another thread reads it: the lock is held only while something is decided."""

    class Slow:
        def decide(self, message: Single, situation: Situation) -> Deciding[Verdict]:
            came = yield Delay(1.0)
            assert came == "done"
            return Forward()

    judge = LineJudge(
        parse_config(), observe=lambda _: None, on_listed=lambda _: None, links=(Slow(),)
    )
    waiting = judge.from_client(asking("ping"))
    assert waits(waiting)
    assert next(waiting) == Delay(1.0)
    with ThreadPoolExecutor(1) as other:
        assert other.submit(judge.lost_replies).result(timeout=30) == []
    with pytest.raises(StopIteration) as made:
        waiting.send("done")
    assert made.value.value == Forward()
    assert len(judge.lost_replies()) == 1


def test_what_goes_wrong_while_a_line_waits_is_for_its_decision() -> None:
    class Careful:
        def decide(self, message: Single, situation: Situation) -> Deciding[Verdict]:
            try:
                yield Delay(1.0)
            except ValueError:
                return Drop(Reason(Why.MALFORMED))
            return Forward()

    judge = LineJudge(
        parse_config(), observe=lambda _: None, on_listed=lambda _: None, links=(Careful(),)
    )
    waiting = judge.from_client(asking("ping"))
    assert waits(waiting)
    next(waiting)
    with pytest.raises(StopIteration) as made:
        waiting.throw(ValueError())
    assert isinstance(made.value.value, Drop)


def test_what_is_removed_is_gone_and_what_is_new_stays_hidden_when_the_list_changes() -> None:
    judged = Judged()
    judged.lists("a", "b")
    judged.upstream(b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}')
    assert names_in(judged.lists("a", "c", id="2")) == ["a"]
    assert judged.client(calling("a", id="3")) == FORWARDED
    for name in ("b", "c"):
        assert isinstance(judged.client(calling(name, id="4")), Reply)


def test_new_tools_are_judged_if_the_user_asks_for_that() -> None:
    judged = Judged(config=parse_config(deny=["^rm"], new_tools="judge"))
    judged.lists("a")
    assert names_in(judged.lists("a", "rm_b", "c", id="2")) == ["a", "c"]
    assert judged.client(calling("c", id="3")) == FORWARDED
    assert isinstance(judged.client(calling("rm_b", id="4")), Reply)
    assert len(judged.listed) == 1
