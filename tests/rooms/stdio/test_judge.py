"""What becomes of each line of a stdio session, before and after its list of tools."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest

from mcp_tool_filter.cli.parsing import parse_config
from mcp_tool_filter.core.messages.limits import Limits
from mcp_tool_filter.core.messages.messages import Single
from mcp_tool_filter.core.policy.config import Config
from mcp_tool_filter.core.policy.effects import Deciding, Delay, waits
from mcp_tool_filter.core.policy.situation import Situation
from mcp_tool_filter.core.policy.snapshot import Snapshot
from mcp_tool_filter.core.policy.verdict import Drop, Forward, Reason, Reply, Verdict, Why
from mcp_tool_filter.rooms.stdio.judge import LineJudge, show_stray_line
from mcp_tool_filter.rooms.stdio.lines import CutLine
from tests.make import answering, asking, at_once, calling, definition, error_in, listing, text_of
from tests.rows import each_row

FORWARDED = Forward()


class Judged:
    """A judge, and the lists that it told of."""

    def __init__(self, deny: Sequence[str] = (), config: Config | None = None, **more: Any) -> None:
        self.listed: list[Snapshot] = []
        config, told = config or parse_config(deny=deny or None), self.listed.append
        self.judge = LineJudge(config, observe=lambda _: None, on_listed=told, **more)

    def client(self, line: bytes | CutLine) -> Verdict:
        return cast(Verdict, at_once(self.judge.from_client(line)))

    def upstream(self, line: bytes | CutLine) -> Verdict:
        return cast(Verdict, at_once(self.judge.from_upstream(line)))

    def lists(self, *names: str, id: str = "1", more: str = "", params: str = "{}") -> Verdict:
        """Let the client ask for a list that the upstream answers."""
        assert self.client(asking("tools/list", id=id, params=params)) == FORWARDED
        return self.upstream(listing(*names, id=id, more=more))


def names_in(verdict: Verdict) -> list[str]:
    return [tool["name"] for tool in json.loads(text_of(verdict))["result"]["tools"]]


def test_the_id_of_a_refused_request_is_kept_byte_for_byte() -> None:
    line = b'{"jsonrpc":"2.0","id":1.0e0,"method":"ping","x":{},"X":{},"method":"ping"}'
    assert b'"id":1.0e0' in text_of(Judged().client(line))


def test_a_too_deep_line_is_refused_with_its_id() -> None:
    verdict = Judged().client(calling("a", id="7", arguments='{"x":' + "[" * 130 + "]" * 130 + "}"))
    assert error_in(verdict)[0] == -32600
    assert json.loads(text_of(verdict))["id"] == 7


@each_row("line", [
    b'{"jsonrpc":"2.0","id":1,"result":{},"result":{}}',
    b'{"jsonrpc":"2.0","id":1,"result":{}} {}', b'{"jsonrpc":"2.0","id":1,\r"result":{}}',
    b'{"jsonrpc":"2.0","id":1,"result":{"a":' + b"[" * 130 + b"]" * 130 + b"}}",
    CutLine(b'{"jsonrpc":"2.0","id":1,"result":{"a":"xx', b"x" * 100, 30_000_000),
    CutLine(b'{"result":{"a":"xx', b'xxx"},"jsonrpc":"2.0","id":1}', 30_000_000),
    CutLine(b"x" * 4096, b"x" * 4096, 30_000_000),
])  # fmt: skip
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

    monkeypatch.setattr(
        "mcp_tool_filter.core.conversation.conversation.filter_from_client", stumble
    )
    monkeypatch.setattr(
        "mcp_tool_filter.core.conversation.conversation.filter_from_upstream", stumble
    )
    assert error_in(judged.client(asking("ping", id="2"))) == (-32603, "Internal error")
    assert error_in(judged.upstream(answering("{}")))[0] == -32603


def test_the_upstreams_name_is_known() -> None:
    judged = Judged()
    judged.client(asking("initialize"))
    info = '{"protocolVersion":"2025-06-18","serverInfo":{"name":"files","version":"2"}}'
    judged.upstream(answering(info))
    assert (judged.judge.server.name, judged.judge.server.revision) == ("files 2", "2025-06-18")


class Slow:
    """A link that waits, and drops what it waits for in vain."""

    def decide(self, message: Single, situation: Situation) -> Deciding[Verdict]:
        try:
            came = yield Delay(1.0)
        except ValueError:
            return Drop(Reason(Why.MALFORMED))
        assert came == "done"
        return Forward()


@pytest.mark.parametrize("fails", [False, True])
def test_a_waiting_line_holds_back_no_other(fails: bool) -> None:
    """Also where another thread reads it: the lock is held only while something is decided."""
    judge = Judged(links=(Slow(),)).judge
    waiting = judge.from_client(asking("ping"))
    assert waits(waiting)
    assert next(waiting) == Delay(1.0)
    with ThreadPoolExecutor(1) as other:
        assert other.submit(judge.lost_replies).result(timeout=30) == []
    with pytest.raises(StopIteration) as made:
        waiting.throw(ValueError()) if fails else waiting.send("done")
    assert isinstance(made.value.value, Drop if fails else Forward)
    assert len(judge.lost_replies()) == (0 if fails else 1)


def shown(line: bytes, limits: Limits | None = None) -> tuple[bool, list[str]]:
    said: list[str] = []
    return show_stray_line(line, limits or Limits(), said.append), said


@pytest.mark.parametrize(("line", "text"), [
    (b"Listening on 8000", "Listening on 8000"), (b"\x1b[31mred\a", "\\x1b[31mred\\x07"),
    (b"\xff\xfe", "\\xff\\xfe"), (b"x" * 3000, "x" * 2000 + "…"), (b"x" * 2000, "x" * 2000),
])  # fmt: skip
def test_text_is_marked_escaped_and_cut(line: bytes, text: str) -> None:
    assert shown(line) == (True, [f"[not JSON, from the command] {text}"])


@pytest.mark.parametrize("line", [b"{}", b"[1]", b"null", b'{"jsonrpc":"2.0","id":1,"result":{}}'])
def test_json_is_not_shown(line: bytes) -> None:
    assert shown(line) == shown(line, Limits(message=1)) == (False, [])


def test_a_broken_message_is_shown_differently_from_text() -> None:
    """A request may wait for it."""
    is_text, said = shown(b'{"jsonrpc":"2.0","id":1,"result":')
    assert not is_text
    assert len(said) == 1


# What a session knows of the upstream's tools, before and after its list


@pytest.mark.parametrize(("deny", "is_changed"), [(["^rm"], True), (["(?!)"], True), ([], False)])
def test_before_the_list_unknown_names_get_our_words(deny: list[str], is_changed: bool) -> None:
    """The upstream's words would tell it from a denied name, which never gets there."""
    judged = Judged(deny)
    assert judged.client(calling("hammer")) == FORWARDED
    unknown = b'{"jsonrpc":"2.0","id":1,"error":{"code":-32602,"message":"Unknown tool: hammer"}}'
    said = judged.upstream(unknown)
    assert is_changed or said == FORWARDED
    assert not is_changed or error_in(said) == (-32601, "Tool not found: hammer")
    assert judged.client(calling("hammer", id="2")) == FORWARDED
    assert judged.upstream(answering('{"content":[]}', id="2")) == FORWARDED


def test_a_name_that_no_allow_pattern_matches_is_refused_before_the_list_is_known() -> None:
    judged = Judged(config=parse_config(allow=["^read"]))
    assert isinstance(judged.client(calling("write_file")), Reply)
    assert judged.client(calling("read_file")) == FORWARDED


@pytest.mark.parametrize("name", ["x" * 257, "x" * 10_000, "\U0001f600" * 129])
def test_an_overlong_name_is_never_forwarded(name: str) -> None:
    assert isinstance(Judged().client(calling(name)), Reply)
    assert Judged().client(calling("x" * 256)) == FORWARDED


def test_a_list_of_several_pages_is_known_after_the_last_one() -> None:
    judged = Judged(["^rm"])
    judged.lists("a", "rm_a", more=',"nextCursor":"2"')
    assert judged.client(calling("b", id="5")) == FORWARDED
    assert names_in(judged.lists("b", "rm_b", id="2", params='{"cursor":"2"}')) == ["b"]
    assert isinstance(judged.client(calling("c", id="6")), Reply)
    assert judged.client(calling("a", id="7")) == FORWARDED
    assert [list(snapshot.allowed) for snapshot in judged.listed] == [["a", "b"]]


def test_a_tool_that_carries_the_definition_of_a_denied_one_is_hidden() -> None:
    """Although the denied tool itself may stand on another page."""
    judged = Judged(["^rm"])
    judged.client(asking("tools/list"))
    carrier = definition("a", f',"x":{definition("rm_rf").decode()}')
    page = b'{"jsonrpc":"2.0","id":1,"result":{"tools":[%s,%s],"nextCursor":"2"}}'
    assert names_in(judged.upstream(page % (carrier, definition("b")))) == ["b"]
    judged.lists("c", id="2", params='{"cursor":"2"}')
    judged.client(asking("tools/list", id="3"))
    again = judged.upstream(page.replace(b'"id":1', b'"id":3') % (carrier, definition("b")))
    assert names_in(again) == ["b"]
    [snapshot] = judged.listed
    assert snapshot.faults == ("the tool a has the definition of another tool: not exposed",)


def test_each_variant_of_the_server_has_a_list_of_its_own() -> None:
    small = '{"_meta":{"io.modelcontextprotocol/server-variant":"small"}}'
    call = '{"name":"%s","_meta":{"io.modelcontextprotocol/server-variant":"small"}}'
    judged = Judged(["^rm"])
    judged.lists("read_file", "rm_rf")
    assert names_in(judged.lists("tiny", "rm_it", id="2", params=small)) == ["tiny"]
    assert judged.lists("read_file", "rm_rf", id="3") == judged.lists("read_file", "rm_rf", id="3")
    assert judged.client(asking("tools/call", id="4", params=call % "tiny")) == FORWARDED
    for name, params in (("tiny", '{"name":"tiny"}'), ("read_file", call % "read_file")):
        refused = judged.client(asking("tools/call", id="5", params=params))
        assert error_in(refused) == (-32601, f"Tool not found: {name}")
