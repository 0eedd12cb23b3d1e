"""The files in which clients list their servers: find, read and edit them.

For users who do not want to edit them by hand (``clients``, ``wrap``, ``unwrap``, ``config``).
``files`` knows where each client has them; ``entries`` turns a server's entry into a filtered one
and back; ``moving`` moves it into the file of servers. ``jsonc``, ``toml_text`` and ``yaml_text``
change one entry and leave all other bytes alone. It plugs in to the table of commands only, and
costs a running filter nothing.
"""
