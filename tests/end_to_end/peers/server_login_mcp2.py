"""A server behind a login, of the Python SDK 2.3."""

from login_server import main
from mcp.server.mcpserver import MCPServer

main(MCPServer)
