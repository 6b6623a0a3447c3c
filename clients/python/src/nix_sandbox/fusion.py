"""Answers /run_code as SandboxFusion does: ``python -m nix_sandbox.fusion``.

Programs that evaluate and train models with SandboxFusion then need another URL only. Facts are from
its documentation and its sources (https://github.com/bytedance/SandboxFusion, sandbox/server).
"""

from __future__ import annotations

import argparse
import base64
import binascii
import json
import posixpath
import threading
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ._errors import SandboxError
from ._result import Result
from ._sync import Client

#: The longest request, in bytes, and how long it may take to arrive, in seconds.
MAX_BODY, BODY_SECONDS = 12 << 20, 30
#: Requests that are answered at the same time; further ones wait to be accepted.
AT_ONCE = 64
#: How many files a request may fetch, and the bytes that an answer has at most, as base64.
MAX_FETCH, MAX_FETCHED = 64, 12 << 20
#: How long code may run if the request does not say, in seconds.
RUN_SECONDS = 10
#: The names of environments for a language, beside its own in lower case.
NAMES = {"nodejs": ["node"], "typescript": ["node"], "bash": ["shell"]}


def _environment(client: Client, language: str) -> str:
    names = [env.name for env in client.environments()]
    for name in [language.lower(), *NAMES.get(language, [])]:
        if name in names:
            return name
    raise ValueError(f"no environment runs {language[:40]!r}: there are {', '.join(names)}")


def _inside(name: str) -> str:
    """A path relative to /workspace, in which code runs."""
    path = posixpath.normpath(posixpath.join("/workspace", name))
    if not path.startswith("/workspace/"):
        raise ValueError(f"the file {name[:80]!r} is not below /workspace: use a relative path")
    return path.removeprefix("/workspace/")


def _command(result: Result) -> dict[str, Any]:
    return {
        "status": "TimeLimitExceeded" if result.timed_out else "Finished",
        "execution_time": result.duration,
        "return_code": None if result.timed_out else result.exit_code,
        "stdout": result.stdout,
        "stderr": result.stderr,
    }


def run_code(client: Client, request: Mapping[str, Any]) -> dict[str, Any]:
    """The answer to a request. A wrong one raises TypeError, which no sandbox has seen."""
    answer: dict[str, Any] = {
        "status": "SandboxError", "message": "", "compile_result": None, "run_result": None,
        "executor_pod_name": None, "files": {},
    }  # fmt: skip
    code, language, stdin = (request.get(name) for name in ("code", "language", "stdin"))
    files, fetch, seconds = request.get("files") or {}, request.get("fetch_files") or [], request.get("run_timeout")
    for name, value, kind in (
        ("code", code, str), ("language", language, str), ("stdin", stdin, (str, type(None))), ("files", files, dict),
        ("fetch_files", fetch, list), ("run_timeout", seconds, (int, float, type(None))),
    ):  # fmt: skip
        if not isinstance(value, kind):
            raise TypeError(f"{name} has another type than SandboxFusion gives it")
    try:
        env = _environment(client, language)
        given = {
            _inside(name): base64.b64decode(text, validate=True) for name, text in files.items() if text is not None
        }
        if len(fetch) > MAX_FETCH:
            raise ValueError(f"fetch_files has {len(fetch)} files: {MAX_FETCH} are allowed")
        if language == "python":
            code += "\npass"  # a program does not show the value of its last expression
        with client.session(env) if fetch else nullcontext(client) as place:
            options = {} if fetch else {"env": env}
            result = place.run(code, stdin=stdin, files=given, timeout=seconds or RUN_SECONDS, **options)
            answer["run_result"] = _command(result)
            answer["status"] = "Success" if result.ok else "Failed"
            fetched = 0
            for name in fetch:
                try:
                    text = base64.b64encode(place.read_file(_inside(name))).decode("ascii")
                except (SandboxError, ValueError):
                    continue  # a file that cannot be read is left out, as SandboxFusion leaves it out
                fetched += len(text)
                if fetched > MAX_FETCHED:
                    raise ValueError(f"the files have more than {MAX_FETCHED} bytes together: fetch fewer")
                answer["files"][name] = text
    except binascii.Error as error:
        answer["message"] = f"a file is not base64: {error}"
    except (SandboxError, ValueError) as error:
        answer["status"], answer["message"] = "SandboxError", str(error)
    return answer


class Server(ThreadingHTTPServer):
    """Answers requests with a server that it starts, or with the one at ``url``.

    At a URL, a request's own token is the one that counts.
    """

    daemon_threads = True

    def __init__(self, address: tuple[str, int], command: Sequence[str], url: str | None = None) -> None:
        super().__init__(address, _Handler)
        self._url, self._places = url, threading.BoundedSemaphore(AT_ONCE)
        self._client = None if url else Client(command)

    def client(self, token: str | None) -> AbstractContextManager[Client]:
        if self._client is not None:
            return nullcontext(self._client)
        return Client(url=self._url, token=token)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._places.acquire()
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._places.release()

    def server_close(self) -> None:
        super().server_close()
        if self._client is not None:
            self._client.close()


class _Handler(BaseHTTPRequestHandler):
    server: Server
    timeout = BODY_SECONDS

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: the server logs calls."""

    def do_POST(self) -> None:
        try:
            size = int(self.headers.get("Content-Length", ""))
        except ValueError:
            size = -1
        if self.path != "/run_code":
            self._answer(404, "there is nothing here: send a POST to /run_code")
        elif "Origin" in self.headers:
            self._answer(403, "pages of a browser are not answered")
        elif not 0 <= size <= MAX_BODY:
            self._answer(413, f"a request needs a Content-Length of at most {MAX_BODY} bytes")
        else:
            try:
                request = json.loads(self.rfile.read(size))
                if not isinstance(request, dict):
                    raise TypeError("the request is not an object")
                scheme, _, token = self.headers.get("Authorization", "").partition(" ")
                with self.server.client(token if scheme.lower() == "bearer" else None) as client:
                    self._answer(200, run_code(client, request))
            except (ValueError, TypeError, RecursionError) as error:
                self._answer(422, f"the request is not what SandboxFusion takes: {error}")

    def _answer(self, status: int, value: Any) -> None:
        text = (value if isinstance(value, str) else json.dumps(value)).encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8" if isinstance(value, str) else "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m nix_sandbox.fusion", description="Answer /run_code as SandboxFusion does.")
    parser.add_argument("--listen", default="127.0.0.1:8080", metavar="HOST:PORT", help="default: %(default)s")
    parser.add_argument("--url", help="a server over HTTP, with the token of each request")
    parser.add_argument("command", nargs="*", default=["nix-sandbox-mcp"], help="the server to start; default: nix-sandbox-mcp")
    options = parser.parse_args()
    host, _, port = options.listen.rpartition(":")
    if not port.isdigit() or int(port) > 65535:
        parser.error(f"--listen is {options.listen!r}: write HOST:PORT")
    with Server((host.strip("[]"), int(port)), options.command, options.url) as server:
        print("listening at http://%s:%d" % server.server_address[:2], flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            pass


if __name__ == "__main__":
    main()
