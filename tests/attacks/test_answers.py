"""Nothing by which the denied tool is known reaches a client, whatever the upstream says."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.attacks.answers import ATTACKS, Attack
from tests.attacks.hostile_requests import post
from tests.attacks.readings import shows
from tests.attacks.stage import ALLOWED_TOOL, DENIED, DENIED_TOOL, MARK, Link, Stage, in_groups
from tests.mcp_upstream import tool_list
from tests.raw_upstream import RawRequest, answer


@in_groups(ATTACKS)
def test_a_definition_does_not_get_through(stage: Stage, group: Sequence[Attack]) -> None:
    heard = {attack.name: stage.play(_scene(stage, attack)) for attack in group}
    assert {name: said for name, said in heard.items() if shows(said, DENIED, MARK)} == {}


DIGESTS = ["ETag", "Digest", "Repr-Digest", "Content-Digest", "Content-MD5", "Signature",
           "Signature-Input", "X-Checksum-Sha256"]  # fmt: skip


@pytest.mark.parametrize("is_hidden", [True, False])
@pytest.mark.parametrize("is_stream", [True, False])
def test_what_a_head_says_of_a_list_goes_with_its_hidden_tools(
    stage: Stage, is_hidden: bool, is_stream: bool
) -> None:
    tools = [ALLOWED_TOOL, DENIED_TOOL] if is_hidden else [ALLOWED_TOOL]
    listed = tool_list(tools, id="5")
    said = "\r\n".join(f"{name}: of-the-list" for name in DIGESTS)

    async def respond(_request: RawRequest, link: Link) -> None:
        kind, body = "application/json", listed
        if is_stream:
            kind, body = "text/event-stream", b"data: " + listed + b"\n\n"
        await link.say(answer(body, kind=f"{kind}\r\n{said}"))

    async def scene() -> bytes:
        stage.upstream.respond = respond
        async with stage.client() as client:
            heard = await client.ask(post(b'{"jsonrpc":"2.0","id":5,"method":"tools/list"}'))
        return heard.head

    heads = stage.play(scene())
    kept = heads.count(b"of-the-list")
    assert kept == (0 if is_hidden or is_stream else len(DIGESTS)), heads


async def _scene(stage: Stage, attack: Attack) -> bytes:
    async def respond(_request: RawRequest, link: Link) -> None:
        for piece in attack.said:
            await link.say(piece)
        if attack.ends:
            link.writer.write_eof()

    stage.upstream.respond = respond
    return await stage.all_that_comes(attack.asked)
