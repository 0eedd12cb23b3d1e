"""A client connection that speaks HTTP/2: many exchanges side by side, by the h2 library."""
# mypy: ignore-errors

from __future__ import annotations

import h2.config
import h2.connection
import h2.errors
import h2.events
import h2.exceptions
import h2.settings

from mcp_tool_filter.engine.exchange import Answer, Exchange
from mcp_tool_filter.engine.service import Service
from mcp_tool_filter.engine.wire import Fault, RequestHead

MOST_STREAMS, MOST_HELD = 100, 1 << 20


class Stream:
    """What an exchange takes for its client connection."""

    def __init__(self, conn: H2Client, id: int) -> None:
        self.conn, self.id, self.host = conn, id, conn.host
        self.exchange: Exchange | None = None
        self.out = bytearray()
        self.is_ended = self.is_held = False
        self.said: int | None = None
        self.wire = None

    def go_ahead(self) -> None:
        self.conn.h2.send_headers(self.id, [(b":status", b"100")])
        self.conn.flush()

    is_slow = False
    has_seat = True

    def respond(self, answer, *, is_bare):
        if answer.status not in (204, 304) and not is_bare:
            answer.fields = (*answer.fields, (b"content-length", b"%d" % len(answer.body)))
        self.begin(answer)
        self.data(b"" if is_bare else answer.body)
        self.finish()

    def begin(self, answer):
        head = [(b":status", b"%d" % answer.status), *((n.lower(), v) for n, v in answer.fields)]
        self.conn.h2.send_headers(self.id, head)
        self.conn.flush()

    def data(self, data: bytes) -> None:
        self.out += data
        self.pump()

    def finish(self) -> None:
        self.is_ended = True
        self.pump()

    def pump(self) -> None:
        """Send what flow control allows; a slow reader holds its upstream."""
        h2c = self.conn.h2
        if self.id not in self.conn.streams:
            return
        while (
            self.out
            and (room := min(h2c.local_flow_control_window(self.id), h2c.max_outbound_frame_size))
            > 0
        ):
            h2c.send_data(self.id, bytes(self.out[:room]))
            del self.out[:room]
        if self.is_ended and not self.out:
            h2c.end_stream(self.id)
            self.conn.streams.pop(self.id, None)
        if (up := self.exchange.up if self.exchange else None) is not None and (
            len(self.out) > MOST_HELD
        ) != self.is_held:
            self.is_held = not self.is_held
            up.hold(self.is_held)
        self.conn.flush()

    def cut(self, _exchange) -> None:
        if self.conn.streams.pop(self.id, None):
            self.conn.h2.reset_stream(self.id, h2.errors.ErrorCodes.INTERNAL_ERROR)
            self.conn.flush()

    def done(self) -> None:
        pass


class H2Client:
    """A client connection that speaks HTTP/2."""

    def __init__(self, service: Service, host: object) -> None:
        self.service, self.host = service, host
        self.h2 = h2.connection.H2Connection(
            h2.config.H2Configuration(client_side=False, header_encoding=None)
        )
        self.h2.local_settings.update(
            {
                h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: MOST_STREAMS,
                h2.settings.SettingCodes.MAX_HEADER_LIST_SIZE: 65536,
            }
        )
        self.streams: dict[int, Stream] = {}
        self.h2.initiate_connection()
        self.h2.increment_flow_control_window(1 << 24)
        self.flush()

    def flush(self) -> None:
        if data := self.h2.data_to_send():
            self.host.send(data)

    def held(self, on: bool) -> None:
        for stream in self.streams.values():
            if stream.exchange and stream.exchange.up:
                stream.exchange.up.hold(on)

    def gone(self) -> None:
        for stream in list(self.streams.values()):
            if stream.exchange:
                stream.exchange.client_left()
        self.streams.clear()

    def receive(self, data: bytes) -> None:
        try:
            for event in self.h2.receive_data(data):
                self._take(event)
            self.flush()
        except (h2.exceptions.ProtocolError, Fault):
            self.flush()
            self.gone()
            self.host.close()

    def _take(self, event: object) -> None:
        stream = self.streams.get(getattr(event, "stream_id", 0) or 0)
        match event:
            case h2.events.RequestReceived():
                stream = self.streams[event.stream_id] = Stream(self, event.stream_id)
                try:
                    message = self._message(event.headers)
                except Fault as fault:
                    stream.respond(Answer(fault.status), is_bare=False)
                    return
                stream.said = message.length
                stream.exchange = Exchange(self.service, stream, message)
                stream.exchange.begin()
            case h2.events.DataReceived():
                self.h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                if stream and stream.exchange and not stream.exchange.is_over:
                    stream.exchange.take(event.data)
            case h2.events.StreamEnded():
                if stream and stream.exchange and not stream.exchange.is_over:
                    stream.exchange.end_of_request()
            case h2.events.StreamReset():
                stream = self.streams.pop(event.stream_id, None)
                if stream is not None and stream.exchange:
                    stream.exchange.client_left()
            case h2.events.WindowUpdated():
                for one in [stream] if stream else list(self.streams.values()):
                    one.pump()
            case h2.events.ConnectionTerminated():
                self.gone()
                self.host.close()

    def _message(self, headers: object) -> RequestHead:
        pseudo = {bytes(n): bytes(v) for n, v in headers if n[:1] == b":"}
        fields = [(bytes(n), bytes(v)) for n, v in headers if n[:1] != b":"]
        if any(set(v) & {0, 10, 13} or n != n.lower() for n, v in fields) or b":protocol" in pseudo:
            raise Fault("a header")
        cookies = [v for n, v in fields if n == b"cookie"]
        if len(cookies) > 1:  # RFC 9113, 8.2.3
            fields = [f for f in fields if f[0] != b"cookie"] + [(b"cookie", b"; ".join(cookies))]
        hosts = [v for n, v in fields if n == b"host"]
        authority = pseudo.get(b":authority")
        if authority is not None and hosts and hosts != [authority]:
            raise Fault("two hosts")
        if authority is not None and not hosts:
            fields.insert(0, (b"host", authority))
        lengths = [v for n, v in fields if n == b"content-length"]
        if (
            b"transfer-encoding" in dict(fields)
            or len(lengths) > 1
            or not pseudo.get(b":path")
            or not pseudo.get(b":method")
        ):
            raise Fault("framing")
        length = int(lengths[0]) if lengths and lengths[0].isdigit() else None
        return RequestHead(
            method=pseudo[b":method"].decode("latin-1"),
            target=pseudo[b":path"].decode("latin-1"),
            fields=tuple(fields),
            length=length,
        )
