"""Several servers of one file, each at its own path, in one process.

For users with many servers (``mcp-tool-filter serve``). ``servers`` starts a ``Proxy`` for each
server, routes each request by its path, and reads the file again at SIGHUP; one server that cannot
start harms no other. ``mount`` rewrites the paths in what an upstream sends. ``command`` is the
command. It plugs in as the service that ``core/sockets`` serves, and as the listener's ``mount``. A
request costs one look into a table more than with one server.
"""
