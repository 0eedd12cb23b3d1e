"""What runs: each filter of this user announces itself, and ``status`` lists them all.

For users who ask "is it filtered, and by what?". ``running`` is a private folder of sockets, one
for each process. ``announcing`` plugs in as a ``Plug``, ``over_stdio`` for sessions over stdio;
``command`` is ``mcp-tool-filter status``. It costs a running filter one socket: it answers only who
asks there.
"""
