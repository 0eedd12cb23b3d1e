"""Nothing by which the denied tool is known reaches a client, whatever the upstream says."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.attacks.answers import ASKED, ATTACKS, Exchange
from tests.attacks.readings import shows
from tests.attacks.stage import ALLOWED_TOOL, DENIED, DENIED_TOOL, MARK, Stage, in_groups
from tests.mcp_upstream import tool_list
from tests.raw_upstream import answer


@in_groups(ATTACKS)
def test_a_definition_does_not_get_through(stage: Stage, group: Sequence[Exchange]) -> None:
    heard = {one.name: stage.hears(one.asked, *one.said, ends=one.ends) for one in group}
    assert {name: said for name, said in heard.items() if shows(said, DENIED, MARK)} == {}


DIGESTS = ["ETag", "Digest", "Repr-Digest", "Content-Digest", "Content-MD5", "Signature",
           "Signature-Input", "X-Checksum-Sha256"]  # fmt: skip


@pytest.mark.parametrize("is_hidden", [True, False])
@pytest.mark.parametrize("is_stream", [True, False])
def test_what_a_head_says_of_a_list_goes_with_its_hidden_tools(
    stage: Stage, is_hidden: bool, is_stream: bool
) -> None:
    listed = tool_list([ALLOWED_TOOL, DENIED_TOOL] if is_hidden else [ALLOWED_TOOL])
    kind, body = "application/json", listed
    if is_stream:
        kind, body = "text/event-stream", b"data: " + listed + b"\n\n"
    said = "\r\n".join([kind, *(f"{name}: of-the-list" for name in DIGESTS)])
    heard = stage.hears(ASKED["tools/list"], answer(body, kind=said))
    kept = heard.count(b"of-the-list")
    assert kept == (0 if is_hidden or is_stream else len(DIGESTS)), heard
