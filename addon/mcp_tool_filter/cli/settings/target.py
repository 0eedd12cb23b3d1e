"""What the settings say of the upstream, for whoever asks it without mitmproxy."""

from __future__ import annotations

from ssl import SSLContext

from mcp_tool_filter.adapters.fetch.upstream import Target, make_tls_context
from mcp_tool_filter.cli.settings.settings import Settings, in_our_words


def target_of(settings: Settings) -> Target:
    """Return what to fetch from. Raises StartError for what was set wrong."""
    config = settings.config()
    return Target(
        url=settings.origin or settings.upstream,
        endpoint=config.endpoint,
        headers=config.upstream_headers,
        connect_timeout=config.connection_timeout,
        list_timeout=config.tool_list_timeout,
        tls=_tls_of(settings) if settings.origin.startswith("https:") else None,
        limit=config.limits.message,
        uses_login=config.uses_login,
    )


def _tls_of(settings: Settings) -> SSLContext:
    with in_our_words():
        return make_tls_context(
            insecure=settings.insecure,
            trusted_ca=settings.ca,
            client_cert=settings.client_cert,
        )
