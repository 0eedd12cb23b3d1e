"""What identifies who asks: the credentials of a client, and those that we add ourselves."""

from __future__ import annotations

import hmac
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from mcp_tool_filter.core.errors import StartError

if TYPE_CHECKING:
    from mcp_tool_filter.core.sockets.client import Login


_OF_NO_USER = re.compile(
    r"_|PWD|OLDPWD|SHLVL|PATH|HOST(NAME)?|TMP|TEMP|TMPDIR|LINES|COLUMNS|WINDOWID|STY|LS_COLORS"
    r"|(WAYLAND_)?DISPLAY|LANG(UAGE)?|INVOCATION_ID|JOURNAL_STREAM|MANAGERPID|PYTHON[A-Z]*"
    r"|(MCP_TOOL_FILTER|TERM|COLORTERM|LC|SSH|XDG_SESSION|XDG_RUNTIME|XDG_SEAT|DBUS|TMUX|VSCODE"
    r"|ITERM|GPG|PYTEST|SYSTEMD|OTEL|npm|NODE)(_.*)?"
)


def credentials_we_add(headers: Iterable[tuple[str, str]], login: Login | None) -> bytes:
    """Return what identifies the operator to an upstream; empty if nothing does."""
    lines = sorted(f"{name.lower()}: {value}" for name, value in headers)
    if login is not None:
        with suppress(StartError):
            lines.append(login.value() or "")
    return "\n".join(lines).encode("utf-8", "surrogateescape")


def credentials_of_command(typed: Mapping[str, str], folder: str | None) -> bytes:
    """Return what identifies the user of a command: its environment and its folder.

    Any variable may name a user, so we leave out only those that belong to a terminal or a process.
    """
    known = {k: v for k, v in os.environ.items() if not _OF_NO_USER.fullmatch(k)}
    lines = [folder or os.getcwd(), *(f"{k}={v}" for k, v in sorted({**known, **typed}.items()))]
    return "\n".join(lines).encode("utf-8", "surrogateescape")


def identify(salt: bytes, credentials: bytes) -> str:
    """Return a short salted hash of credentials."""
    return hmac.digest(salt, credentials, "sha256").hex()[:16]


def each_credential(credentials: bytes) -> list[bytes]:
    """Return each credential by itself, in one spelling: of cookies, each one.

    >>> each_credential(b"authorization: Bearer  x\\ncookie: a=1; b=2")
    [b'authorization: bearer x', b'cookie: a=1', b'cookie: b=2']
    """
    found: dict[bytes, None] = {}
    for line in credentials.split(b"\n"):
        name, _, value = line.partition(b": ")
        parts = value.split(b";") if name == b"cookie" else [value]
        for part in filter(None, map(bytes.split, parts)):
            scheme = [part[0].lower()] if len(part) > 1 else []
            found[name + b": " + b" ".join([*scheme, *part[len(scheme) :]])] = None
    return list(found)
