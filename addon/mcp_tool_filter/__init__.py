"""MCP Tool Filter: removes tools from an MCP server; everything else passes through unchanged."""

__version__ = "1.0.0"
IS_PUBLISHED = False
"""True once package indexes have ``mcp-tool-filter``. Until then nobody may install it from one:
whoever registers the name would run code at our users."""


def how_to_run(python: str) -> str:
    """Return the command with which uv runs us with a Python of this version."""
    before, source = ("", "") if IS_PUBLISHED else ("in your clone, ", "--from . ")
    return f"{before}uvx --python {python} {source}mcp-tool-filter"


def how_to_install(extra: str) -> str:
    """Return the command that installs us with an extra."""
    return f"pip install '{'mcp-tool-filter' if IS_PUBLISHED else '.'}[{extra}]'" + (
        "" if IS_PUBLISHED else " (in your clone)"
    )
