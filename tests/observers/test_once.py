"""A log in which one line stands a thousand times is not read."""

from __future__ import annotations

import logging

import pytest

from mcp_tool_filter.observers.sentences import Once

LOG = logging.getLogger(__name__)


def test_a_text_is_logged_once_with_its_values(caplog: pytest.LogCaptureFixture) -> None:
    once = Once()
    for name in ("a", "b", "a"):
        once.log(LOG, logging.WARNING, "tool %s is gone", name)
    once.log(LOG, logging.WARNING, "100 %")
    assert caplog.messages == ["tool a is gone", "tool b is gone", "100 %"]


def test_peers_cannot_fill_the_log_with_new_texts() -> None:
    once = Once(most=3)
    assert [once.is_new(str(number)) for number in range(5)] == [True] * 3 + [False] * 2
