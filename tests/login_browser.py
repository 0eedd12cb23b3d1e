"""A browser for logins: it follows redirects. As a program, for ``$BROWSER``, it is this file."""

from __future__ import annotations

import asyncio
import ssl
import sys
import urllib.error
import urllib.request
from pathlib import Path


def browse(url: str) -> int:
    """Open a page as a browser does, with all its redirects; the last status."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with urllib.request.urlopen(url, timeout=20, context=context) as got:
            got.read()
            return int(got.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


async def show(url: str) -> None:
    """What a login calls to show its page."""
    await asyncio.to_thread(browse, url)


def browser_command() -> str:
    """What to set $BROWSER to."""
    return f"{sys.executable} {Path(__file__).resolve()} %s"


if __name__ == "__main__":
    browse(sys.argv[1])
