"""Servers that are commands, and clients that only start commands.

For most users: a client's entry starts us, and we start the server. ``relay`` passes lines between
both (``judge`` decides, ``waiting`` keeps their order, ``child`` is the command); ``pipe`` is one
client over stdio in front of a URL; ``bridge`` and ``sessions`` serve a command over HTTP.
``lines`` cuts lines out of bytes. ``command`` and ``pipe_command`` are what the launcher runs
without a port. It plugs in to the launcher, and as the connection of a site whose upstream is a
command. It costs a thread for each direction, and a process for each command; it never imports
mitmproxy.
"""
