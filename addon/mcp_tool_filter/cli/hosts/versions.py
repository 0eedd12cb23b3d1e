"""Make the launcher accept only the mitmproxy versions that the addon's script accepts."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location

from mcp_tool_filter.cli.commands.addon_path import find
from mcp_tool_filter.errors import StartError


def refuse_other_mitmproxy() -> None:
    """Raise StartError if we do not know the internals of this mitmproxy version.

    The script has the list, because every mitmproxy can load it.
    """
    from mitmproxy import version

    spec = spec_from_file_location("mcp_tool_filter_script", find())
    assert spec
    assert spec.loader
    script = module_from_spec(spec)
    spec.loader.exec_module(script)
    if problem := script.problem_in_version(version.VERSION):
        raise StartError("The tool filter cannot start", why=problem)
