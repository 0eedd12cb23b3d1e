"""Set the variables that make a client send its traffic through us and trust our certificates.

Programs read different variables. A client that reads none of them bypasses us; ``expected``
detects that.

>>> found = environment_for({"NO_PROXY": "*"}, "http://127.0.0.1:1", Path("ca.pem"))
>>> found["https_proxy"], found["NO_PROXY"], found["NODE_USE_ENV_PROXY"]
('http://127.0.0.1:1', '', '1')
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePath

_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "WS_PROXY", "WSS_PROXY")
_EXCEPTIONS = ("NO_PROXY",)
TRUSTED = (
    "SSL_CERT_FILE",  # OpenSSL, and with it Python; Go; curl; uv
    "REQUESTS_CA_BUNDLE",  # Python's requests
    "CURL_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "DENO_CERT",
    "GIT_SSL_CAINFO",
    "AWS_CA_BUNDLE",
    "PIP_CERT",
    "CARGO_HTTP_CAINFO",
    "NIX_SSL_CERT_FILE",
    "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH",
)
"""Variables that name a file of certificates to trust."""
_MCP_REMOTE = re.compile(r"mcp-remote(?:@.*)?")
_ENABLE = "--enable-proxy"


def environment_for(before: Mapping[str, str], proxy: str, certificates: Path) -> dict[str, str]:
    """Return an environment that makes a client send its traffic through us.

    We set each variable in upper and lower case, because programs differ in which they read.
    """
    proxies = dict.fromkeys(_PROXIES, proxy)
    exceptions = dict.fromkeys(_EXCEPTIONS, "")
    both = {**proxies, **exceptions}
    lower = {name.lower(): value for name, value in both.items()}
    trusted = dict.fromkeys(TRUSTED, str(certificates))
    return {**before, **both, **lower, **trusted, "NODE_USE_ENV_PROXY": "1"}


def command_for(command: Sequence[str]) -> list[str]:
    """Return the command; mcp-remote uses a proxy only if a flag says so.

    >>> command_for(["npx", "-y", "mcp-remote@latest", "https://mcp.example/mcp"])
    ['npx', '-y', 'mcp-remote@latest', 'https://mcp.example/mcp', '--enable-proxy']
    """
    words = list(command)
    return [*words, _ENABLE] if is_mcp_remote(words) and _ENABLE not in words else words


def is_mcp_remote(command: Sequence[str]) -> bool:
    """Tell whether a command runs mcp-remote, itself or by way of npx and the like."""
    names = (PurePath(word.replace("\\", "/")).name for word in command)
    return any(_MCP_REMOTE.fullmatch(name) for name in names)


def uses_proxy(command: Sequence[str]) -> bool:
    """Tell whether mcp-remote is told to use a proxy."""
    return _ENABLE in command
