"""Every function of mitmproxy that we override, patch or copy, as it was when we read it last.

When a release of mitmproxy changes one of them, the test names it: read the change, see whether our
code beside it must follow, then write down the new hash. This prints the table anew:

    python -m tests.adapters.mitmproxy.forward.test_replaced_internals
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import pkgutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

from mcp_tool_filter.adapters import mitmproxy as adapter
from mcp_tool_filter.adapters import recordings
from mcp_tool_filter.cli import hosts

# Found by nobody but people: what we patch or copy without a subclass, and lean on in detail.
PATCHED_OR_COPIED = {
    "h11._readers:ChunkedReader": "safe/http1.py reads trailers, fast/bodies.py counts",
    "h11._readers:ContentLengthReader": "fast/bodies.py counts in its place",
    "h11._readers:Http10Reader": "fast/bodies.py reads in its place",
    "mitmproxy.proxy.layers.http._http1:Http1Connection.read_body": "fast/bodies.py does it, too",
    "mitmproxy.proxy.layers.http._http1:Http1Server.send": "fast/bodies.py does it, too",
    "mitmproxy.addonmanager:AddonManager._iter_hooks": "fast/hooks.py calls it",
    "mitmproxy.addonmanager:AddonManager.invoke_addon": "fast/hooks.py does what it does",
    "mitmproxy.addonmanager:AddonManager.register": "addon/tool_filter.py puts us into the chain",
    "mitmproxy.addonmanager:safecall": "fast/hooks.py logs by it",
    "mitmproxy.addonmanager:traverse": "fast/hooks.py calls it",
    "mitmproxy.addons.next_layer:NextLayer._next_layer": "safe/reverse_proxy.py chooses instead",
    "mitmproxy.coretypes.multidict:_MultiDict": "fast/headers.py replaces its look-ups",
    "mitmproxy.http:Headers._kconv": "fast/headers.py does what it does",
    "mitmproxy.http:Headers._reduce_values": "fast/headers.py does what it does",
    "mitmproxy.http:Headers.get_all": "fast/headers.py replaces it",
    "mitmproxy.http:Headers.set_all": "fast/headers.py replaces it",
    "mitmproxy.http:MessageData": "fast/messages.py replaces its check",
    "mitmproxy.hooks:Hook.args": "fast/hooks.py does what it does",
    "mitmproxy.net.http.http1.read:expected_http_body_size": "fast/headers.py keeps its answers",
    "mitmproxy.utils.typecheck:check_option_type": "fast/messages.py calls it",
    "mitmproxy.proxy.context:Context.fork": "safe/layers.py does what it does",
    "mitmproxy.proxy.layer:Layer.__continue": "safe/stream.py does what it does",
    "mitmproxy.proxy.layer:Layer.__process": "safe/stream.py does what it does",
    "mitmproxy.proxy.layers.http:HttpClient": "fast/routing.py goes past it",
    "mitmproxy.proxy.layers.http:HttpStream.check_killed": "it looks into the queue of a stream",
    "mitmproxy.proxy.layers.http:HttpStream.mode": "safe/layers.py sets it",
    "mitmproxy.proxy.layers.http:HttpStream.state_stream_response_body": "safe/stream.py feeds it",
    "mitmproxy.proxy.layers.http:HttpStream.state_consume_response_body": "safe/stream.py ends it",
    "mitmproxy.proxy.layers.http:HttpStream.send_response": "safe/stream.py sends in its place",
    "mitmproxy.proxy.layers.http._http1:Http1Connection._handle_event": "fast/routing.py copies it",
    "mitmproxy.proxy.layers.modes:HttpProxy._handle_event": "0e0d3ccbba41",
    "mitmproxy.proxy.layers.modes:HttpUpstreamProxy._handle_event": "0e0d3ccbba41",
    "mitmproxy.proxy.layers.websocket:Fragmentizer": "safe/stream.py changes its size",
    "mitmproxy.proxy.mode_servers:ServerInstance.handle_stream": "it makes our connection handler",
    "mitmproxy.proxy.server:ConnectionHandler.hook_task": "fast/connections.py does what it does",
    "mitmproxy.proxy.server:ConnectionHandler.handle_hook": "fast/connections.py does likewise",
    "mitmproxy.proxy.server:ConnectionHandler.server_event": "fast/connections.py runs under it",
}

AS_READ = {
    "h11._readers:ChunkedReader": "f4672e4e971c",
    "h11._readers:ContentLengthReader": "f4d6518c4aed",
    "h11._readers:Http10Reader": "ba19aa241caa",
    "mitmproxy.addonmanager:AddonManager.__init__": "80272c36ac1c",
    "mitmproxy.addonmanager:AddonManager._iter_hooks": "3272db94de93",
    "mitmproxy.addonmanager:AddonManager.handle_lifecycle": "5975604ee789",
    "mitmproxy.addonmanager:AddonManager.invoke_addon": "a050cb56056e",
    "mitmproxy.addonmanager:AddonManager.register": "4ccd4522c821",
    "mitmproxy.addonmanager:AddonManager.trigger": "66ff56d29688",
    "mitmproxy.addonmanager:AddonManager.trigger_event": "31ac3d2c14ce",
    "mitmproxy.addonmanager:safecall": "b54a129802a5",
    "mitmproxy.addonmanager:traverse": "7235ad007525",
    "mitmproxy.addons.next_layer:NextLayer._next_layer": "8d029c28559b",
    "mitmproxy.addons.tlsconfig:TlsConfig.configure": "b4fb07629123",
    "mitmproxy.addons.tlsconfig:TlsConfig.quic_start_client": "e14e43b133c6",
    "mitmproxy.addons.tlsconfig:TlsConfig.request": "e99adad4b83a",
    "mitmproxy.addons.tlsconfig:TlsConfig.running": "545148706531",
    "mitmproxy.addons.tlsconfig:TlsConfig.tls_start_client": "96d1887f84ee",
    "mitmproxy.contentviews._api:Contentview.prettify": "eaf921afbd03",
    "mitmproxy.contentviews._api:Contentview.render_priority": "ae751267aa4f",
    "mitmproxy.coretypes.multidict:_MultiDict": "973bd8fab46a",
    "mitmproxy.hooks:Hook.args": "d94d401aa3ea",
    "mitmproxy.http:Headers._kconv": "69826986ef10",
    "mitmproxy.http:Headers._reduce_values": "bcf8b728fa2b",
    "mitmproxy.http:Headers.get_all": "f2110f75954c",
    "mitmproxy.http:Headers.set_all": "2653e4b3156a",
    "mitmproxy.http:MessageData": "2fe4b7f15ac7",
    "mitmproxy.master:Master.__init__": "204a4ca7860c",
    "mitmproxy.net.http.http1.read:expected_http_body_size": "ab09899e300e",
    "mitmproxy.optmanager:OptManager.__getattr__": "b18adfeb7171",
    "mitmproxy.optmanager:OptManager.update_known": "53a2fdbbab6c",
    "mitmproxy.proxy.context:Context.fork": "fb0d6d838578",
    "mitmproxy.proxy.layer:Layer.__continue": "08fa3141c171",
    "mitmproxy.proxy.layer:Layer.__process": "90323075f134",
    "mitmproxy.proxy.layer:Layer._handle_event": "2ef368a2b930",
    "mitmproxy.proxy.layer:Layer.handle_event": "8477335124af",
    "mitmproxy.proxy.layer:NextLayer._ask": "26109e1cbf46",
    "mitmproxy.proxy.layers.http._http1:Http1Client.read_headers": "4cdd1074c958",
    "mitmproxy.proxy.layers.http._http1:Http1Connection._handle_event": "4ca054b2c051",
    "mitmproxy.proxy.layers.http._http1:Http1Connection.read_body": "9d64abb7fef7",
    "mitmproxy.proxy.layers.http._http1:Http1Connection.wait": "7ef13af59f3d",
    "mitmproxy.proxy.layers.http._http1:Http1Server.read_headers": "23fa629cea80",
    "mitmproxy.proxy.layers.http._http1:Http1Server.send": "eaaa373dedd3",
    "mitmproxy.proxy.layers.http:HttpClient": "73c48829eb70",
    "mitmproxy.proxy.layers.http:HttpLayer._handle_event": "f675d84e3db3",
    "mitmproxy.proxy.layers.http:HttpLayer.event_to_child": "13f04830ea46",
    "mitmproxy.proxy.layers.http:HttpLayer.make_stream": "65849da2d51c",
    "mitmproxy.proxy.layers.http:HttpLayer.register_connection": "2b36125b7913",
    "mitmproxy.proxy.layers.http:HttpStream.__init__": "c02d2dec3ce1",
    "mitmproxy.proxy.layers.http:HttpStream._handle_event": "fa1829cc3921",
    "mitmproxy.proxy.layers.http:HttpStream.check_body_size": "97eed8962223",
    "mitmproxy.proxy.layers.http:HttpStream.check_killed": "ce8162a91be5",
    "mitmproxy.proxy.layers.http:HttpStream.flow_done": "ef4e03482aa2",
    "mitmproxy.proxy.layers.http:HttpStream.handle_connect_regular": "977dd088285e",
    "mitmproxy.proxy.layers.http:HttpStream.handle_connect_upstream": "0d35a3eae1b9",
    "mitmproxy.proxy.layers.http:HttpStream.handle_protocol_error": "16ebb14649f2",
    "mitmproxy.proxy.layers.http:HttpStream.make_server_connection": "35c7cfe84ad7",
    "mitmproxy.proxy.layers.http:HttpStream.mode": "f7039a8d6613",
    "mitmproxy.proxy.layers.http:HttpStream.passthrough": "659d1c78b20c",
    "mitmproxy.proxy.layers.http:HttpStream.send_response": "7b4e06f13036",
    "mitmproxy.proxy.layers.http:HttpStream.state_consume_response_body": "d7819da1855f",
    "mitmproxy.proxy.layers.http:HttpStream.state_stream_response_body": "5deadcd637f5",
    "mitmproxy.proxy.layers.modes:DestinationKnown.finish_start": "1d052c17a70a",
    "mitmproxy.proxy.layers.modes:HttpProxy._handle_event": "0e0d3ccbba41",
    "mitmproxy.proxy.layers.modes:HttpUpstreamProxy._handle_event": "0e0d3ccbba41",
    "mitmproxy.proxy.layers.websocket:Fragmentizer": "9fd6267f9c7a",
    "mitmproxy.proxy.layers.websocket:WebsocketConnection.send2": "7b8f05fa9e89",
    "mitmproxy.proxy.mode_servers:ServerInstance.handle_stream": "84b984e0472c",
    "mitmproxy.proxy.server:ConnectionHandler.__init__": "f695401fcc32",
    "mitmproxy.proxy.server:ConnectionHandler.handle_client": "a460e7dd2179",
    "mitmproxy.proxy.server:ConnectionHandler.handle_connection": "f9faab6ad3ed",
    "mitmproxy.proxy.server:ConnectionHandler.handle_hook": "537ed55acd90",
    "mitmproxy.proxy.server:ConnectionHandler.hook_task": "e5e55c36c342",
    "mitmproxy.proxy.server:ConnectionHandler.log": "5b80b224c167",
    "mitmproxy.proxy.server:ConnectionHandler.open_connection": "cef8d73a19a7",
    "mitmproxy.proxy.server:ConnectionHandler.server_event": "ffbed451b493",
    "mitmproxy.utils.typecheck:check_option_type": "8d1f6423e2ec",
}


def overridden() -> set[str]:
    """Return each function of mitmproxy that one of our classes overrides."""
    return {name for kind in _our_classes() for name in _overridden_by(kind)}


def _our_classes() -> Iterator[type]:
    for package in (adapter, hosts, recordings):
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            module = import_module(found.name)
            for value in vars(module).values():
                if inspect.isclass(value) and value.__module__ == module.__name__:
                    yield value


def _overridden_by(kind: type) -> Iterator[str]:
    for name, value in vars(kind).items():
        if not inspect.isfunction(value) or name == "__repr__":
            continue
        for base in kind.__mro__[1:]:
            if name in vars(base) and base.__module__.startswith("mitmproxy."):
                if inspect.isfunction(vars(base)[name]):
                    yield f"{base.__module__}:{base.__qualname__}.{name}"
                break


def hash_of(name: str) -> str:
    """Return a short hash of a function's or class's source, read from its file.

    (The function in memory may be ours: other tests have patched it.)
    """
    module, _, path = name.partition(":")
    file = import_module(module).__file__
    assert file
    text = Path(file).read_text()
    found: ast.AST = ast.parse(text)
    for part in path.split("."):
        found = next(node for node in ast.iter_child_nodes(found) if _is_named(node, part))
    source = ast.get_source_segment(text, found)
    assert source
    return hashlib.sha256(source.encode()).hexdigest()[:12]


def _is_named(node: ast.AST, name: str) -> bool:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return isinstance(node, kinds) and node.name == name


def test_the_replaced_internals_of_mitmproxy_have_not_changed() -> None:
    names = overridden() | PATCHED_OR_COPIED.keys()
    found = {name: hash_of(name) for name in sorted(names)}
    changed = [name for name in found if found[name] != AS_READ.get(name)]
    assert not changed, f"read these again, beside our code that replaces them: {changed}"
    assert not AS_READ.keys() - names, "these are replaced no more"


if __name__ == "__main__":
    for each in sorted(overridden() | PATCHED_OR_COPIED.keys()):
        print(f'    "{each}": "{hash_of(each)}",')  # noqa: T201  a table to be put in here
