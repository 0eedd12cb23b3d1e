"""The pattern gate on its own, for people and for scripts."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from mcp_tool_filter.cli.launcher import main
from tests.stdio_client import filtered

type Ask = Callable[..., tuple[int, list[dict[str, object]]]]


@pytest.fixture
def ask(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Ask:
    """Run the command; return its exit status and what it answered."""

    def ask(*args: str, stdin: bytes = b"") -> tuple[int, list[dict[str, object]]]:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(stdin)))
        status = main(["check-pattern", *args])
        return status, [json.loads(line) for line in capsys.readouterr().out.splitlines()]

    return ask


def test_each_argument_is_one_pattern_and_one_unusable_pattern_is_enough_to_fail(ask: Ask) -> None:
    assert ask("a,b") == (0, [{"pattern": "a,b", "verdict": "ok"}])
    status, answers = ask("^(a+)+$", "*delete*", "ok")
    assert (status, [answer["verdict"] for answer in answers]) == (1, ["unsafe", "invalid", "ok"])
    assert answers[1]["why"] == "there is nothing to repeat"
    assert str(answers[1]["hint"]).endswith("delete")


@pytest.mark.parametrize(("line", "match"), [
    (b'{"pattern": "^a", "name": "abc"}', True), (b'{"pattern": "^a", "name": "cba"}', False),
    (rb'{"pattern": "^\\ud83d", "name": "\ud83d\ude00"}', True),
    (rb'{"pattern": "^.$", "name": "\ud83d"}', True),
    (rb'{"pattern": "\ud83d", "name": "\ude00"}', False),
    ('{"pattern": "^..$", "name": "😀"}'.encode(), True), (b'{"pattern": "", "name": ""}', True),
])  # fmt: skip
def test_a_line_with_a_name_is_answered_with_a_match(ask: Ask, line: bytes, match: bool) -> None:
    status, [answer] = ask(stdin=line)
    assert (status, answer["verdict"], answer["match"]) == (0, "ok", match)


def test_an_unusable_pattern_is_not_matched(ask: Ask) -> None:
    _, [answer] = ask(stdin=b'{"pattern": "(a+)+", "name": "a"}')
    assert "match" not in answer


@pytest.mark.parametrize("line", [
    b"delete", b'{"pattern": ', b'{"pattern": 3}', b'{"pattern": "a", "name": 3}', b"null",
    b'{"name": "a"}', b'["a"]', b"\xff", b"[" * 200_000, b"9" * 5_000,
])  # fmt: skip
def test_a_line_that_is_no_question_gets_an_error(ask: Ask, line: bytes) -> None:
    status, answers = ask(stdin=line + b'\n\n{"pattern": "a"}\n')
    assert status == 1
    assert [answer["verdict"] for answer in answers] == ["error", "ok"]


def test_every_line_is_answered_before_the_next_is_read(tmp_path: Path) -> None:
    """So that a script may keep it running."""
    with filtered("check-pattern", home=tmp_path) as process:
        for pattern, verdict in ((b"a", "ok"), (b"[", "invalid")):
            process.say(b'{"pattern": "%s"}' % pattern)
            assert process.hears()["verdict"] == verdict
        assert process.leaves() == 1
