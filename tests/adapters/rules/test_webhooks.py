"""Webhooks, posted to real receivers that answer, fail, or hang."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

import pytest

from mcp_tool_filter.adapters.rules.host import Webhooks
from mcp_tool_filter.policy.rule_effects import SendWebhook
from tests.raw_upstream import TIMEOUT

type Received = list[tuple[str, object]]


async def with_receiver(
    statuses: list[int | None], act: Callable[[str, Received], Awaitable[None]]
) -> Received:
    """Run a receiver that answers with these statuses in turn; None hangs."""
    received: Received = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        length = next(
            int(line.split(":")[1])
            for line in head.lower().splitlines()
            if line.startswith("content-length")
        )
        received.append((head, json.loads(await reader.readexactly(length))))
        status = statuses[min(len(received), len(statuses)) - 1]
        if status is None:
            await asyncio.sleep(60)
        fields = "Location: /elsewhere\r\nContent-Length: 0\r\n\r\n"
        writer.write(f"HTTP/1.1 {status} X\r\n{fields}".encode())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        await act(f"http://127.0.0.1:{port}/hook?x=1", received)
    finally:
        server.close()
    return received


def hook(url: str, timeout: float = 5.0) -> SendWebhook:
    return SendWebhook(url, (("X-Key", "k"),), '"rule":"r"', timeout, "r")


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(TIMEOUT):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_webhook_is_one_json_object() -> None:
    webhooks = Webhooks(now=lambda: 0.0)

    async def act(url: str, received: Received) -> None:
        webhooks.send(hook(url))
        await until(lambda: webhooks.sent == 1)
        await webhooks.close()

    ((head, body),) = await with_receiver([200], act)
    assert head.startswith("POST /hook?x=1 HTTP/1.1\r\n")
    assert "x-key: k" in head.lower()
    assert body == {"time": "1970-01-01T00:00:00.000+00:00", "rule": "r"}


async def test_a_5xx_is_tried_again_and_a_4xx_is_not() -> None:
    webhooks = Webhooks(retry_after=(0.01, 0.01))

    async def act(url: str, received: Received) -> None:
        webhooks.send(hook(url))
        await until(lambda: webhooks.sent == 1)
        webhooks.send(hook(url))
        await until(lambda: webhooks.failed == 1)
        await webhooks.close()

    assert len(await with_receiver([503, 500, 200, 404], act)) == 4


async def test_a_redirect_is_not_followed() -> None:
    """The receiver would choose who gets the message and the headers."""
    webhooks = Webhooks(retry_after=(0.01,))

    async def act(url: str, received: Received) -> None:
        webhooks.send(hook(url))
        await until(lambda: webhooks.failed == 1)
        await webhooks.close()

    assert len(await with_receiver([307, 200], act)) == 1


async def test_a_receiver_that_hangs_or_is_gone_is_not_waited_for() -> None:
    webhooks = Webhooks(retry_after=(0.01,))

    async def act(url: str, received: Received) -> None:
        webhooks.send(hook(url, timeout=0.05))
        webhooks.send(hook("http://127.0.0.1:1/"))
        webhooks.send(hook("http://[x/"))
        await until(lambda: webhooks.failed == 3)
        await webhooks.close()

    assert len(await with_receiver([None], act)) == 2


async def test_the_end_does_not_wait_long_and_counts_the_rest(
    caplog: pytest.LogCaptureFixture,
) -> None:
    webhooks = Webhooks()

    async def act(url: str, received: Received) -> None:
        for _ in range(30):
            webhooks.send(hook(url))
        await until(lambda: len(received) == 8)
        await webhooks.close(within=0.1)

    await with_receiver([None], act)
    assert caplog.messages == ["At the end 30 webhooks were not delivered"]


async def test_a_full_queue_drops_the_oldest(caplog: pytest.LogCaptureFixture) -> None:
    webhooks = Webhooks(most=2)

    async def act(url: str, received: Received) -> None:
        for _ in range(30):
            webhooks.send(hook(url))
        await until(lambda: webhooks.sent + webhooks.dropped == 30)
        await webhooks.close()

    received = await with_receiver([200], act)
    assert (webhooks.sent, webhooks.dropped) == (2, 28)
    assert caplog.messages == ["The queue of webhooks is full: the oldest are dropped"]
    assert len(received) == 2
