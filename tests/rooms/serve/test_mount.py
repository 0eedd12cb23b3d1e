"""A server below our address: no path of its leads to another one."""

from __future__ import annotations

import pytest

from mcp_tool_filter.rooms.serve.mount import Mount
from tests.core.http.listening import listener
from tests.core.http.test_listener_legacy import Client


@pytest.mark.parametrize(("named", "said"), [
    (b"/m?s=/../b", b"event: endpoint\ndata: /a/m?s=/../b\n\n"),
    (b"/../b/mcp", b"event: endpoint\ndata: /a/b/mcp\n\n"),
    (b"/%2E%2e/b/mcp", b""),
    (b"http://127.0.0.1:3000/.%2e/b/mcp", b""),
    (b"/x/..//b/mcp", b""),
])  # fmt: skip
def test_no_endpoint_leads_to_another_server_behind_our_port(named: bytes, said: bytes) -> None:
    door = listener()
    door.mount = Mount("/a")
    assert Client(door, named).said == said
