"""What we stumble over is refused, never sent on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mcp_tool_filter.adapters.mitmproxy.requests import Requests
from mcp_tool_filter.http.listener import Listener
from tests.adapters.mitmproxy.filtered import (
    call,
    filtered,
    stumble,
)
from tests.raw_client import post


class TestBugsOfOurs:
    """mitmproxy would log what a hook raises, and send the flow on."""

    async def test_a_request_that_we_stumble_over_is_answered_and_not_sent_on(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Listener, "judge_request", stumble)

        async with filtered(tmp_path) as between:
            assert (await between.ask(call("read_file"))).status == 500
            assert between.upstream.asked == []

    async def test_an_answer_that_we_stumble_over_is_not_shown(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Listener, "judge_answer", stumble)

        async with filtered(tmp_path) as between:
            error = json.loads((await between.ask(call("read_file"))).body)
            assert (error["id"], error["error"]["code"]) == (1, -32603)

    async def test_what_we_cannot_even_refuse_is_cut(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Listener, "judge_request", stumble)
        monkeypatch.setattr(Requests, "refuse", stumble)

        async with filtered(tmp_path) as between:
            await between.client.say(post(call("read_file")))
            assert await between.client.rest() == b""
            assert between.upstream.asked == []
