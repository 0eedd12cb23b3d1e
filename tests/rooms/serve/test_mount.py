"""A server below our address: no path of its leads to another one."""

from __future__ import annotations

from pathlib import Path

import pytest

from mcp_tool_filter.rooms.serve.mount import Mount
from tests.cli.launched import launched
from tests.core.http.listening import listener
from tests.core.http.test_listener_legacy import Client
from tests.mcp_upstream import tool
from tests.raw_upstream import raw_upstream
from tests.shapes import Server, call, talking


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


async def test_a_server_of_the_older_transport_may_take_messages_at_mcp(tmp_path: Path) -> None:
    """There our own path of its endpoint would be: the messages went to its stream's path."""
    server = Server([tool("read_file"), tool("delete_file")], is_legacy=True, posts="/mcp")
    async with raw_upstream(server.serve) as there:
        file = tmp_path / "servers.toml"
        file.write_text(f'deny = "^delete_"\n[servers.old]\nurl = "{there.url}/sse"\n')
        async with launched("serve", "--config", str(file), home=tmp_path) as it:
            port = int((await it.says(r"MCP tool filter: http://\S*:(\d+) -> "))[1])
            async with talking("legacy stream", port, "/old/mcp") as talk:
                await talk.opens()
                assert await talk.names() == ["read_file"]
                assert "result" in await talk.ask(call("read_file", 2))
                assert (await talk.ask(call("delete_file", 3)))["error"]["code"] == -32601
    assert server.called() == ["read_file"]
