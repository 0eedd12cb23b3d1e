"""Which requests of a forward proxy are MCP; all others pass untouched."""
