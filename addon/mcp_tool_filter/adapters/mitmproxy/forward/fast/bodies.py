"""Pass large bodies through HTTP/1 connections with fewer copies.

mitmproxy appends received bytes to a buffer, from which h11 extracts them, with four copies in
total. But in the middle of a body, the received bytes are the next part of the body. Also,
mitmproxy copies a large chunk to prepend its length; here we send the three parts one by one.

We use these internals: the buffer, the reader and the states of ``Http1Connection``, how
``Http1Server.send`` writes a chunk, and how h11's readers count.
"""

from __future__ import annotations

from h11._readers import ChunkedReader, ContentLengthReader, Http10Reader
from mitmproxy.proxy import commands
from mitmproxy.proxy.layers.http._base import ReceiveHttp
from mitmproxy.proxy.layers.http._events import ResponseData
from mitmproxy.proxy.layers.http._http1 import Http1Connection, Http1Server

LARGE = 64 * 1024  # bytes; copying fewer is faster than sending three parts

type Commands = list[commands.Command]


def carry_received(connection: Http1Connection, data: bytes) -> Commands | None:
    """Return the commands for received bytes if they are the middle of a body, else None."""
    if connection.state != connection.read_body or connection.buf or not data:
        return None
    if connection.stream_id is None or not _count(connection.body_reader, len(data)):
        return None
    return [ReceiveHttp(connection.ReceiveData(connection.stream_id, data))]


def _count(reader: object, size: int) -> bool:
    """Count bytes as read if all belong to the body and more will follow."""
    match reader:
        case ContentLengthReader(_remaining=left) if left > size:
            reader._remaining -= size
        case ChunkedReader(_reading_trailer=False, _bytes_to_discard=b"", _bytes_in_chunk=left) if (
            left > size
        ):
            reader._bytes_in_chunk -= size
        case Http10Reader():  # all bytes belong to the body
            pass
        case _:
            return False
    return True


def carry_sent(connection: Http1Connection, event: ResponseData) -> Commands | None:
    """Return the commands that send a large part of a body, or None."""
    if not isinstance(connection, Http1Server) or event.stream_id != connection.stream_id:
        return None
    response = connection.response
    if not response or "chunked" not in response.headers.get("transfer-encoding", "").lower():
        return None
    parts = b"%x\r\n" % len(event.data), event.data, b"\r\n"
    return [commands.SendData(connection.conn, part) for part in parts]
