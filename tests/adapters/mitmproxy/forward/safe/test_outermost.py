"""A connection ends if any of its layers raises; in mitmproxy both sides would wait."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest
from mitmproxy.options import Options
from mitmproxy.proxy import commands, events
from mitmproxy.proxy.context import Context
from mitmproxy.proxy.layer import Layer
from mitmproxy.test.tflow import tclient_conn

from mcp_tool_filter.adapters.mitmproxy.forward.safe.outermost import OutermostLayer


class Raising(Layer):
    """Raises at the first bytes, before or after a command of its own."""

    says_first = False

    def _handle_event(self, event: events.Event) -> Generator[commands.Command, Any, None]:
        if isinstance(event, events.DataReceived):
            if self.says_first:
                yield commands.SendData(self.context.client, b"first")
            raise ZeroDivisionError("a bug")


class Outermost(OutermostLayer, Raising):
    pass


@pytest.mark.parametrize("says_first", [False, True])
def test_a_layer_that_raises_closes_the_clients_connection(
    says_first: bool, caplog: pytest.LogCaptureFixture
) -> None:
    client = tclient_conn()
    layer = Outermost(Context(client, Options()))
    layer.says_first = says_first
    list(layer.handle_event(events.Start()))
    done = list(layer.handle_event(events.DataReceived(client, b"x")))
    assert [type(one) for one in done] == [commands.SendData] * says_first + [
        commands.CloseConnection
    ]
    last = done[-1]
    assert isinstance(last, commands.CloseConnection)
    assert last.connection is client
    assert "internal error; connection closed" in caplog.text
