"""Find the requests of a forward proxy that are MCP; all others pass untouched."""
