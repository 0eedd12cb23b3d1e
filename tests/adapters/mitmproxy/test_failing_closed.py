"""A flow at which our code raises is refused, never sent on."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from mcp_tool_filter.adapters.mitmproxy import answers, requests
from mcp_tool_filter.adapters.mitmproxy.answers import Answers
from mcp_tool_filter.adapters.mitmproxy.requests import Requests
from mcp_tool_filter.errors import ProtocolError
from mcp_tool_filter.http.listener import Listener
from mcp_tool_filter.policy.effects import Deciding
from tests.adapters.mitmproxy.filtered import ANSWERING, call, filtered, stumble
from tests.mcp_upstream import RESULT, Respond
from tests.raw_client import post
from tests.raw_upstream import SSE_HEAD, Peer, RawRequest, chunk


def stumble_later(*_args: object, **_given: object) -> Deciding[None]:
    """A decision that waits, and then raises."""
    yield from ()
    raise ZeroDivisionError("a bug")


async def streaming(_request: RawRequest, peer: Peer) -> None:
    await peer.say(SSE_HEAD + chunk(b"data: " + RESULT + b"\n\n"))


class TestBugsOfOurs:
    """mitmproxy would log what a hook raises, and send the flow on."""

    @pytest.mark.parametrize("judge", [stumble, stumble_later])
    async def test_a_request_is_answered_and_not_sent_on(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, judge: Callable[..., object]
    ) -> None:
        monkeypatch.setattr(Listener, "judge_request", judge)

        async with filtered(tmp_path) as between:
            assert (await between.ask(call("read_file"))).status == 500
            assert between.upstream.asked == []

    async def test_the_head_of_a_request_is_answered_and_not_sent_on(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(requests, "problem_in_source", stumble)

        async with filtered(tmp_path) as between:
            assert (await between.ask(call("read_file"))).status == 500
            assert between.upstream.asked == []

    @pytest.mark.parametrize("judge", [stumble, stumble_later])
    async def test_an_answer_that_raises_is_not_shown(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, judge: Callable[..., object]
    ) -> None:
        monkeypatch.setattr(Listener, "judge_answer", judge)

        async with filtered(tmp_path) as between:
            error = json.loads((await between.ask(call("read_file"))).body)
            assert (error["id"], error["error"]["code"]) == (1, -32603)

    @pytest.mark.parametrize("respond", [ANSWERING, streaming], ids=["whole", "stream"])
    async def test_an_answer_whose_head_raises_is_not_shown(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        respond: Respond,
    ) -> None:
        monkeypatch.setattr(answers, "secure_answer_head", stumble)

        async with filtered(tmp_path, respond=respond) as between:
            error = json.loads((await between.ask(call("read_file"))).body)
            assert (error["id"], error["error"]["code"]) == (1, -32603)

    @pytest.mark.parametrize(
        ("judge", "refuse"),
        [
            ((Listener, "judge_request"), (Requests, "refuse")),
            ((requests, "problem_in_source"), (Requests, "_refuse_source")),
            ((answers, "secure_answer_head"), (Answers, "_refuse_head")),
            ((Listener, "judge_answer"), (Answers, "refuse_body")),
        ],
        ids=["request", "head of a request", "head of an answer", "answer"],
    )
    async def test_a_flow_whose_refusal_fails_is_cut(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        judge: tuple[object, str],
        refuse: tuple[object, str],
    ) -> None:
        monkeypatch.setattr(*judge, stumble)

        async with filtered(tmp_path) as between:
            monkeypatch.setattr(*refuse, stumble)
            await between.client.say(post(call("read_file")))
            assert b"result" not in await between.client.rest()
            if judge[0] is not answers and judge[1] != "judge_answer":
                assert between.upstream.asked == []


async def test_a_peers_mistake_is_logged_once_and_without_a_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_args: object) -> None:
        raise ProtocolError("a mistake")

    monkeypatch.setattr(Listener, "judge_request", refuse)
    async with filtered(tmp_path) as between:
        for _ in range(3):
            assert (await between.ask(call("read_file"))).status == 500
    [said] = [one for one in caplog.records if "a mistake" in one.getMessage()]
    assert (said.levelno, said.exc_info) == (logging.WARNING, None)


async def test_a_bug_is_logged_with_its_traceback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Listener, "judge_request", stumble)
    async with filtered(tmp_path) as between:
        await between.ask(call("read_file"))
    [said] = [one for one in caplog.records if "cannot judge" in one.getMessage()]
    assert said.levelno == logging.ERROR
    assert said.exc_info
    assert said.exc_info[0] is ZeroDivisionError
