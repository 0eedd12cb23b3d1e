"""A server behind a login, of the Python SDK 1.30."""

from login_server import main
from mcp.server.fastmcp import FastMCP

main(FastMCP)
