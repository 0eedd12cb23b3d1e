"""The process ends with mitmproxy's local mode, which mitmproxy itself does without."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from tests.proxy import SCRIPT
from tests.raw_client import TIMEOUT

_REDIRECTOR = """
import asyncio, sys
from mitmproxy_rs import local

class Redirector:
    def set_intercept(self, spec): pass
    async def wait_closed(self): await asyncio.sleep(SECONDS)

async def start(*_): return Redirector()

local.start_local_redirector = start
from mitmproxy.tools.main import mitmdump
sys.argv[0] = "mitmdump"
mitmdump()
"""


@pytest.mark.parametrize(
    ("seconds", "said"), [(0, "could not start"), (2, "has ended")], ids=["at once", "later"]
)
async def test_the_process_ends_with_local_mode(tmp_path: Path, seconds: int, said: str) -> None:
    """mitmproxy says that it has started, and goes on. (Here it has no rights to start it.)"""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _REDIRECTOR.replace("SECONDS", str(seconds))),
        *("-s", SCRIPT, "--mode", "local:nobody", "--set", f"confdir={tmp_path}"),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(TIMEOUT):
        _, err = await process.communicate()
    assert process.returncode == 1
    assert f"Error: mitmproxy's local mode {said}" in err.decode()
