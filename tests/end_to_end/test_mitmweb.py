"""mitmweb with the filter in a real browser: what a person sees there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.browser import Page
from tests.end_to_end.peer import client, need, upstream
from tests.end_to_end.web_pages import (
    PASSWORD,
    REVISION,
    Web,
    contrast,
    edit_deny,
    figure,
    mitmweb,
    open_flow,
    open_tab,
    row,
    rule_table,
    running_demo,
)  # fmt: skip

RULES = """
interceptor:
  rules:
    - id: "%s"
      conditions: [tool_equals: file_read, param_matches: {field: arguments.path, pattern: "^%s"}]
      actions: [block: not there]
"""

ROWS = "[...document.querySelectorAll('[role=tabpanel]:not([hidden]) .rows .row')]"
OUTSIDE = """
return [...document.querySelectorAll("main *")]
  .filter((one) => one.getBoundingClientRect().right > innerWidth + 1)
  .filter((one) => !one.parentElement.closest(".row > div, .figures"))  // they are cut, or scroll
  .map((one) => one.outerHTML);
"""


def show(page: Page, web: Web, *texts: str, tab: str = "activity") -> None:
    """Open a tab of our page, and wait until it shows these."""
    page.go(web.url(f"/mcp?token={PASSWORD}&tab={tab}"))
    page.wait_for("Live", *texts)


def test_flows_are_marked_and_readable_and_a_link_leads_to_our_page(web: Web, page: Page) -> None:
    web.client.tools()
    web.client.call("file_delete")
    web.client.call("file_read")
    page.go(web.url(f"/?token={PASSWORD}"))
    page.wait_for("/mcp", "🙈", "🚫", "tools/call file_read: forwarded")
    comment = "return document.querySelector('td.col-comment').getBoundingClientRect().width"
    assert page.run(comment) > 400
    flows = json.loads(web.api("GET", "/flows")[1])
    [refused] = [flow for flow in flows if "not found" in flow["comment"]]
    [listed] = [flow for flow in flows if "hidden" in flow["comment"]]

    open_flow(web, page, refused["id"], "comment")
    page.wait_for("not found: file_delete (denied by ^(file|email)_(delete|send)$)")
    open_flow(web, page, refused["id"], "request")
    page.wait_for("MCP", "request tools/call", "tool: file_delete")
    open_flow(web, page, refused["id"], "response")
    page.wait_for("MCP", "code: -32601", "Tool not found: file_delete")
    open_flow(web, page, listed["id"], "response")
    page.wait_for("MCP", "- file_read(path, first?)")
    assert "- file_delete" not in page.text
    page.find("a#mcp-tool-filter").click()
    page.wait_for("Live", "tools/call file_read")


def test_an_open_stream_is_seen_while_it_goes_on(tmp_path: Path, page: Page) -> None:
    need("mcp1")
    sse = ("--transport", "sse")
    with (
        upstream("mcp1", *sse) as server,
        mitmweb(tmp_path, server.port) as web,
        client("mcp1", f"http://127.0.0.1:{web.client.port}/sse", *sse) as speaker,
    ):
        speaker.do({"list": "tools"})
        page.go(web.url(f"/?token={PASSWORD}"))
        flows = json.loads(web.api("GET", "/flows")[1])
        [stream] = [flow for flow in flows if flow["request"]["method"] == "GET"]
        open_flow(web, page, stream["id"], "response")
        page.wait_for("MCP", "event 1: endpoint", "- read_file(path, lines?)")
        assert "contents of seen.txt" not in page.text
        speaker.do({"call": "read_file", "arguments": {"path": "seen.txt"}})
        page.wait_for("contents of seen.txt")
        speaker.do({"call": "drop_database"})
        page.wait_for("Tool not found: drop_database")
        [session] = web.state()["listeners"][0]["sessions"]
        assert (session["revision"], session["seconds_ago"]) == (REVISION, None)


def test_the_page_updates_itself(web: Web, page: Page) -> None:
    show(page, web, "No messages yet.", web.state()["listeners"][0]["url"])
    assert figure(page, "Refused") == "0"
    web.client.call("file_delete")
    web.client.call("file_read")
    page.until(lambda: figure(page, "Refused") == figure(page, "Calls") == "1", "two messages")
    page.wait_for("tools/call file_read", "refused (^(file|email)_(delete|send)$)")
    page.find(".message.refused").click()
    [flow] = [one["flow"] for one in web.state()["recent"] if one["verdict"] == "refused"]
    page.find(f'a[href*="{flow}"]')
    open_tab(page, "tools")
    page.find("#tools [name=search]").type("file_")
    page.find(".hidden-tool")
    why = "denied by ^(file|email)_(delete|send)$"
    cells = row(page, "hidden-tool", "file_delete")
    assert (cells[2].startswith(why), cells[-1]) == (True, "1 refused")
    assert row(page, "shown-tool", "file_read")[-1] == "1"
    steps = web.state()["steps"]
    assert (sum(one["calls"] for one in steps), sum(one["refused"] for one in steps)) == (1, 1)
    assert page.errors() == []


def test_rules_are_shown_with_their_hits_and_after_an_edit(tmp_path: Path, page: Page) -> None:
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULES % ("no <b>etc</b>", "/etc"))
    with running_demo() as port, mitmweb(tmp_path, port, [f"--set=rules={rules}"]) as web:
        web.client.begin()
        show(page, web, "Rules", "no <b>etc</b>")
        assert row(page, "rule", "no <b>etc</b>")[1] == "0 hits"
        blocked = web.client.ask("tools/call", name="file_read", arguments={"path": "/etc/x"})
        assert blocked["error"]["data"] == {"rule": "no <b>etc</b>", "action": "block"}
        page.until(lambda: row(page, "rule", "no <b>etc</b>")[1] == "1 hit", "hit")
        flows = json.loads(web.api("GET", "/flows")[1])
        assert any("no <b>etc</b>" in flow["comment"] for flow in flows)
        rules.write_text(RULES % ("no-home", "/home"))
        page.wait_for("no-home")
        page.until(lambda: "no <b>etc</b>" not in rule_table(page), "edit")
        assert page.errors() == []


@pytest.mark.parametrize("width", [390, 1440])
def test_nothing_overflows_at_the_width_of(width: int, web: Web, page: Page) -> None:
    """Nothing reaches out of the page; a row is one line high, or two on a phone."""
    web.client.call("file_read")
    web.client.call("no_such_tool_" + "with_a_long_name_" * 5)
    web.client.call("x" * 120)
    page.resize(width, 900)
    for tab, text in (("activity", "no_such_tool_"), ("tools", "web_search"), ("sessions", "test")):
        show(page, web, text, tab=tab)
        assert page.run("return document.documentElement.scrollWidth") == width
        page.find(".rows .row")
        assert set(page.run(f"return {ROWS}.map(one => one.offsetHeight)")) == {
            48 if width == 390 else 28
        }
        assert page.run(OUTSIDE) == []


def test_a_keyboard_hides_a_tool_and_keeps_its_place(web: Web, page: Page) -> None:
    show(page, web, "file_read", tab="tools")
    button = 'button[aria-label="Hide file_read"]'
    page.run(f"document.querySelector('{button}').focus()")
    page.find(button).type("\ue007")
    page.wait_for("1 tool to hide")
    focused = "return document.activeElement.getAttribute('aria-label')"
    assert page.run(focused) == "Show file_read"
    page.find('button[aria-label="Discard the changes"]').click()
    page.find(button)


def test_the_page_shows_callers_and_the_saved_context(web: Web, page: Page) -> None:
    web.client.tools()
    for name in ("file_read", "file_read", "file_delete"):
        web.client.call(name)
    show(page, web, "Who calls what", "file_read 2", tab="sessions")
    open_tab(page, "activity")
    page.wait_for("Context saved: ")
    labels = "return [...document.querySelectorAll('svg')].map(x => x.ariaLabel)"
    named = [label.split(":")[0].split(",")[0] for label in page.run(labels)]
    assert named == ["Last ten minutes", "Median time of the upstream", "Context saved"]


def test_the_page_is_readable_in_light_and_dark_mode(web: Web, page: Page) -> None:
    web.client.tools()
    for name in ("file_read", "web_search", "file_delete", "drop_database", "no_such_tool"):
        web.client.call(name)
    page.resize(1440, 1100)
    show(page, web, "no_such_tool")
    page.find(".message.ok").click()
    page.find("#panel .facts")
    colours = []
    for scheme in ("dark", "light"):
        page.prefer(scheme)
        colours.append(page.run(COLOURS))
        assert all(contrast(text, back) >= 4.5 for text, back in colours[-1]), colours
    assert colours[0] != colours[1]


def test_a_click_hides_a_tool_and_can_be_undone(web: Web, page: Page) -> None:
    before = web.option("deny")
    show(page, web, "file_read", tab="tools")
    page.find('button[aria-label="Hide file_read"]').click()
    page.wait_for("1 tool to hide, 0 to show", "--deny '^file_read$'")
    assert "file_read" in web.client.tools()  # nothing has changed so far
    page.find('button[aria-label="Apply the changes"]').click()
    page.until(lambda: "file_read" not in web.client.tools(), "hidden tool")
    page.wait_for("The patterns were changed on this page.")
    page.find('button[aria-label="Undo the last change"]').click()
    page.until(lambda: "file_read" in web.client.tools(), "shown tool")
    assert ",".join(web.option("deny")) == ",".join(before)
    assert page.errors() == []


def test_without_the_token_the_page_says_how_to_get_in(web: Web, page: Page) -> None:
    page.go(web.url("/mcp"))
    page.wait_for("This page needs mitmweb's token")
    assert "file_delete" not in page.text


def test_patterns_can_be_edited_and_a_bad_one_is_not_adopted(web: Web, page: Page) -> None:
    before = web.client.tools()
    edit_deny(web, page, "[")
    page.until(lambda: web.state()["refused_edit"], "refused edit")
    page.go(web.url("/mcp?tab=tools"))
    page.wait_for("not adopted", 'Invalid regex pattern in deny list: "["', "file_delete")
    assert web.client.tools() == before

    edit_deny(web, page, "^table_")
    page.until(lambda: web.option("deny") == ["^table_"], "edit")
    assert "file_delete" in web.client.tools()
    page.go(web.url("/mcp?tab=tools"))
    page.wait_for("Live", "denied by ^table_")
    assert "not adopted" not in page.text


COLOURS = """
const rgb = (text) => text.match(/[\\d.]+/g).slice(0, 3)
  .map((part) => part * (text.startsWith("color(") ? 255 : 1));
const backOf = (one) => {
  const { backgroundColor } = getComputedStyle(one);
  return backgroundColor === "rgba(0, 0, 0, 0)" ? backOf(one.parentElement) : backgroundColor;
};
const TEXTS = ["h1", "h2", "dt", ".count", ".message.ok .time", ".message.ok .verdict",
  ".message.refused .verdict", ".facts dd", "[role=tab][aria-selected=false]",
  ".server .number"];
return TEXTS.map((css) => document.querySelector(css)).map(
  (one) => [rgb(getComputedStyle(one).color), rgb(backOf(one))]);
"""
