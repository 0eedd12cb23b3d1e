"""Find secrets in text, and replace them. Pure: no I/O, no mitmproxy.

For whoever shows or keeps a text that others wrote: the log, traces, recordings, the page. They
call ``redact`` or ``redacted_beginning``; it plugs in nowhere else, and costs a filter that shows
nothing nothing at all.

``names`` knows the names of secrets, ``shapes`` what secrets look like, ``views`` decodes escapes
without losing the place, and ``finder`` parses JSON, forms, URLs, headers and the rest.

>>> from mcp_tool_filter.rooms.secrets.finder import redact
>>> redact('{"path": "/a", "api_key": "k-12345", "note": "see https://bob:pw@host/"}')
'{"path": "/a", "api_key": "[secret]", "note": "see https://[secret]:[secret]@host/"}'
"""
