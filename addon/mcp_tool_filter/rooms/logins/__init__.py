"""OAuth: log in once for all clients, or let each client log in through us.

For users of remote servers. ``login`` is our own client (``discovery``, ``tokens``), ``store``
keeps its tokens in files that only the user can read, ``stored`` finds them for an upstream.
``logins_through`` and ``metadata`` rewrite a server's documents and endpoints, so that a client's
login leads through us. ``command`` is ``mcp-tool-filter login`` and ``logout``. It plugs in as a
``Plug`` (``serving``), as the listener's paths of logins, and as the stored login of a target. A
server without a login pays for one look at the path of requests that are not for its endpoint.
"""
