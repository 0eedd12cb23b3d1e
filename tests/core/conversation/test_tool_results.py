"""Whether a result takes the short way or the usual one: the client gets the same."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest

from mcp_tool_filter.cli.parsing import parse_config
from mcp_tool_filter.core.conversation import conversation as from_upstream
from mcp_tool_filter.core.conversation.conversation import Conversation
from mcp_tool_filter.core.conversation.memory import example
from mcp_tool_filter.core.conversation.policy_in_force import Judged, PolicyInForce
from mcp_tool_filter.core.errors import ProtocolError
from mcp_tool_filter.core.messages import large, scan
from mcp_tool_filter.core.messages import skim as long_values
from mcp_tool_filter.core.messages.messages import Place
from mcp_tool_filter.core.policy.verdict import Forward
from tests.attacks import answers
from tests.attacks.stage import DENIED
from tests.core.conversation.asking_kinds import finished
from tests.fuzz.seeds import seeds
from tests.make import asking, calling

LEAST = from_upstream._LEAST
FETCHED = example("read_file", DENIED)
CONFIG = parse_config(deny=["^wipe"])


def conversation(*asked: bytes) -> Conversation:
    opened = Conversation(PolicyInForce(config=CONFIG, fetched=FETCHED))
    for request in asked:
        opened.from_client(request)
    return opened


def outcome(raw: bytes) -> object:
    """Return all that can be told of what became of an answer to a call or a list."""
    opened = conversation(calling("read_file"), asking("tools/list", id="2"))
    try:
        judged = opened.from_upstream(raw)
    except ProtocolError as error:
        return str(error), opened.waiting
    judged = finished(judged)
    place = getattr(judged.message, "place", Place())
    where = place.text, place.start, place.end
    return judged.verdict, where, getattr(judged.message, "id", None), opened.waiting


@cache
def bodies() -> list[bytes]:
    """Return what to judge, without the few that are millions of bytes long."""
    return [one for one in dict.fromkeys(_bodies()) if len(one) < 2**20]


def _bodies() -> Iterator[bytes]:
    yield from (body for _, body in answers.messages())
    for attack in answers.ATTACKS:
        for said in attack.said:
            yield said.partition(b"\r\n\r\n")[2]
    yield from (seed[2:] for seed in seeds())


def test_both_paths_agree_on_every_attack(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [one.replace(b'"id":2', b'"id":1') for one in bodies()]
    monkeypatch.setattr(from_upstream, "_LEAST", 0)
    short = [outcome(one) for one in calls]
    monkeypatch.setattr(large, "_LONGEST_REST", -1)
    assert [outcome(one) for one in calls] == short
    assert len(calls) > 500


def test_each_attack_is_judged_alike_with_known_value_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_values, "_LONG", 0)
    monkeypatch.setattr(scan, "_LARGE", 0)
    known = [outcome(one) for one in bodies()]
    monkeypatch.setattr(scan, "_LARGE", 1 << 40)
    assert [outcome(one) for one in bodies()] == known


RESULT = b'{"jsonrpc":"2.0","id":%s,"result":{"content":[{"type":"text","text":"%s"}]}}'


def took_the_short_way(judged: object) -> bool:
    assert isinstance(judged, Judged)
    result = getattr(judged.message, "result", None)
    return result is not None and result.members is None


def test_only_known_answers_to_calls_take_the_fast_path() -> None:
    long = b"x" * LEAST
    for asked, id, is_short in (
        (calling("read_file"), b"1", True),
        (calling("read_file", id='"1"'), b"1", False),
        (asking("tools/list"), b"1", False),
        (asking("resources/read"), b"1", False),
        (calling("read_file"), b"2", False),
    ):
        opened = conversation(asked)
        judged = opened.from_upstream(RESULT % (id, long))
        assert took_the_short_way(judged) is is_short
        assert isinstance(judged, Judged)
        assert judged.verdict == Forward()


def test_the_fast_path_marks_the_request_as_answered() -> None:
    opened = conversation(calling("read_file"))
    judged = opened.from_upstream(RESULT % (b"1", b"x" * LEAST))
    assert took_the_short_way(judged)
    assert opened.waiting == []
    again = opened.from_upstream(RESULT % (b"1", b"x" * LEAST))
    assert not took_the_short_way(again)


def test_a_definition_beside_the_content_is_refused_at_any_length() -> None:
    hidden = b'"_meta":{"x":{"name":"%s","inputSchema":{}}},"content"' % DENIED.encode()
    raw = (RESULT % (b"1", b"x" * LEAST)).replace(b'"content"', hidden)
    with pytest.raises(ProtocolError):
        conversation(calling("read_file")).from_upstream(raw)
