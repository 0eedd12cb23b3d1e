"""Open the lane of each site."""

from __future__ import annotations

from mcp_tool_filter.core.process.plugs import Plug
from mcp_tool_filter.core.process.site import Site
from mcp_tool_filter.rooms.lane.lane import take_lane


class OpenLane(Plug):
    def attach(self, site: Site) -> None:
        site.take_lane = take_lane
