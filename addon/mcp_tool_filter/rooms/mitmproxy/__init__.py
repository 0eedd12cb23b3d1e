"""The host inside mitmproxy: the same engine as one layer for each connection.

For people who watch the traffic in mitmweb, record it, or use other addons. ``addon`` is what
``addon/tool_filter.py`` registers; ``layer`` feeds the engine, ``flows`` shows exchanges as flows,
``hooks`` and ``shown`` run other addons' hooks, ``options`` declares our options there.
``selftest`` pushes a denied call and a list through the layers at every start, and ends the process
if either gets through. ``views`` and ``content_view`` are what mitmweb shows. ``command`` starts it
from the launcher (``--inspect``, ``--record``, ``run``). Importing mitmproxy takes 0.4 s and 45 MB;
nothing else imports this room.
"""
