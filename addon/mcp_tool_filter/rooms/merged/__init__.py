"""Many servers as one: ``/mcp``, profiles, and ``serve --stdio``.

For users who want one entry in their client and the tools of all servers behind it. Towards its
client it is a server; towards each server it is a client of that server's own listener in this
process, so it shows and calls nothing that ``/NAME/mcp`` would not. It knows names, ids and
sessions, and no policy but a profile's own choice.

``lists``, ``uris`` and ``messages`` are pure. ``visits`` asks one server in this process,
``server_session`` is our session there. ``session`` is one client's talk with all servers, with its
lists (``client_lists``) and requests (``client_requests``). ``service`` serves HTTP, ``stdio``
lines.

It plugs in at ``Servers.more`` (services by path), ``Servers.on_change`` and the command ``serve``;
``examine`` serves ``doctor``. A call costs 1.4 times one at ``/NAME/mcp``: a plain one is not
parsed here (``rooms/lane``), any other is parsed and edited once more.
"""
