"""Where we stand for the authorization server."""

from __future__ import annotations

from typing import Final

AUTHORIZE: Final = "/authorize"
TOKEN: Final = "/token"
REGISTER: Final = "/register"
"""Those that MCP 2025-03-26 takes for granted (section 2.3.3)."""
CALLBACK: Final = "/mcp-tool-filter/callback/"
"""Below it are our own redirect URIs, one for each registration."""
