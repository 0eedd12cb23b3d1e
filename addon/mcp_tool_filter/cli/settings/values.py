"""Parse the values of flags. Each function raises UsageError, which quotes what was typed."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from urllib.parse import urlsplit

from mcp_tool_filter.cli.settings.usage import UsageError

_LIKE_THIS = "It must look like http://localhost:3000/mcp"


def split_command(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:  # a quote is not closed
        raise UsageError("--upstream-cmd cannot be split into words", why=str(error)) from None


def parse_variable(text: str) -> tuple[str, str]:
    """Parse KEY=VALUE. No error quotes the value."""
    name, equals, value = text.partition("=")
    if not equals or not name or "\0" in text:
        raise UsageError("Write --env as KEY=VALUE")
    return name, value


def parse_count(flag: str, text: str) -> int:
    if not re.fullmatch(r"\d{1,5}", text) or int(text) == 0:
        raise UsageError(f"--{flag} cannot be {text}", why="It must be a number, 1 or more")
    return int(text)


def parse_port(text: str) -> int:
    if not re.fullmatch(r"\d{1,5}", text) or int(text) > 65535:
        raise UsageError(f"--port cannot be {text}", why="It must be a number from 0 to 65535")
    return int(text)


def is_on(one: Mapping[str, str], name: str) -> bool:
    match one.get(name, "false").lower():
        case "true" | "yes" | "on" | "1":
            return True
        case "false" | "no" | "off" | "0":
            return False
    raise UsageError(f"{name} cannot be {one[name]}", why="It must be true or false")


def one_of(name: str, text: str, choices: Sequence[str]) -> str:
    if text not in choices:
        raise UsageError(
            f"--{name} cannot be {text}", why="It must be one of: " + ", ".join(choices)
        )
    return text


def split_upstream(url: str) -> tuple[str, str]:
    """Split a URL into its origin, and its path and query."""
    if not url:
        why = "Give its URL: mcp-tool-filter --upstream http://localhost:3000/mcp"
        raise UsageError("Missing --upstream URL", why=why)
    if re.search(r"\s", url.strip()):
        command = f"A server's command comes after --: mcp-tool-filter -- {url.strip()}"
        why = _LIKE_THIS if "://" in url else command  # the URL may contain a password
        raise UsageError("--upstream is not a valid URL", why=why)
    if not re.match(r"[a-z+]+://", url, re.IGNORECASE):
        url = f"http://{url}"
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError:  # its text may quote a password
        raise UsageError("--upstream is not a valid URL", why=_LIKE_THIS) from None
    if parts.username is not None:
        why = 'Send them as a header: --header "Authorization: Basic $CREDENTIALS"'
        raise UsageError("Credentials in --upstream would be shown", why=why)
    if parts.scheme.lower() not in ("http", "https") or not host:
        raise UsageError(_problem_in(parts.scheme, host), why=_LIKE_THIS)
    origin = f"{parts.scheme.lower()}://{f'[{host}]' if ':' in host else host}"
    path = parts.path + (f"?{parts.query}" if parts.query else "")
    return origin + (f":{port}" if port else ""), "" if path == "/" else path


def _problem_in(scheme: str, host: str) -> str:
    if host:
        return f"Unsupported URL scheme: {scheme}"
    return "--upstream is not a valid URL"


def with_scheme(url: str) -> str:
    """Add a missing scheme: https, or http for this machine.

    >>> with_scheme("mcp.example/mcp"), with_scheme("localhost:3000/mcp")
    ('https://mcp.example/mcp', 'http://localhost:3000/mcp')
    """
    if re.match(r"[a-z+]+://", url, re.IGNORECASE):
        return url
    from mcp_tool_filter.policy.config import is_loopback

    host = urlsplit(f"//{url}").hostname or ""
    return f"{'http' if is_loopback(host) else 'https'}://{url}"
