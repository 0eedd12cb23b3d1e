"""The tools of the demo's upstream, as for an agent in a small company.

>>> len(TOOLS), TOOLS[0]["name"]
(20, 'file_read')
"""

from __future__ import annotations

from typing import Any, Final

_PATH = "Path of the file, relative to the project's folder"
_SQL = "One SQL statement; parameters are written as $1, $2 and so on"
_TABLE = "Name of the table, with its schema where it is not public"
_TO = "Address of the receiver; several are separated by commas"


def _tool(name: str, description: str, /, *, optional: str = "", **parameters: str) -> Any:
    """Return a tool definition; ``optional`` names the optional parameters."""
    properties = {key: {"type": "string", "description": says} for key, says in parameters.items()}
    required = [key for key in parameters if key not in optional.split()]
    return {
        "name": name,
        "title": name.replace("_", " ").capitalize(),
        "description": description,
        "inputSchema": {
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        },
        "annotations": {
            "readOnlyHint": name.split("_")[-1] in {"read", "list", "search", "query", "status"},
            "destructiveHint": "delete" in name or "drop" in name,
        },
    }


TOOLS: Final[list[dict[str, Any]]] = [
    _tool("file_read", "Read a text file and return its lines with their numbers.",
          path=_PATH, first="First line to return; default: 1", optional="first"),
    _tool("file_write", "Create a file or replace its content. There is no undo.",
          path=_PATH, content="The complete new text"),
    _tool("file_move", "Rename a file, or move it to another folder, replacing what is there.",
          path=_PATH, destination="New path of the file"),
    _tool("file_delete", "Delete a file for good. Folders are deleted with their content.",
          path=_PATH),
    _tool("file_search", "Find the files whose text matches a regular expression.",
          pattern="The regular expression", folder="Where to look", optional="folder"),
    _tool("query_database", "Run a statement that only reads, and return its rows as JSON.",
          sql=_SQL, parameters="Values for the parameters, a JSON array", optional="parameters"),
    _tool("alter_database", "Run a statement that changes rows or tables, and commit it.",
          sql=_SQL, parameters="Values for the parameters, a JSON array", optional="parameters"),
    _tool("drop_database", "Delete a whole database with its backups. Cannot be undone.",
          database="Name of the database", confirm="The name again, to confirm"),
    _tool("table_list", "List the tables, each with its columns and the number of its rows.",
          schema="Only tables of this schema", optional="schema"),
    _tool("table_export", "Write all rows of a table to a CSV file in the shared folder.",
          table=_TABLE, path=_PATH),
    _tool("email_send", "Send an email in the user's name.",
          to=_TO, subject="The subject line", body="The text, Markdown"),
    _tool("email_search", "Find emails by their text, sender or date; the newest come first.",
          query="Words, from:address, after:2026-01-31", limit="Maximum number of emails",
          optional="limit"),
    _tool("email_delete", "Delete an email from all folders.", email="Its message id"),
    _tool("calendar_list", "List the events of a day with their times and guests.",
          day="The day, as 2026-01-31"),
    _tool("calendar_invite", "Create an event and invite guests to it by email.",
          title="Title of the event", start="Date and time of the start", guests=_TO),
    _tool("web_search", "Search the web and return titles, addresses and summaries.",
          query="What to search for"),
    _tool("web_fetch", "Fetch a web page and return its text as Markdown.",
          url="Address of the page"),
    _tool("deploy_status", "Show which version runs in which environment, and since when.",
          environment="production or staging", optional="environment"),
    _tool("deploy_production", "Build the main branch and put it into production.",
          reason="Written to the deploy log", commit="Default: the newest"
                                                     " commit", optional="commit"),
    _tool("shell_execute", "Run any command in a shell on the build machine, as its owner.",
          command="The command line", timeout="Seconds until it is killed", optional="timeout"),
]  # fmt: skip
NAMES: Final = frozenset(tool["name"] for tool in TOOLS)
