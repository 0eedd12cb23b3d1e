"""Which of the open spans an answer, a cancellation or the end of a connection takes."""

from __future__ import annotations

from opentelemetry.trace import INVALID_SPAN

from mcp_tool_filter.adapters.watch.tracing import OpenSpan, OpenSpans
from mcp_tool_filter.observers.open_requests import key_of
from mcp_tool_filter.policy.exchange import Client, Exchange, Session, Via


def asked(client: Client, id: str = "1") -> OpenSpan:
    """Make the span of a request that a client has sent."""
    return OpenSpan(
        INVALID_SPAN, client, id, Exchange("tools/call", id, "read"), key_of(client, id)
    )


def asked_by_upstream(client: Client, id: str = "1") -> OpenSpan:
    return OpenSpan(INVALID_SPAN, client, id, None, key_of(client, id))


def keeping(*spans: OpenSpan, most: int = 10) -> OpenSpans:
    kept = OpenSpans(most)
    for one in spans:
        assert list(kept.add_bounded(one)) == []
    return kept


def test_a_clients_request_is_known_by_its_exchange() -> None:
    """Several requests may have the same id."""
    one, other = asked(Client()), asked(Client())
    kept = keeping(one, other)
    assert other.exchange
    assert kept.of(other.exchange) is other
    assert kept.take(other.exchange) is other
    assert kept.take(other.exchange) is None
    assert len(kept) == 1


def test_an_upstreams_request_is_known_by_the_value_of_its_id() -> None:
    client = Client()
    one = asked_by_upstream(client, '"s"')
    kept = keeping(one)
    assert kept.of_upstream(client, "7") is None
    assert kept.of_upstream(Client(), '"s"') is None
    assert kept.of_upstream(client, '"\\u0073"') is one
    assert kept.take_of_upstream(client, '"\\u0073"') is one
    assert len(kept) == 0


def test_connections_of_one_session_share_their_ids() -> None:
    """A client may answer with another POST of its session than the stream it was asked on."""
    session = Session(id="s-1")
    one = asked_by_upstream(Client(session=session))
    kept = keeping(one)
    assert kept.take_of_upstream(Client(session=session), "1") is one


def test_all_of_stdio_is_one_client() -> None:
    one = asked_by_upstream(Client(via=Via.STDIO))
    kept = keeping(one)
    assert kept.take_of_upstream(Client(via=Via.STDIO), "1") is one


def test_a_cancellation_takes_the_clients_own_request_only() -> None:
    client = Client()
    of_others, of_upstream, own = asked(Client()), asked_by_upstream(client), asked(client)
    another = asked(client, "2")
    kept = keeping(of_others, of_upstream, another, own)
    assert kept.take_by_id(client, "1.0") is own
    assert kept.take_by_id(client, "1") is None
    assert len(kept) == 3


def test_a_client_that_leaves_takes_its_requests_of_both_directions() -> None:
    client = Client()
    of_others, of_upstream, own = asked(Client()), asked_by_upstream(client), asked(client)
    kept = keeping(of_others, of_upstream, own)
    assert list(kept.take_all_with(client)) == [of_upstream, own]
    assert list(kept.take_all_with(client)) == []
    assert of_others.exchange
    assert kept.take(of_others.exchange) is of_others


def test_an_id_that_the_upstream_uses_again_gives_up_the_span_before() -> None:
    client = Client()
    first, second = asked_by_upstream(client), asked_by_upstream(client)
    kept = keeping(first)
    assert list(kept.add_bounded(second)) == [first]
    assert kept.of_upstream(client, "1") is second


def test_above_the_limit_the_oldest_span_is_given_up() -> None:
    client = Client()
    first, second, third = asked(client, "1"), asked(client, "2"), asked(client, "3")
    kept = keeping(first, second, most=2)
    assert list(kept.add_bounded(third)) == [first]
    assert kept.take_oldest() is second
    assert list(kept.take_all_with(client)) == [third]
