"""MCP Tool Filter: removes tools from an MCP server; everything else passes through unchanged."""

__version__ = "0.1.0"
