"""``-s tool_filter.py``: either the filter is there, or there is no proxy.

The addon is a stand-in, in a folder with a copy of the script: here it is only about loading.
"""

from __future__ import annotations

import os
import shutil
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from mitmproxy.version import VERSION

from tests.proxy import SCRIPT, RunningTool, tool
from tests.raw_client import get, raw_client

type Started = AbstractAsyncContextManager[RunningTool]

TOOLS = ["mitmdump", "mitmweb", "mitmproxy"]
MODE = ("--mode", "reverse:http://127.0.0.1:1", "--set", "connection_strategy=lazy")
ADDON_FILE = "mcp_tool_filter/rooms/mitmproxy/addon.py"
CANNOT_START = f"Error: The tool filter cannot start in mitmproxy {VERSION}\n"

ADDON = """
import logging
from mitmproxy import ctx, exceptions, http

class ToolFilter:
    def __init__(self, **given):
        pass

    def load(self, loader):
        loader.add_option("number", int, 1, "A number.")

    def configure(self, updated):
        if ctx.options.number == 13:
            raise exceptions.OptionsError("thirteen brings bad luck")
        if ctx.options.number == 14:
            raise RuntimeError("Error: fourteen\\\\ntoo large")
        if ctx.options.number == 15:
            raise KeyError

    def running(self):
        chain = [type(addon).__name__ for addon in ctx.master.addons.chain]
        before_scripts = chain.index("ToolFilter") < chain.index("ScriptLoader")
        logging.info(f"filter runs, {chain.count('ToolFilter')} of it, first: {before_scripts}")

    def request(self, flow):
        flow.response = http.Response.make(200, b"filtered")
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder that holds the script, and beside it a package with the stand-in."""
    file = tmp_path / "checkout" / ADDON_FILE
    file.parent.mkdir(parents=True)
    for package in [*file.parents][:3]:
        (package / "__init__.py").touch()
    file.write_text(ADDON.replace("\\\\", "\\"))
    shutil.copy(SCRIPT, tmp_path / "checkout")
    return tmp_path / "checkout"


async def is_filtered(running: RunningTool) -> bool:
    async with raw_client(running.port) as client:
        return (await client.ask(get())).body == b"filtered"


def script(folder: Path, name: str = "mitmdump", *words: str, patch: str = "") -> Started:
    """Start it with the script in a folder; ``patch`` runs before all else."""
    (folder / "sitecustomize.py").write_text(patch)
    own = {"PYTHONPATH": str(folder)} if patch else None
    given = ["-s", str(folder / "tool_filter.py"), *MODE, *words]
    return tool(name, *given, home=folder, environment=own)


async def end_of(it: Started) -> tuple[int, str]:
    async with it as running:
        return await running.exit_code(), running.stderr


@pytest.mark.rest(but=1)
@pytest.mark.parametrize("name", TOOLS)
async def test_the_script_loads_from_a_bare_checkout(name: str, checkout: Path) -> None:
    async with script(checkout, name) as running:
        await running.listening()
        assert await is_filtered(running)


@pytest.mark.rest(but=1)
@pytest.mark.parametrize(("name", "number", "reason"), [
    ("mitmdump", "abc", CANNOT_START + "Failed to parse option number: not an integer: abc\n"),
    *((name, "13", CANNOT_START + "thirteen brings bad luck\n") for name in TOOLS),
    ("mitmdump", "14", "Error: fourteen\ntoo large\n"),
    ("mitmdump", "15", CANNOT_START + "KeyError\n"),
])  # fmt: skip
async def test_the_proxy_does_not_run_without_the_filter(
    name: str, number: str, reason: str, checkout: Path
) -> None:
    assert await end_of(script(checkout, name, "--set", f"number={number}")) == (1, reason)


@pytest.mark.parametrize("name", ["mitmdump", "mitmproxy"])
async def test_a_missing_dependency_says_how_to_install_it(name: str, checkout: Path) -> None:
    (checkout / ADDON_FILE).write_text("import orjsonx.parts\n")
    how = "pipx inject mitmproxy orjsonx, or pip install orjsonx"
    reason = f"Error: The tool filter needs orjsonx\nInstall it beside mitmproxy: {how}\n"
    assert await end_of(script(checkout, name)) == (1, reason)


async def test_the_script_without_its_package_says_so(tmp_path: Path) -> None:
    """Hidden from a Python in which it is installed."""
    shutil.copy(SCRIPT, tmp_path)
    how = "Leave tool_filter.py in its folder, or install our package: pip install ."
    reason = f"Error: The tool filter needs mcp_tool_filter\n{how}\n"
    hide = "import sys; sys.modules['mcp_tool_filter'] = None"
    assert await end_of(script(tmp_path, patch=hide)) == (1, reason)


async def test_an_old_mitmproxy_is_named(checkout: Path) -> None:
    """The package cannot even be imported there."""
    (checkout / ADDON_FILE).write_text("from mitmproxy.connection import Nothing")
    patch = "import mitmproxy.version; mitmproxy.version.VERSION = '11.1.3'"
    async with script(checkout, patch=patch) as it:
        assert await it.exit_code() == 1
    what, why = it.stderr.splitlines()[-2:]
    assert what == "Error: The tool filter cannot start in mitmproxy 11.1.3"
    assert why.startswith("cannot import name 'Nothing'")


@pytest.mark.rest(but=1)
@pytest.mark.parametrize("name", ["mitmdump", "mitmweb"])
async def test_changing_or_removing_the_file_unloads_no_filter(name: str, checkout: Path) -> None:
    file = checkout / "tool_filter.py"

    async def still_filters(running: RunningTool, said: str) -> None:
        await running.says(said)
        assert await is_filtered(running)
        assert running.process.returncode is None

    async with script(checkout, name) as running:
        await running.listening()
        await running.says("filter runs")
        later = file.stat().st_mtime + 10
        os.utime(file, (later, later))
        await still_filters(running, r"(?s)Loading script.*Loading script")
        file.write_text("this is no Python")
        os.utime(file, (later + 10, later + 10))  # mitmproxy looks only at what is newer
        await still_filters(running, "error in script")
        file.unlink()
        await still_filters(running, "Removing script")


async def test_the_script_is_loaded_once_and_before_others(checkout: Path) -> None:
    """Given by two paths; by the same path twice mitmproxy itself refuses it."""
    other = checkout / "other.py"
    other.write_text("def request(flow):\n    flow.response = None\n")
    (checkout / "again").symlink_to(checkout)
    scripts = [other, checkout / "tool_filter.py", checkout / "again" / "tool_filter.py"]
    arguments = [word for path in scripts for word in ("-s", str(path))]

    async with tool("mitmdump", *arguments, *MODE, home=checkout) as running:
        await running.listening()
        await running.says("filter runs, 1 of it, first: True")


async def test_a_script_added_at_run_time_filters_at_once(checkout: Path) -> None:
    script = str(checkout / "tool_filter.py")
    other = checkout / "other.py"
    other.write_text(
        "from mitmproxy import ctx\n"
        "def request(flow):\n"
        f"    if {script!r} not in ctx.options.scripts:\n"
        f"        ctx.options.update(scripts=[*ctx.options.scripts, {script!r}])\n"
    )

    async with tool("mitmdump", "-s", str(other), *MODE, home=checkout) as running:
        await running.listening()
        assert not await is_filtered(running)
        await running.says("filter runs, 1 of it, first: True")
        assert await is_filtered(running)
