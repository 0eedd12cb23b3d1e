"""Show a URL to people without its secrets, because what we print ends in log files.

>>> shown_url("https://bob:pw@mcp.example/s/0f8fad5b-d9cb-469f-a165-70867728950e/mcp?key=k&q=1")
'https://…@mcp.example/s/…/mcp?key=…&q=…'

We rather hide too much here than too little: nobody parses what we show.
"""

from __future__ import annotations

import re
from typing import Final

CUT: Final = "…"
_RUN = re.compile(r"[A-Za-z0-9]+")
_SEPARATORS = re.compile(r"[-_.~]")
_CHANGE = re.compile(r"(?<=[0-9])[A-Za-z]|(?<=[A-Za-z])[0-9]")
# Makers of tokens say what they are in a prefix: ghp_…, sk-…, acme-pat-…
_SAYS_SO = re.compile(
    r"(?<![A-Za-z0-9])(?:(?:sk|rk|pk|xox[a-z]|xapp)[-_][A-Za-z0-9_-]{10}"
    r"|[A-Za-z0-9]{1,16}[-_.:][A-Za-z0-9]{16})"
)


def shown_url(url: str) -> str:
    """Return a URL, or a path, without userinfo, values of its query, and parts that look random.

    >>> shown_url("http://localhost:3000/mcp"), shown_url("/mcp?token=t-1#x=1")
    ('http://localhost:3000/mcp', '/mcp?token=…#…')
    """
    rest, hash, fragment = url.partition("#")
    rest, mark, query = rest.partition("?")
    scheme, slashes, rest = rest.partition("//") if "//" in rest else ("", "", rest)
    host, slash, path = rest.partition("/")
    if "@" in host:
        host = f"{CUT}@{host.rpartition('@')[2]}"
    shown = "/".join(CUT if looks_secret(one) else one for one in path.split("/"))
    values = re.sub("[^&]+", _without_value, query)
    return f"{scheme}{slashes}{host}{slash}{shown}{mark}{values}{hash}{fragment and CUT}"


def _without_value(parameter: re.Match[str]) -> str:
    name, equals, _ = parameter[0].partition("=")
    return f"{name}={CUT}" if equals and name else CUT


def may_hold_a_secret(url: str) -> bool:
    """Tell whether a part of a URL could be a secret."""
    return "@" in url or "?" in url or shown_url(url) != url


def looks_secret(segment: str) -> bool:
    """Tell whether a part of a path has the shape of a secret, rather than of a name.

    >>> [looks_secret(one) for one in ("modelcontextprotocol", "2026-07-28", "Zk3v9QpX7d", "c" * 9)]
    [False, False, True, False]
    """
    if len(segment) < 8:
        return False
    plain = re.sub(r"%[0-9a-fA-F]{2}", "-", segment)
    runs = _RUN.findall(plain)
    if any(_is_random(run) for run in runs):
        return True
    joined = _SEPARATORS.sub("", plain)
    if len(_CHANGE.findall(joined)) >= 4 and len(joined) >= 16 and joined.isalnum():
        return True
    return _SAYS_SO.search(segment) is not None


def _is_random(run: str) -> bool:
    """Judge letters and digits without a break."""
    if len(run) >= 24 or (run.isdigit() and len(run) >= 16):
        return True
    is_mixed = run != run.lower() and run != run.upper()
    if len(run) >= 20 and (is_mixed or any(one.isdigit() for one in run)):
        return True
    return len(run) >= 8 and len(_CHANGE.findall(run)) >= 3
