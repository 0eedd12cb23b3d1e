"""The paths at which we stand in for the authorization server."""

from __future__ import annotations

from typing import Final

AUTHORIZE: Final = "/authorize"
TOKEN: Final = "/token"
REGISTER: Final = "/register"
"""The default paths of MCP 2025-03-26 (section 2.3.3)."""
CALLBACK: Final = "/mcp-tool-filter/callback/"
"""The prefix of our own redirect URIs, one for each registration."""
