"""No filter starts open, or becomes open, because of a slip: the same in every host."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from mitmproxy.exceptions import OptionsError
from mitmproxy.options import Options

from mcp_tool_filter.adapters.mitmproxy.addon import ToolFilter
from tests.cli.launched import launched, run
from tests.mcp_upstream import McpUpstream, mcp_upstream, tool
from tests.proxy import SCRIPT, RunningProxy, RunningTool, proxy
from tests.proxy import tool as host
from tests.raw_upstream import free_port

TOOLS = [tool("read_file"), tool("rm_rf")]
MODE = ("-s", SCRIPT, "--mode", "reverse:http://127.0.0.1:1")
WARNING = "Warning: nothing is denied: there is no deny or allow pattern\n"
NO_PATTERN = "has no pattern\nGive a pattern, or leave it out; "


@pytest.mark.rest(but=2)
@pytest.mark.parametrize(
    ("name", "words", "said"),
    [
        (name, ["deny"], f"Error: deny {NO_PATTERN}to deny nothing on purpose, use (?!), ")
        for name in ("mitmdump", "mitmweb")
    ]
    + [
        ("mitmdump", words, said)
        for words, said in (
            (["allow"], f"Error: allow {NO_PATTERN}to allow every tool on purpose, use ^, "),
            (["allow", "deny=^rm"], f"Error: allow {NO_PATTERN}"),
            (["deny", "deny=^rm"], f"Error: --set deny {NO_PATTERN}"),
            (["deny="], 'Error: Invalid regex pattern in deny list: ""\n'),
            (["deny=^rm", "allow=,"], 'Error: Invalid regex pattern in allow list: ""\n'),
            (["deny= "], 'Error: Blank pattern in deny list: " "\n'),
            (["lock="], "Error: Invalid value for --set lock: ''\nName a file, or leave it out\n"),
            (["deny=^rm", "rules"], "Error: Invalid value for --set rules: ''\n"),
            (["deny=^rm,\t"], 'Error: Blank pattern in deny list: "\t"\n'),
        )
    ],
    ids=str,
)
async def test_a_list_without_a_pattern_stops_the_start(
    name: str, words: list[str], said: str, tmp_path: Path
) -> None:
    sets = [word for text in words for word in ("--set", text)]
    async with host(name, *MODE, *sets, home=tmp_path) as running:
        assert await running.exit_code() == 1
        assert said in running.stderr


@pytest.mark.rest(but=1)
@pytest.mark.parametrize("text", ["deny: []", "deny:", 'deny: ""', "deny: ['']", "allow: []"])
async def test_a_list_without_a_pattern_in_mitmproxys_configuration_stops_the_start(
    text: str, tmp_path: Path
) -> None:
    (tmp_path / "config.yaml").write_text(text)

    async with host("mitmdump", *MODE, home=tmp_path) as running:
        assert await running.exit_code() == 1
        assert running.stderr.startswith("Error: ")


@pytest.mark.rest(but=1)
@pytest.mark.parametrize(
    ("name", "quiet"), [("mitmdump", []), ("mitmdump", ["-q"]), ("mitmweb", [])], ids=str
)
async def test_a_host_without_any_pattern_warns_once(
    name: str, quiet: list[str], tmp_path: Path
) -> None:
    async with mcp_upstream(tools=TOOLS) as upstream:
        modes = [
            f"--mode=reverse:{upstream.url}@127.0.0.1:{free_port()}",
            f"--mode=reverse:{upstream.url}",
        ]
        async with host(name, "-s", SCRIPT, *modes, *quiet, home=tmp_path) as running:
            await running.says("nothing is denied")
            running.interrupt()
            assert await running.exit_code() == 0
            assert (running.stdout + running.stderr).count(WARNING) == 1


@pytest.mark.rest(but=1)
@pytest.mark.parametrize("words", [[], ["-q"], ["-v"]], ids=str)
async def test_the_launcher_without_any_pattern_warns_even_if_it_is_quiet(
    words: list[str], tmp_path: Path
) -> None:
    async with (
        mcp_upstream(tools=TOOLS) as upstream,
        launched("-u", f"{upstream.url}/mcp", *words, home=tmp_path) as running,
    ):
        await running.says("nothing is denied")
        running.interrupt()
        assert await running.exit_code() == 0
        assert running.stderr.count(WARNING) == 1


STRICT = (
    "Error: Nothing is denied: there is no deny or allow pattern\n"
    "With the option strict, there must be at least one\n"
)
UNMATCHED = (
    'Error: The pattern "^no" matches no tool\nWith the option strict, every pattern must match a'
    " tool\n"
)


@pytest.mark.rest(but=1)
@pytest.mark.parametrize(
    ("name", "words", "said"),
    [
        ("mitmdump", [], STRICT),
        ("mitmdump", ["deny=^no"], UNMATCHED),
        ("mitmdump", ["deny=^RM", "ignore_case=true"], ""),
        ("mcp-tool-filter", [], STRICT),
        ("mcp-tool-filter", ["deny=^rm", "allow=^no"], UNMATCHED),
        ("mcp-tool-filter", ["deny_glob=rm_*"], ""),
        ("mcp-tool-filter", ["deny=^RM", "ignore_case=true"], ""),
    ],
    ids=str,
)
async def test_strict_refuses_a_pattern_that_matches_no_tool(
    name: str, words: list[str], said: str, tmp_path: Path
) -> None:
    async with (
        mcp_upstream(tools=TOOLS) as upstream,
        strictly(name, words, upstream, tmp_path) as running,
    ):
        if said:
            assert await running.exit_code() == 1
            assert running.stderr.endswith(said)
        else:
            await running.says("MCP tool filter: ")
            assert "Warning" not in running.stderr


def strictly(
    name: str, words: list[str], upstream: McpUpstream, home: Path
) -> AbstractAsyncContextManager[RunningTool]:
    """Start a host with what our options are called in mitmproxy."""
    if name == "mitmdump":
        sets = [word for text in ("strict=true", *words) for word in ("--set", text)]
        return host(name, "-s", SCRIPT, "--mode", f"reverse:{upstream.url}", *sets, home=home)
    flags = [f"--{text.removesuffix('=true')}" for text in words]
    flags = [
        flag.replace("_", "-", 1) if flag[2:7] in ("deny_", "ignor") else flag for flag in flags
    ]
    return launched("-u", f"{upstream.url}/mcp", "--strict", *flags, home=home)


@pytest.mark.rest(but=1)
@pytest.mark.parametrize("way", [["--stdio"], ["--list-tools"], ["--dry-run"]], ids=str)
@pytest.mark.parametrize(("words", "said"), [([], STRICT), (["--deny", "^no"], UNMATCHED)], ids=str)
async def test_strict_applies_to_every_way_to_start(
    way: list[str], words: list[str], said: str, tmp_path: Path
) -> None:
    async with mcp_upstream(tools=TOOLS) as upstream:
        flags = ["-u", f"{upstream.url}/mcp", "--strict", *words, *way]
        ended = await asyncio.to_thread(run, *flags, home=tmp_path)
        assert (ended.returncode, ended.stdout) == (1, "")
        assert ended.stderr == said


ODD = {
    "^no": 'Warning: the pattern "^no" matches no tool\n',
    "rm_*": 'Warning: the pattern "rm_*": _* matches any number of _, even none; ',
    "/^rm/i": 'Warning: the pattern "/^rm/i": Slashes are part of the pattern; ',
}


@pytest.mark.rest(but=1)
@pytest.mark.parametrize("quiet", [[], ["-q"]], ids=str)
async def test_each_odd_pattern_gets_a_warning_even_if_quiet(
    quiet: list[str], tmp_path: Path
) -> None:
    async with mcp_upstream(tools=TOOLS) as upstream:
        denied = [word for pattern in ODD for word in ("--deny", pattern)]
        async with launched("-u", f"{upstream.url}/mcp", *denied, *quiet, home=tmp_path) as running:
            for warning in ODD.values():
                await running.says(re.escape(warning))
            running.interrupt()
            assert await running.exit_code() == 0
            for warning in ODD.values():
                assert running.stderr.count(warning) == 1
            assert ("MCP tool filter: " in running.stderr) != bool(quiet)


@pytest.mark.parametrize("words", [["--deny", "^rm"], ["--allow", "^read"]], ids=str)
async def test_a_filter_with_a_pattern_does_not_warn(words: list[str], tmp_path: Path) -> None:
    async with (
        mcp_upstream(tools=TOOLS) as upstream,
        launched("-u", f"{upstream.url}/mcp", *words, home=tmp_path) as running,
    ):
        await running.serving()
        assert "nothing is denied" not in running.stderr


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
    """The filter that was in force stays."""

    async def main(running: RunningProxy, addon: ToolFilter) -> None:
        with pytest.raises(OptionsError, match=r"no pattern|pattern in deny list"):
            edit(running.master.options)
        [listener] = addon.proxy.listeners.values()
        assert list(listener.snapshot.allowed) == ["read_file"]

    patterns = {"deny": ["^rm"], "allow": ["^read"]}
    await beside(main, tmp_path, **{option: patterns[option]})


async def test_a_pattern_that_matches_no_name_denies_nothing_on_purpose(tmp_path: Path) -> None:
    async def main(running: RunningProxy, addon: ToolFilter) -> None:
        running.master.options.update(deny=["(?!)"])
        [listener] = addon.proxy.listeners.values()
        assert list(listener.snapshot.allowed) == ["read_file", "rm_rf"]

    await beside(main, tmp_path, deny=["^rm"])


async def beside(
    main: Callable[[RunningProxy, ToolFilter], Awaitable[None]], home: Path, **options: object
) -> None:
    addon = ToolFilter(report=lambda _report: None)
    async with (
        mcp_upstream(tools=TOOLS) as upstream,
        proxy(addon, to=upstream.url, home=home, **options) as running,
    ):
        await addon.proxy.ready.wait()
        await main(running, addon)
