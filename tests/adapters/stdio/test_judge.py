"""What becomes of each line of a stdio session."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from mcp_tool_filter.adapters.stdio.judge import LineJudge, show_stray_line
from mcp_tool_filter.conversation.policy_in_force import Judged as Told
from mcp_tool_filter.policy.config import parse_config
from mcp_tool_filter.policy.effects import Deciding, Delay, waits
from mcp_tool_filter.policy.exchange import Situation
from mcp_tool_filter.policy.verdict import Drop, Forward, Reason, Reply, Verdict, Why
from mcp_tool_filter.protocol.limits import Limits
from mcp_tool_filter.protocol.lines import CutLine
from mcp_tool_filter.protocol.messages import Single
from tests.adapters.stdio.judging_lines import FORWARDED, Judged
from tests.make import answering, asking, calling, error_in, text_of

AMBIGUOUS = [
    b'{"jsonrpc":"2.0","id":1,"method":"tools/call","method":"ping"}',
    b'{"jsonrpc":"2.0","id":1,"method":"ping"}\r{"jsonrpc":"2.0","id":2,"method":"ping"}',
    b'{"jsonrpc":"2.0","id":1,\r"method":"ping"}',
    b'{"jsonrpc":"2.0","id":1,"method":"Tools.Call","params":{"name":"a"}}',
    b'\xef\xbb\xbf{"jsonrpc":"2.0","id":1,"method":"ping"}',
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


def test_a_line_that_is_too_large_is_refused_with_its_id() -> None:
    judged = Judged(config=parse_config(message_limit="1KB"))
    long = calling("a", id="7", arguments=json.dumps({"x": "y" * 2000, "id": 8}))
    assert error_in(judged.client(long))[0] == -32600
    assert json.loads(text_of(judged.client(long)))["id"] == 7


def test_a_line_that_was_cut_is_refused_with_its_id() -> None:
    verdict = Judged().client(CutLine(b'{"jsonrpc":"2.0","id":7,"meth', b"x" * 100, 30_000_000))
    assert json.loads(text_of(verdict))["id"] == 7


def test_a_too_deep_line_is_refused_with_its_id() -> None:
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
def test_a_log_line_is_dropped_and_disturbs_no_request(line: bytes) -> None:
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
def test_other_messages_of_the_upstream_are_forwarded(line: bytes) -> None:
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
def test_other_messages_of_the_client_are_forwarded(line: bytes) -> None:
    assert Judged(["^rm"]).client(line) == FORWARDED


def test_every_waiting_request_gets_an_error_at_a_loss() -> None:
    judged = Judged()
    for id in ("1", '"a"', "2.50"):
        judged.client(asking("ping", id=id))
    judged.upstream(answering("{}", id="1"))
    replies = judged.judge.lost_replies()
    assert [b'"id":"a"' in replies[0], b'"id":2.50' in replies[1]] == [True, True]
    assert all(json.loads(reply)["error"]["code"] == -32000 for reply in replies)


def test_nothing_passes_if_our_code_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    judged = Judged()
    judged.client(asking("ping"))

    def stumble(*_: object) -> Verdict:
        raise RuntimeError("a bug")

    monkeypatch.setattr("mcp_tool_filter.conversation.conversation.filter_from_client", stumble)
    monkeypatch.setattr("mcp_tool_filter.conversation.conversation.filter_from_upstream", stumble)
    assert error_in(judged.client(asking("ping", id="2"))) == (-32603, "Internal error")
    assert error_in(judged.upstream(answering("{}")))[0] == -32603


def test_the_upstreams_name_is_known() -> None:
    judged = Judged()
    judged.client(asking("initialize"))
    info = '{"protocolVersion":"2025-06-18","serverInfo":{"name":"files","version":"2"}}'
    judged.upstream(answering(info))
    assert (judged.judge.server.name, judged.judge.server.revision) == ("files 2", "2025-06-18")


def test_observers_get_each_line_once_and_a_batch_with_its_members() -> None:
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


def test_a_waiting_line_holds_back_no_other() -> None:
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


def test_an_effects_error_is_raised_in_the_waiting_decision() -> None:
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


def shown(line: bytes) -> tuple[bool, list[str]]:
    said: list[str] = []
    return show_stray_line(line, Limits(), said.append), said


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b"Listening on 8000", "Listening on 8000"),
        (b"\x1b[31mred\a", "\\x1b[31mred\\x07"),
        (b"\xff\xfe", "\\xff\\xfe"),
        (b"x" * 3000, "x" * 2000 + "…"),
    ],
)
def test_text_is_marked_escaped_and_cut(line: bytes, text: str) -> None:
    assert shown(line) == (True, [f"[not JSON, from the command] {text}"])


@pytest.mark.parametrize("line", [b"{}", b"[1]", b"null", b'{"jsonrpc":"2.0","id":1,"result":{}}'])
def test_json_is_not_shown(line: bytes) -> None:
    assert shown(line) == (False, [])


def test_text_that_is_too_long_is_not_reported_as_no_json() -> None:
    said: list[str] = []
    assert not show_stray_line(b'{"a":1}', Limits(message=5), said.append)
    assert said == []


def test_a_broken_message_is_shown_differently_from_text() -> None:
    """A request may wait for it."""
    is_text, said = shown(b'{"jsonrpc":"2.0","id":1,"result":')
    assert not is_text
    assert len(said) == 1
