"""No filter starts open, or becomes open, because of a slip: the same in every host."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mitmproxy import optmanager
from mitmproxy.addonmanager import Loader
from mitmproxy.exceptions import OptionsError
from mitmproxy.options import Options

from mcp_tool_filter.adapters.mitmproxy.addon import ToolFilter
from mcp_tool_filter.adapters.mitmproxy.options import (
    ConfigReader,
    declare_options,
    overruled_option,
)
from mcp_tool_filter.errors import StartError
from tests.cli.launched import launched, run
from tests.mcp_upstream import mcp_upstream, tool
from tests.proxy import SCRIPT, proxy
from tests.proxy import tool as host
from tests.raw_upstream import free_port

TOOLS = [tool("read_file"), tool("rm_rf")]
MODE = ("-s", SCRIPT, "--mode", "reverse:http://127.0.0.1:1")
WARNING = "Warning: nothing is denied: there is no deny or allow pattern\n"
NO_PATTERN = "has no pattern\nGive a pattern, or leave it out; "
EMPTY = f"Error: deny {NO_PATTERN}to deny nothing on purpose, use (?!), "


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["deny"], EMPTY),
        (["allow"], f"Error: allow {NO_PATTERN}to allow every tool on purpose, use ^, "),
        (["allow", "deny=^rm"], f"Error: allow {NO_PATTERN}"),
        (["deny", "deny=^rm"], f"Error: --set deny {NO_PATTERN}"),
        (["deny="], 'Error: Invalid regex pattern in deny list: ""\n'),
        (["deny=^rm", "allow=,"], 'Error: Invalid regex pattern in allow list: ""\n'),
        (["deny= "], 'Error: Blank pattern in deny list: " "\n'),
        (["lock="], "Error: Invalid value for --set lock: ''\nName a file, or leave it out"),
        (["deny=^rm", "rules"], "Error: Invalid value for --set rules: ''\n"),
        (["deny=^rm,\t"], 'Error: Blank pattern in deny list: "\t"\n'),
        (["deny_hint=opn-world"], "Error: Invalid value for deny_hint: 'opn-world'\nDid you"),
        (["read_only"], "Error: Invalid value for read_only: ''\nWrite read_only=true or"),
        (["strict"], "Error: Invalid value for strict: ''\nWrite strict=true or strict=false"),
        ("deny: []", EMPTY),
        ("deny: ['']", "Error: "),
        ("allow: []", "Error: "),
    ],
    ids=str,
)
def test_an_option_without_its_value_is_an_error(words: list[str] | str, said: str) -> None:
    """In what is typed, and in mitmproxy's configuration file."""
    with pytest.raises((StartError, OptionsError)) as caught:
        read(words)
    assert str(caught.value).startswith(said)


def read(words: list[str] | str) -> None:
    """Read options that are typed, or in a file, as mitmdump and our addon do."""
    options = Options()
    master: Any = SimpleNamespace(options=options)
    declare_options(Loader(master))
    if isinstance(words, str):
        optmanager.load(options, words)
    else:
        options.set(*words)
    ConfigReader().read(options)
    typed = [word for text in words for word in ("--set", text)]
    if problem := overruled_option(options, typed):
        raise problem


@pytest.mark.rest(but=1)
@pytest.mark.parametrize(("name", "words"), [("mitmdump", ["--set", "deny"]), ("mitmweb", [])])
async def test_a_list_without_a_pattern_stops_the_start(
    name: str, words: list[str], tmp_path: Path
) -> None:
    (tmp_path / "config.yaml").write_text("" if words else "deny: []")
    async with host(name, *MODE, *words, home=tmp_path) as running:
        assert await running.exit_code() == 1
        assert EMPTY in running.stderr


@pytest.mark.rest(but=1)
@pytest.mark.parametrize("words", [["mitmdump", "-q"], ["mitmweb"]], ids=str)
async def test_a_host_without_any_pattern_warns_once(words: list[str], tmp_path: Path) -> None:
    async with mcp_upstream(tools=TOOLS) as upstream:
        port = free_port()
        modes = [
            f"--mode=reverse:{upstream.url}@127.0.0.1:{port}",
            f"--mode=reverse:{upstream.url}",
        ]
        async with host(words[0], "-s", SCRIPT, *modes, *words[1:], home=tmp_path) as running:
            await running.says("nothing is denied")
            running.interrupt()
            assert await running.exit_code() == 0
            assert (running.stdout + running.stderr).count(WARNING) == 1


STRICT = (
    "Error: Nothing is denied: there is no deny or allow pattern\n"
    "With the option strict, there must be at least one\n"
)
UNMATCHED = (
    'Error: The pattern "^no" matches no tool\nWith the option strict, every pattern must match a'
    " tool\n"
)
strictly = pytest.mark.parametrize(
    ("words", "said"), [([], STRICT), (["deny=^rm", "allow=^no"], UNMATCHED)], ids=str
)


@pytest.mark.rest(but=1)
@pytest.mark.parametrize("way", ["--port=0", "--stdio", "--list-tools", "--dry-run", "mitmdump"])
@strictly
async def test_strict_applies_to_every_way_to_start(
    way: str, words: list[str], said: str, tmp_path: Path
) -> None:
    async with mcp_upstream(tools=TOOLS) as upstream:
        if way == "mitmdump":
            sets = [word for text in ("strict=true", *words) for word in ("--set", text)]
            mode = f"reverse:{upstream.url}"
            async with host(way, "-s", SCRIPT, "--mode", mode, *sets, home=tmp_path) as running:
                status, stderr = await running.exit_code(), running.stderr
        else:
            flags = ["-u", f"{upstream.url}/mcp", "--strict", *(f"--{one}" for one in words), way]
            ended = await asyncio.to_thread(run, *flags, home=tmp_path)
            status, stderr = ended.returncode, ended.stderr
            assert ended.stdout == ""
    assert status == 1
    assert stderr.endswith(said)


async def test_strict_accepts_patterns_that_match(tmp_path: Path) -> None:
    words = ("--strict", "--deny-glob", "rm_*", "--deny", "^RM", "--ignore-case")
    async with (
        mcp_upstream(tools=TOOLS) as upstream,
        launched("-u", f"{upstream.url}/mcp", *words, home=tmp_path) as running,
    ):
        await running.says("MCP tool filter: ")
        assert "Warning" not in running.stderr


ODD = {
    "^no": 'Warning: the pattern "^no" matches no tool\n',
    "rm_*": 'Warning: the pattern "rm_*": _* matches any number of _, even none; ',
    "/^rm/i": 'Warning: the pattern "/^rm/i": Slashes are part of the pattern; ',
}


@pytest.mark.parametrize(("denied", "warnings"), [(ODD, ODD.values()), ({}, [WARNING])], ids=len)
async def test_warnings_about_patterns_are_shown_even_if_quiet(
    denied: dict[str, str], warnings: list[str], tmp_path: Path
) -> None:
    words = [word for pattern in denied for word in ("--deny", pattern)]
    async with (
        mcp_upstream(tools=TOOLS) as upstream,
        launched("-qu", f"{upstream.url}/mcp", *words, home=tmp_path) as running,
    ):
        for warning in warnings:
            await running.says(re.escape(warning))
        running.interrupt()
        assert await running.exit_code() == 0
        assert [running.stderr.count(warning) for warning in warnings] == [1] * len(warnings)
        assert "MCP tool filter: " not in running.stderr


def reset(options: Options, name: str) -> None:
    options._options[name].reset()
    options.changed.send(updated={name})


@pytest.mark.parametrize(
    ("option", "edit"),
    [
        ("deny", lambda options: options.update(deny=[])),
        ("deny", lambda options: options.update(deny=[""])),
        ("deny", lambda options: options.update(deny=[" "])),
        ("deny", lambda options: reset(options, "deny")),
        ("allow", lambda options: options.update(allow=[])),
        ("allow", lambda options: reset(options, "allow")),
    ],
    ids=["none", "empty", "blank", "reset", "allow none", "allow reset"],
)
async def test_an_edit_that_removes_the_last_pattern_is_refused(
    option: str, edit: Callable[[Options], None], tmp_path: Path
) -> None:
    """The filter that was in force stays. A pattern that matches no name is meant."""
    addon = ToolFilter(report=lambda _report: None)
    given = {option: {"deny": ["^rm"], "allow": ["^read"]}[option]}
    async with (
        mcp_upstream(tools=TOOLS) as upstream,
        proxy(addon, to=upstream.url, home=tmp_path, **given) as running,
    ):
        await addon.proxy.ready.wait()
        [listener] = addon.proxy.listeners.values()
        with pytest.raises(OptionsError, match=r"no pattern|pattern in deny list"):
            edit(running.master.options)
        assert list(listener.snapshot.allowed) == ["read_file"]
        running.master.options.update(allow=["^"], deny=["(?!)"])
        assert list(listener.snapshot.allowed) == ["read_file", "rm_rf"]
