"""MCP Tool Filter: removes tools from an MCP server, passes all else as it came."""

__version__ = "0.1.0"
