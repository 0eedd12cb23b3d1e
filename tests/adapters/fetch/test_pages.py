"""The start follows a tool list from page to page, within bounds."""

from __future__ import annotations

import pytest

from mcp_tool_filter.adapters.fetch import upstream
from tests.adapters.fetch.mcp_script import (
    dialogue,
    error,
    failure,
    fetched_from,
    message_in,
    names,
    result,
    run,
    streamable,
    tool_list,
)
from tests.raw_upstream import RawRequest, answer


async def test_the_list_is_followed_from_page_to_page() -> None:
    following = {None: ("a", "1"), "1": ("b", "2"), "2": ("c", None)}

    def listed(request: RawRequest) -> bytes:
        name, cursor = following[message_in(request)["params"].get("cursor")]
        return answer(result(request, tool_list(name, next_cursor=cursor)))

    fetched, upstream = await run(dialogue(streamable(listed)))
    assert (len(fetched.pages), names(fetched)) == (3, ["a", "b", "c"])
    assert len(upstream.peers) == 1


@pytest.mark.parametrize("cursor", ["", None])
async def test_an_empty_cursor_ends_the_list(cursor: str | None) -> None:
    script = dialogue(streamable({"tools": [], "nextCursor": cursor}))
    assert len((await fetched_from(script)).pages) == 1


async def test_a_list_with_repeating_cursors_is_refused() -> None:
    script = dialogue(streamable(tool_list("a", next_cursor="x\n")))
    assert await failure(script) == 'The tool list never ends: it repeats the cursor "x\\n"'


async def test_an_endless_list_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "MAX_PAGES", 3)

    def listed(request: RawRequest) -> bytes:
        number = message_in(request)["id"]
        return answer(result(request, tool_list("a", next_cursor=f"after {number}")))

    assert await failure(dialogue(streamable(listed))) == "The tool list has more than 3 pages"


async def test_pages_that_are_too_long_together_are_refused() -> None:
    def listed(request: RawRequest) -> bytes:
        number = message_in(request)["id"]
        return answer(result(request, tool_list("a" * 700, next_cursor=f"after {number}")))

    said = await failure(dialogue(streamable(listed)), limit=1000)
    assert said == "The tool list is longer than 8000 bytes"


async def test_an_upstream_that_has_no_tools_needs_no_list() -> None:
    def listed(request: RawRequest) -> bytes:
        return answer(error(request, -32601, "Method not found"))

    assert (
        await fetched_from(dialogue(streamable(listed, capabilities={"prompts": {}})))
    ).pages == ()
    assert "-32601" in await failure(dialogue(streamable(listed)))


async def test_undeclared_tools_are_fetched_anyway() -> None:
    script = dialogue(streamable(tool_list("a"), capabilities={}))
    assert names(await fetched_from(script)) == ["a"]
