"""No request that some server could take for a call of the denied tool gets through ``/mcp``."""

from __future__ import annotations

import http.client
import json
from contextlib import suppress
from pathlib import Path

from tests.attacks.corpus import cells
from tests.raw_upstream import TIMEOUT
from tests.rooms.merged.talking import Talking
from tests.rooms.serve.test_serve import serving
from tests.session_upstream import session_upstream

DENIED = "delete_file"


def test_no_row_of_the_corpus_reaches_the_server(tmp_path: Path) -> None:
    """Each row is sent with the exposed name, and with the server's own, in a session."""
    bodies = [
        (label, one.replace(b"wipe_disk", name).replace(b"\\u0077ipe_disk", name))
        for section in ("calls", "calls that are no UTF-8, or long")
        for label, found in cells("requests", section)
        for one in found[:1]
        for name in (b"far_delete_file", b"delete_file")
    ]
    assert len(bodies) > 100
    with session_upstream() as remote:
        text = f'[servers.far]\nurl = "{remote.url}"\ndeny = ["^delete_"]\n'
        with serving(tmp_path, text) as it:
            it.says("far: http")
            client = Talking(it.port, "/mcp", revision="2025-03-26").opens()
            client.call("far_read_file")
            remote.forget()
            for label, body in bodies:
                connection = http.client.HTTPConnection("127.0.0.1", it.port, timeout=TIMEOUT)
                with suppress(http.client.HTTPException, ConnectionError):
                    connection.request("POST", "/mcp", body, client.headers({}))
                    connection.getresponse().read()
                connection.close()
                reached = [one for one in remote.calls() if DENIED in json.dumps(one.message)]
                assert reached == [], label
            assert b"result" in client.call("far_read_file"), "it still works"
