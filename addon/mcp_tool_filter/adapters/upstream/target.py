"""The target of a fetch: what to fetch a tool list from, and with which login.

It knows where logins are stored; what reads them is imported only if there are some.
"""

from __future__ import annotations

import os
import ssl
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from mcp_tool_filter.adapters.sockets.client import Login
from mcp_tool_filter.policy.config import Config

if TYPE_CHECKING:
    from mcp_tool_filter.adapters.sockets.server import AnswerRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What to fetch a tool list from."""

    url: str
    """Scheme, host and port."""
    endpoint: str | None
    """Path and query, if the user has configured them."""
    headers: tuple[tuple[str, str], ...]
    """Sent with every request."""
    connect_timeout: float
    """Seconds until the upstream has introduced itself."""
    list_timeout: float
    """Seconds for all pages of the tool list."""
    tls: ssl.SSLContext | None
    limit: int
    """Bytes of one message."""
    uses_login: bool = False
    """Use a stored login for the upstream, if there is one."""
    answer: AnswerRequest | None = None
    """Answers requests in this process: the upstream is a command, and nothing is at the URL."""


def target_for(config: Config, url: str, tls: ssl.SSLContext | None) -> Target:
    """Return the target. All hosts must use this function, or the upstream would be asked twice."""
    return Target(
        url=url,
        endpoint=config.endpoint,
        headers=config.upstream_headers,
        connect_timeout=config.connection_timeout,
        list_timeout=config.tool_list_timeout,
        tls=tls,
        limit=config.limits.message,
        uses_login=config.uses_login,
    )


def login_to(target: Target) -> Login | None:
    """Return the stored login for the target, or None.

    The operator's own Authorization has priority. Raises StartError if logins cannot be read.
    """
    if not target.uses_login or has_authorization(target) or not has_logins():
        return None
    from mcp_tool_filter.adapters.oauth.tokens import credentials_for  # few have a login

    return credentials_for(target.url + (target.endpoint or ""))


def has_authorization(target: Target) -> bool:
    return any(name.lower() == "authorization" for name, _ in target.headers)


def default_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder of logins, in the user's configuration folder."""
    if sys.platform == "win32":
        base = environment.get("APPDATA") or str(Path.home() / "AppData" / "Roaming")
    else:
        base = environment.get("XDG_CONFIG_HOME") or str(Path.home() / ".config")
    return Path(base) / "mcp-tool-filter" / "logins"


def registrations_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder of the clients' registrations."""
    return default_folder(environment).with_name("registrations")


def has_logins() -> bool:
    """Tell whether the user has ever logged in anywhere."""
    try:
        return default_folder(os.environ).is_dir()
    except (OSError, RuntimeError):  # the user has no home folder
        return False
