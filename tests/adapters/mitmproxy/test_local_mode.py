"""The process ends with mitmproxy's local mode, which mitmproxy itself does without."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from tests.proxy import SCRIPT
from tests.raw_client import TIMEOUT

_REDIRECTOR = """
import asyncio, pathlib, sys
from mitmproxy_rs import local

class Redirector:
    def set_intercept(self, spec): pass
    async def wait_closed(self):
        while not pathlib.Path(sys.argv[-1], "closed").exists():
            await asyncio.sleep(0.01)

async def start(*_): return Redirector()

local.start_local_redirector = start
from mitmproxy.tools.main import mitmdump
sys.argv[0] = "mitmdump"
mitmdump()
"""


@pytest.mark.parametrize(
    ("at_once", "said"), [(True, "could not start"), (False, "has ended")], ids=["at once", "later"]
)
async def test_the_process_ends_with_local_mode(tmp_path: Path, at_once: bool, said: str) -> None:
    """mitmproxy says that it has started, and goes on. (Here it has no rights to start it.)"""
    closed = tmp_path / "closed"
    if at_once:
        closed.touch()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _REDIRECTOR.replace("sys.argv[-1]", repr(str(tmp_path)))),
        *("-s", SCRIPT, "--mode", "local:nobody", "--set", f"confdir={tmp_path}"),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr
    async with asyncio.timeout(TIMEOUT):
        err = b"" if at_once else await process.stderr.readuntil(b"Filtering MCP of local programs")
        closed.touch()
        err += (await process.communicate())[1]
    assert process.returncode == 1
    assert f"Error: mitmproxy's local mode {said}" in err.decode()
