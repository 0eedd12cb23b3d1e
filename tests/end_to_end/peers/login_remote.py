"""mcp-remote, which logs in for a client that speaks stdio. See login_python.py.

login_remote.py NODE PROXY URL [SECONDS]: PROXY is the program of mcp-remote.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from login_visit import tell
from scripted_browser import ScriptedBrowser

HELLO = {"protocolVersion": "2025-06-18", "capabilities": {}}


def main() -> None:
    node, program, url = sys.argv[1:4]
    seconds = float((*sys.argv[4:], "0")[0])
    browser = ScriptedBrowser()
    with tempfile.TemporaryDirectory() as home:
        opener = Path(home) / "xdg-open"
        opener.write_text("#!/bin/sh\n")  # we read the address from stderr
        opener.chmod(0o700)
        own = {"PATH": f"{home}:{os.environ['PATH']}", "HOME": home, "MCP_REMOTE_CONFIG_DIR": home}
        process = subprocess.Popen(
            [node, program, url, "--transport", "http-only", "--allow-http"], text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env=os.environ | own,
        )  # fmt: skip
        threading.Thread(target=watch, args=(process, browser), daemon=True).start()
        try:
            tell(talk(process, seconds), browser)
        finally:
            process.kill()
            process.wait()


def watch(process, browser) -> None:
    for line in process.stderr:
        print(line, end="", file=sys.stderr)
        if found := re.match(r"(?:\[\d+\] )?(https?://\S*[?&]response_type=\S+)", line.strip()):
            threading.Thread(target=browser.open, args=(found[1],), daemon=True).start()


def talk(process, seconds: float) -> dict:
    def ask(id: int, method: str, **params):
        say({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
        while line := process.stdout.readline():
            message = json.loads(line)
            if message.get("id") == id:
                return message["result"]
        raise AssertionError("mcp-remote has ended")

    def say(message) -> None:
        process.stdin.write(json.dumps(message) + "\n")
        process.stdin.flush()

    def call(id: int) -> str:
        said = ask(id, "tools/call", name="read_file", arguments={"path": "a"})
        return said["content"][0]["text"]

    ask(1, "initialize", **HELLO, clientInfo={"name": "login", "version": "1"})
    say({"jsonrpc": "2.0", "method": "notifications/initialized"})
    seen = {"tools": [tool["name"] for tool in ask(2, "tools/list")["tools"]], "called": call(3)}
    time.sleep(seconds)
    return seen | {"called_later": call(4)}


if __name__ == "__main__":
    main()
