"""A server of FastMCP over stdio."""

from fastmcp import FastMCP

server = FastMCP("fixtures-fastmcp")


@server.tool
def read_file(path: str) -> str:
    """Read a file."""
    return f"contents of {path}"


@server.tool
def delete_file(path: str) -> str:
    """Delete a file."""
    return f"deleted {path}"


if __name__ == "__main__":
    server.run(show_banner=False)
