"""Our own start against every real upstream, directly."""

import json

import pytest

from mcp_tool_filter.cli.parsing import parse_config
from mcp_tool_filter.core.messages.limits import Transport
from mcp_tool_filter.core.upstream.fetch import fetch
from mcp_tool_filter.core.upstream.target import target_for

from .expected import TOOLS
from .pairs import LEGACY, MODERN, SERVERS, VARIANTS, Server
from .peer import upstream


@pytest.mark.parametrize("server", [*SERVERS, *VARIANTS], ids=str)
async def test_all_tools_are_fetched_from_a_discovered_endpoint_and_transport(
    server: Server,
) -> None:
    with upstream(server.name, *server.flags, "--page-size=4") as running:
        found = await fetch(target_for(parse_config(deny=["x"]), running.origin, None))
    pages = [json.loads(page)["result"]["tools"] for page in found.pages]
    assert [tool["name"] for page in pages for tool in page] == TOOLS
    assert [len(page) for page in pages][:-1] == [4] * (len(pages) - 1)
    assert found.endpoint == running.path
    assert found.server_name == f"fixtures-{server.name}"
    assert found.revision == (MODERN if server.speaks_modern else LEGACY)
    assert found.transport == transport_of(server)
    assert found.sessions == (found.transport is Transport.STREAMABLE and not stateless(server))


def transport_of(server: Server) -> Transport:
    if server.transport == "sse":
        return Transport.LEGACY_SSE
    return Transport.STATELESS if server.speaks_modern else Transport.STREAMABLE


def stateless(server: Server) -> bool:
    return server.variant == "--stateless"
