"""Forward mode: a client's own servers are filtered on their way, and no URL changes.

For whoever starts a client through us (``mcp-tool-filter run -- CLIENT``), or uses mitmproxy's
regular, upstream, transparent, SOCKS or local modes. Only named hosts are read: each is a reverse
proxy under its own name. All other connections pass unread.

``hosts`` knows the names, ``sites`` opens a site for each of them, ``client`` frames a connection
with requests to many hosts, and ``interception`` is the addon and the layers in mitmproxy. ``run``
and ``command`` start the client. It plugs in to the room ``mitmproxy``, which asks it for the layer
of each connection, and to the engine: ``ForwardClient`` is an ``H1Client``, and ``Unread`` is what
connections know as ``Asking``. Its option is ``hosts``. Without it, both cost nothing.
"""
