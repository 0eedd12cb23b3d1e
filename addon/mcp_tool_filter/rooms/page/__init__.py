"""The page: live calls, tools with switches, approvals, and what the policy saves.

For people who want to see and change the policy in a browser (``--dashboard PORT``, mitmweb,
``status --open``). ``dashboard`` answers the page's requests, ``timeline`` keeps the last entries,
``saving`` writes patterns into the config file; ``files`` has the page itself. It plugs in as a
``Plug`` (``page``), which gets the entries of the observers. The page asks once a second; without a
reader, it costs a short list of entries.
"""
