"""Commands that log in, with a browser that a script plays."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from mcp_tool_filter.adapters.oauth.store import LoginStore
from tests.login_browser import browser_command
from tests.oauth_server import OAuthUpstream
from tests.proxy import REPOSITORY

CALL = b'{"jsonrpc":"2.0","id":8,"method":"tools/call","params":{"name":"read_file"}}'


def command(*args: str, home: Path, browser: str = "", **more: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "mcp_tool_filter", *args],
        cwd=REPOSITORY / "addon",
        env={
            **os.environ,
            "XDG_CONFIG_HOME": str(home),
            "BROWSER": browser or browser_command(),
            **more,
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(*args: str, home: Path, browser: str = "", **more: str) -> tuple[int, str, str]:
    process = command(*args, home=home, browser=browser, **more)
    out, err = process.communicate(timeout=60)
    return process.returncode, out, err


def store_of(home: Path) -> LoginStore:
    return LoginStore(home / "mcp-tool-filter" / "logins")


def shows_no_secret(upstream: OAuthUpstream, *texts: str) -> bool:
    found = upstream.all_secrets()
    assert found
    return not any(secret in text for text in texts for secret in found)
