"""Ways to get a request past a rule, tried over real sockets: none reaches the upstream."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.attacks.corpus import rows
from tests.attacks.ruled import OK, draft, under_policy
from tests.mcp_upstream import saying

REFUSED = dict(rows("rules", "refused"))


@pytest.mark.parametrize("name", REFUSED)
async def test_a_refused_request_never_reaches_the_upstream(tmp_path: Path, name: str) -> None:
    async with under_policy(tmp_path) as between:
        got = await between.ask(REFUSED[name])
        assert got.status in (200, 202, 400)
        assert b"/etc" not in b"".join(request.body for request in between.upstream.asked)
        assert all(request.body == b"[" + OK + b"]" for request in between.upstream.asked)


HONEST = dict(rows("rules", "honest"))


@pytest.mark.parametrize("name", HONEST)
async def test_honest_messages_keep_their_bytes(tmp_path: Path, name: str) -> None:
    async with under_policy(tmp_path, respond=saying(OK)) as between:
        assert (await between.ask(HONEST[name])).status == 200
        assert [request.body for request in between.upstream.asked] == [HONEST[name]]


COSTLY = b'{"jsonrpc":"2.0","id":1,"method":"vendor/costly","params":{"n":%d}}'


async def test_an_invented_session_id_gets_no_budget_of_its_own(tmp_path: Path) -> None:
    """An upstream without sessions takes any id, so an id must not count."""

    async with under_policy(tmp_path, respond=saying(OK)) as between:
        for number in range(5):
            await between.ask(COSTLY % number, b"Mcp-Session-Id: invented-%d\r\n" % number)
        assert len(between.upstream.of("vendor/costly")) == 1


async def test_the_stateless_revision_is_judged_with_its_headers(tmp_path: Path) -> None:
    meta = '"_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}'
    headers = (
        b"Mcp-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\nMcp-Name: read_file\r\n"
    )

    def stateless(arguments: str) -> bytes:
        return draft(arguments).replace(b'"params":{', f'"params":{{{meta},'.encode())

    async with under_policy(tmp_path, respond=saying(OK)) as between:
        got = await between.ask(stateless('"path":"/etc/x"'), headers)
        assert json.loads(got.body)["error"]["data"]["rule"] == "no-etc"
        assert (await between.ask(stateless('"path":"/home"'), headers)).status == 200
        assert len(between.upstream.of("tools/call")) == 1
