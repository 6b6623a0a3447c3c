"""Many calls at once over HTTP: NIX_SANDBOX_TEST_CALLS says how many, 192 by default."""

import json
import os
import pathlib
import re
import tempfile
import time
import unittest

from nix_sandbox import Call, Client
from support import SERVER, Serve

CALLS = int(os.environ.get("NIX_SANDBOX_TEST_CALLS", "192"))
AT_ONCE = 128


def weight(process: int) -> tuple[float, int]:
    """The memory of a process, in MiB, and how many descriptors it has."""
    folder = pathlib.Path("/proc", str(process))
    kibibytes = re.search(r"^Pss: +(\d+) kB$", (folder / "smaps_rollup").read_text(), re.MULTILINE)
    return int(kibibytes[1]) / 1024, len(list((folder / "fd").iterdir()))


class Many(unittest.TestCase):
    def test_many_calls_at_once(self):
        program = pathlib.Path(SERVER).resolve()
        metadata = json.loads((program.parent.parent / "share/nix-sandbox-mcp/metadata.json").read_text())
        metadata["serve"]["quotas"] = {
            "default": {"calls": AT_ONCE, "sessions": 8, "streams": 64, "memory_mb": 1 << 20, "memory_used_mb": None, "pids": None}
        }
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump(metadata, file)
            file.flush()
            server = Serve(NIX_SANDBOX_METADATA=file.name)
            self.addCleanup(server.close)
        with Client(url=server.url, token=server.token) as client:
            weights = []
            began, first = time.monotonic(), 0
            # What a server needs for so many callers it has after the first part.
            for share in range(1, 4):
                calls = [
                    Call("print(int(input()) ** 2, end='')", "python", stdin=str(n)) for n in range(first, CALLS * share // 3)
                ]
                results = client.run_many(calls, at_once=AT_ONCE)
                wrong = [(n, got) for n, got in enumerate(results, first) if not got.ok or got.stdout != str(n * n)]
                self.assertEqual(wrong, [])
                first += len(calls)
                weights.append(weight(server.process.pid))
        if "NIX_SANDBOX_TEST_CALLS" in os.environ:
            print(f"{first} calls, {first / (time.monotonic() - began):.1f} a second; memory and descriptors: {weights}")
        self.assertEqual(first, CALLS)
        self.assertLess(weights[2][0], weights[0][0] + 16, weights)
        self.assertLess(weights[2][1], weights[0][1] + 100, weights)


if __name__ == "__main__":
    unittest.main()
