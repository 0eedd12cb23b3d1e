"""The launcher runs with the same versions of mitmproxy as the addon's script, and no others."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location

from mcp_tool_filter.cli.commands.addon_path import find
from mcp_tool_filter.errors import StartError


def refuse_other_mitmproxy() -> None:
    """Raise StartError if mitmproxy is not one that we know the internals of.

    The script knows which those are: it is what any mitmproxy can read.
    """
    from mitmproxy import version

    spec = spec_from_file_location("mcp_tool_filter_script", find())
    assert spec
    assert spec.loader
    script = module_from_spec(spec)
    spec.loader.exec_module(script)
    if problem := script.problem_in_version(version.VERSION):
        raise StartError("The tool filter cannot start", why=problem)
