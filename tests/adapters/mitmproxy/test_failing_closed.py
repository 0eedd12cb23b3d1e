"""An exchange at which our code raises is refused, never sent on."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from mcp_tool_filter.adapters.mitmproxy.flows import Picture
from mcp_tool_filter.adapters.mitmproxy.selftest import PROBES, Run
from mcp_tool_filter.engine.client_h1 import H1Client
from mcp_tool_filter.http.listener import Listener
from mcp_tool_filter.policy.effects import Deciding
from tests.adapters.mitmproxy.filtered import call, filtered, stumble
from tests.mcp_upstream import RESULT


def stumble_later(*_args: object, **_given: object) -> Deciding[None]:
    """A decision that waits, and then raises."""
    yield from ()
    raise ZeroDivisionError("a bug")


@pytest.mark.parametrize("judge", [stumble, stumble_later])
async def test_a_request_is_answered_and_not_sent_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, judge: Callable[..., object]
) -> None:
    async with filtered(tmp_path) as between:
        monkeypatch.setattr(Listener, "judge_request", judge)
        assert (await between.ask(call("read_file"))).status == 500
        assert between.upstream.asked == []


@pytest.mark.parametrize("judge", [stumble, stumble_later])
async def test_an_answer_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, judge: Callable[..., object]
) -> None:
    async with filtered(tmp_path) as between:
        monkeypatch.setattr(Listener, "judge_answer", judge)
        assert (await between.ask(call("read_file"))).body != RESULT


@pytest.mark.parametrize(
    ("where", "what"),
    [
        (H1Client, "receive"),
        (Picture, "_make_request"),
        (Picture, "_seen_request"),
        (Picture, "_hide_body"),
    ],
)
def test_an_error_in_our_layer_closes_the_connection(
    monkeypatch: pytest.MonkeyPatch, where: type, what: str
) -> None:
    """mitmproxy would log it, and the client would wait for ever."""
    monkeypatch.setattr(where, what, stumble)
    (probe,) = (one for one in PROBES if one.what == "an allowed call")
    run = Run(probe)
    run.play()
    assert run.has_closed or run.to_client.startswith(b"HTTP/1.1 500")
    assert run.to_upstream == b""
