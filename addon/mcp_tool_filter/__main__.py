"""``python -m mcp_tool_filter`` is the launcher."""

import sys

from mcp_tool_filter.cli.launcher import main

if __name__ == "__main__":
    sys.exit(main())
