"""Options that are read quickly say what mitmproxy's own say, also while they change."""

from __future__ import annotations

import pytest
from mitmproxy.exceptions import OptionsError
from mitmproxy.options import Options

from mcp_tool_filter.adapters.mitmproxy.forward.fast.option_values import make_values_quick


def quick() -> Options:
    options = Options()
    make_values_quick(options)
    assert type(options) is not Options
    return options


def test_all_listeners_see_an_edit() -> None:
    options = quick()
    assert (options.listen_port, options.listen_host) == (None, "")
    heard = []

    def hear(updated: set[str]) -> None:
        heard.append((updated, options.listen_port, options.listen_host))

    options.changed.connect(hear)
    options.update(listen_port=9)
    options.set("listen_host=::1")
    options.reset()
    assert heard[:2] == [({"listen_port"}, 9, ""), ({"listen_host"}, 9, "::1")]
    assert heard[2][1:] == (None, "")


def test_earlier_listeners_see_an_edit_too() -> None:
    options = Options()
    heard = []

    def hear(opts: Options, updated: set[str]) -> None:
        heard.append(opts.listen_port)

    options.subscribe(hear, ["listen_port"])
    make_values_quick(options)
    assert options.listen_port is None
    options.update(listen_port=9)
    assert heard == [9]


def test_a_refused_edit_keeps_the_old_value() -> None:
    options = quick()
    assert options.listen_port is None

    def refuse(updated: set[str]) -> None:
        if options.listen_port == 9:
            raise OptionsError("not nine")

    options.changed.connect(refuse)
    with pytest.raises(OptionsError):
        options.update(listen_port=9)
    assert options.listen_port is None


def test_a_refused_edit_also_undoes_nested_edits() -> None:
    options = quick()

    def edit_another(updated: set[str]) -> None:
        if "listen_host" in updated and options.listen_host:
            options.update(listen_port=9)
            assert options.listen_port == 9
            raise OptionsError("no host")

    options.changed.connect(edit_another)
    with pytest.raises(OptionsError):
        options.update(listen_host="::1")
    assert (options.listen_host, options.listen_port) == ("", None)


def test_an_edit_that_stops_half_way_is_seen_up_to_there() -> None:
    options = quick()
    assert options.listen_host == ""
    with pytest.raises(TypeError):
        options.update(listen_host="::1", listen_port="nine")
    assert options.listen_host == options._options["listen_host"].current() == "::1"


def test_a_mutable_value_is_returned_as_a_copy() -> None:
    options = quick()
    options.set("mode=regular")
    options.mode.append("changed")
    assert options.mode == ["regular"]


def test_an_unknown_name_is_no_option() -> None:
    options = quick()
    assert not hasattr(options, "no_such_option")
    options.add_option("no_such_option", str, "by now", "It is one.")
    assert options.no_such_option == "by now"
