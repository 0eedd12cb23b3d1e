"""``mcp-tool-filter`` without arguments: the servers of all clients at a glance.

For users with several servers. The screen appears before the servers are asked, and fills as they
answer; a key puts the filter in front of all of them, or takes it back. ``servers`` says who is
there, ``screen`` draws and reads keys, ``command`` connects both. It uses the rows of ``status``
and the changes of ``wrap``. It plugs in to the launcher, which opens it if there are no arguments.
It costs a running filter nothing; the first paint waits for files, and for no server.
"""
