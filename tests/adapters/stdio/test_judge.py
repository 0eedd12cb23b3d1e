"""What becomes of each line of a stdio session."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor

import pytest

from mcp_tool_filter.adapters.stdio.judge import LineJudge, show_stray_line
from mcp_tool_filter.policy.config import parse_config
from mcp_tool_filter.policy.effects import Deciding, Delay, waits
from mcp_tool_filter.policy.exchange import Situation
from mcp_tool_filter.policy.verdict import Drop, Forward, Reason, Verdict, Why
from mcp_tool_filter.protocol.limits import Limits
from mcp_tool_filter.protocol.lines import CutLine
from mcp_tool_filter.protocol.messages import Single
from tests.adapters.stdio.judging_lines import Judged
from tests.make import answering, asking, calling, error_in, text_of


def test_the_id_of_a_refused_request_is_kept_byte_for_byte() -> None:
    line = b'{"jsonrpc":"2.0","id":1.0e0,"method":"ping","x":{},"X":{},"method":"ping"}'
    assert b'"id":1.0e0' in text_of(Judged().client(line))


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
