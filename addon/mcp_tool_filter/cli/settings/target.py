"""The fetch target in the settings, for a fetch without mitmproxy."""

from __future__ import annotations

from ssl import SSLContext

from mcp_tool_filter.adapters.fetch.target import Target, target_for
from mcp_tool_filter.adapters.fetch.tls import make_tls_context
from mcp_tool_filter.cli.settings.settings import Settings, in_our_words


def target_of(settings: Settings) -> Target:
    """Return the target of the fetch. Raises StartError for wrong settings."""
    tls = _tls_of(settings) if settings.origin.startswith("https:") else None
    return target_for(settings.config(), settings.origin or settings.shown_upstream, tls)


def _tls_of(settings: Settings) -> SSLContext:
    with in_our_words():
        return make_tls_context(
            insecure=settings.insecure,
            trusted_ca=settings.ca,
            client_cert=settings.client_cert,
        )
