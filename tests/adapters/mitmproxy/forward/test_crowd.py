"""What is logged when descriptors run out. (With real sockets: attacks/test_losses.)"""

from __future__ import annotations

import asyncio
import errno
import logging
from typing import Any

import pytest

from mcp_tool_filter.adapters.mitmproxy.forward.crowd import Crowd


async def failed(caplog: pytest.LogCaptureFixture, *contexts: dict[str, Any]) -> list[object]:
    """Let asyncio report these; return what went on to the handler that was there before us."""
    passed_on: list[object] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: passed_on.append(context["message"]))
    crowd = Crowd()
    crowd.running(None)
    with caplog.at_level(logging.WARNING):
        for context in contexts:
            loop.call_exception_handler(context)
    crowd.done()
    return passed_on


async def test_running_out_of_descriptors_is_reported_once_and_without_a_traceback(
    caplog: pytest.LogCaptureFixture,
) -> None:
    message = "socket.accept() out of system resource"  # as asyncio words it
    full = OSError(errno.EMFILE, "Too many open files")
    assert await failed(caplog, *[{"message": message, "exception": full}] * 3) == []
    (record,) = caplog.records
    assert "no file descriptor is left" in record.getMessage()
    assert record.exc_info is None


@pytest.mark.parametrize(
    "context",
    [
        {"message": "a task failed", "exception": OSError(errno.EMFILE, "Too many open files")},
        {"message": "socket.accept()", "exception": OSError(errno.EIO, "Input/output error")},
        {"message": "no exception"},
    ],
)
async def test_other_errors_go_to_the_earlier_handler(
    caplog: pytest.LogCaptureFixture, context: dict[str, Any]
) -> None:
    assert await failed(caplog, context) == [context["message"]]
    assert not caplog.records
