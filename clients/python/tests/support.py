"""The server under test, and how long tests wait for it."""

import os
import pathlib
import re
import subprocess
import tempfile
import threading

SERVER = os.environ.get("NIX_SANDBOX_MCP_SERVER", "nix-sandbox-mcp")
#: What a test waits for something that takes no time, in seconds: longer on a busy machine.
LONG = 60 * float(os.environ.get("NIX_SANDBOX_TEST_PATIENCE", "1"))


class Serve:
    """A server over HTTP with a token, on a port of its own."""

    def __init__(self, *arguments: str, **variables: str) -> None:
        self.folder = tempfile.TemporaryDirectory()
        tokens = pathlib.Path(self.folder.name) / "tokens"
        made = subprocess.run(
            [SERVER, "token", "new", "tester", "--file", str(tokens)], check=True, capture_output=True, text=True
        )
        self.token = made.stdout.strip()
        self.process = subprocess.Popen(
            [SERVER, "serve", "--http", "127.0.0.1:0", "--log-format", "json", *arguments],
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "NIX_SANDBOX_TOKENS": str(tokens), **variables},
        )
        log = ""
        for line in self.process.stderr:
            log += line
            if found := re.search(r'"msg":"listening","address":"([^"]+)"', line):
                self.url = "http://" + found[1]
                break
        else:
            raise AssertionError("the server does not listen: " + log)
        # Its log must not fill the pipe.
        threading.Thread(target=self.process.stderr.read, daemon=True).start()

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(LONG)
        self.process.stderr.close()
        self.folder.cleanup()
