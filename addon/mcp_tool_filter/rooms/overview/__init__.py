"""``mcp-tool-filter`` without arguments: the servers of all clients at a glance.

For users with several servers. The screen appears before the servers are asked, and fills as they
answer; a key puts the filter in front of all of them, or takes it back. ``servers`` says who is
there, ``screen`` draws and reads keys, ``command`` connects both. It uses the rows of ``status``
and the changes of ``wrap``. The launcher opens it; nothing else needs it.
"""
