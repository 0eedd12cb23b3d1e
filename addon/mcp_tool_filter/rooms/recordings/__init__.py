"""Recorded sessions: replay them with other patterns, serve them, and remove their secrets.

For tests and for people who ask what a policy would have done. ``flow_dump`` reads mitmproxy's
dumps, ``line_recorder`` writes sessions over stdio, ``replay`` runs a recording through the filter
without a network, ``recorded_upstream`` serves one to a client, ``scrub`` makes a copy without
secrets. ``pytest_plugin`` and ``mcp_tool_filter.testing`` offer this to tests, ``command`` is
``replay`` and ``scrub``. It plugs in to the table of commands and costs a running filter nothing.
"""
