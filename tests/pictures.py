"""The pictures of the README and the pages: made by tests, and checked by them.

Beside a picture in ``.pictures`` is its text, in a file of the same name that ends with ``.txt``.
The test that makes the picture compares this text with what is there today, without what differs
from run to run. Make the pictures anew after a change with

    MCP_TOOL_FILTER_PICTURES=1 python -m pytest -q tests/end_to_end/test_pictures.py

>>> steady("1.0 KB, 12 ms, 09:30:00, 2026-11-20, 127.0.0.1:50000, 3 tools")
'1.0 KB, # ms, #, #, 127.0.0.1:#, 3 tools'
"""

from __future__ import annotations

import os
import re

from tests.browser import Page
from tests.proxy import REPOSITORY

PICTURES = REPOSITORY / ".pictures"
IS_MADE = "MCP_TOOL_FILTER_PICTURES" in os.environ
"""The tests make the pictures, and check nothing."""

_UNSTEADY = (
    (re.compile(r"\d{4}-\d\d-\d\d|\b\d\d:\d\d(?::\d\d)?\b"), "#"),
    (re.compile(r"(127\.0\.0\.1|localhost):\d+"), r"\1:#"),
    (re.compile(r"\b\d+(?:\.\d+)?( ?)(ms|s|µs|min)\b"), r"#\1\2"),
    (re.compile(r"\b\d+(?:\.\d+)?(k?b)\b"), r"#\1"),  # as mitmweb writes sizes
    (re.compile(r"(mitmproxy|reverse:http://\S+@) ?[\d.]+"), r"\1#"),
    (re.compile(r"^\d+\.\d+$", re.MULTILINE), "#"),  # milliseconds, as our page writes them
    (re.compile(r"\b[0-9a-f]{16,}\b"), "#"),
)


def steady(text: str) -> str:
    """Return the text without times, durations, ports and keys."""
    for pattern, replacement in _UNSTEADY:
        text = pattern.sub(replacement, text)
    return text


def check_picture(page: Page, name: str) -> None:
    """Compare what the page shows with the picture; or take the picture."""
    shown = "\n".join(line.strip() for line in steady(page.text).splitlines() if line.strip())
    picture, words = PICTURES / f"{name}.png", PICTURES / f"{name}.txt"
    if IS_MADE:
        page.screenshot(picture)
        words.write_text(f"{shown}\n", "utf-8")
    assert f"{shown}\n" == words.read_text("utf-8"), "make the picture anew: see tests/pictures.py"
    assert picture.stat().st_size > 10_000
