"""The client for asyncio."""

from __future__ import annotations

import asyncio
import re
import ssl
import uuid
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any
from urllib.parse import quote

from . import _result
from ._errors import CallRefused, SandboxError
from ._http import HTTP
from ._result import Call, Contents, Environment, Progress, Result
from ._stdio import Stdio

#: A session that has not been used can have any name; these do not meet those of other clients.
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")


class AsyncClient:
    """A client of one server.

    Without ``url`` it starts a server: ``command``, by default ``nix-sandbox-mcp`` of the PATH, with
    the variables ``env`` beside its own ones, in the folder ``cwd``. With ``url``, which is
    ``http://HOST:PORT``, ``https://HOST`` or ``unix:/PATH``, it uses one over HTTP, with a ``token``
    if the server asks for one.

    Its methods may run at the same time. Cancelling a task that waits for a call ends the call's
    code. Methods raise CallRefused if the server did not run the code, ConnectionLost if it is gone
    and ProtocolError if it refuses a message; all of them are SandboxErrors. Code that fails is no
    error of the call: the Result says so.
    """

    def __init__(
        self,
        command: Sequence[str] = ("nix-sandbox-mcp",),
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        url: str | None = None,
        token: str | None = None,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        if isinstance(command, (str, bytes)) or not command:
            raise ValueError("command is a list of the program and its arguments")
        self._command, self._env, self._cwd = list(command), env, cwd
        self._http = None if url is None else HTTP(url, token, ssl_context)
        self._stdio: asyncio.Task[Stdio] | None = None
        self._closed = False

    async def __aenter__(self) -> AsyncClient:
        await self._transport()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _transport(self) -> HTTP | Stdio:
        if self._closed:
            raise SandboxError("the client is closed")
        if self._http is not None:
            return self._http
        if self._stdio is None:
            self._stdio = asyncio.create_task(Stdio.start(self._command, self._env, self._cwd))
        return await asyncio.shield(self._stdio)

    async def close(self) -> None:
        """Ends the server that the client started, with its sandboxes, or closes the connections."""
        self._closed = True
        if self._http is not None:
            await self._http.close()
        elif self._stdio is not None:
            try:
                transport = await self._stdio
            except SandboxError:
                return
            await transport.close()

    async def environments(self) -> list[Environment]:
        """The environments of the server, in its order."""
        answer = await (await self._transport()).request("tools/list", {}, None)
        for tool in answer.get("tools", []):
            if tool.get("name") == "run":
                env = tool["inputSchema"]["properties"]["env"]
                names = env.get("enum")
                if names is None:
                    names = re.sub(r"^\^\(|\).*$", "", env.get("pattern", "")).split("|")
                lines = dict(re.findall(r"^- ([^\s:]+): (.*)$", tool.get("description", ""), re.MULTILINE))
                return [Environment(name, lines.get(name, "")) for name in names if name]
        return []

    async def run(
        self,
        code: str,
        env: str,
        *,
        stdin: Contents | None = None,
        variables: Mapping[str, Any] | None = None,
        files: Mapping[str, Contents] | None = None,
        timeout: float | None = None,
        progress: Progress | None = None,
    ) -> Result:
        """Runs code in a new sandbox, which ends with it.

        ``stdin`` is the code's standard input, ``variables`` are values for its global variables, and
        ``files`` are contents by their paths relative to /workspace: 8 MiB together at most.
        ``timeout`` in seconds is how long the code may run: at most as long as its environment allows.
        ``progress`` is called every few seconds with the seconds that have passed and a line.
        """
        return await self._call(
            _result.parameters(code, env, stdin=stdin, variables=variables, files=files, timeout=timeout), progress
        )

    async def _call(self, params: Mapping[str, Any], progress: Progress | None) -> Result:
        return _result.result(await (await self._transport()).request("tools/call", params, progress))

    async def run_many(
        self, calls: Iterable[Call], at_once: int = 16, *, return_exceptions: bool = False
    ) -> list[Any]:
        """Runs calls, ``at_once`` at the same time, and returns their Results in the calls' order.

        The first exception ends the others and is raised, unless ``return_exceptions`` puts each
        SandboxError in its place in the list.
        """
        if at_once < 1:
            raise ValueError(f"at_once is {at_once}: it must be at least 1")
        waiting = enumerate(calls)
        results: dict[int, Any] = {}

        async def work() -> None:
            for number, call in waiting:
                try:
                    results[number] = await self.run(
                        call.code,
                        call.env,
                        stdin=call.stdin,
                        variables=call.variables,
                        files=call.files,
                        timeout=call.timeout,
                    )
                except SandboxError as error:
                    if not return_exceptions:
                        raise
                    results[number] = error

        workers = [asyncio.create_task(work()) for _ in range(at_once)]
        try:
            await asyncio.gather(*workers)
        finally:
            for worker in workers:
                worker.cancel()
            await asyncio.gather(*workers, return_exceptions=True)
        return [results[number] for number in sorted(results)]

    async def read(self, uri: str) -> bytes:
        """The contents of a file by its URI, as OutputFile has it: at most 8 MiB."""
        return _result.contents(await (await self._transport()).request("resources/read", {"uri": uri}, None))

    def session(self, env: str, name: str | None = None) -> AsyncSession:
        """A session of an environment. Its sandbox starts with its first call."""
        return AsyncSession(self, env, name)


class AsyncSession:
    """A sandbox that several calls use, one at a time. Leaving its ``async with`` ends it."""

    def __init__(self, client: AsyncClient, env: str, name: str | None = None, branch_of: str | None = None) -> None:
        self.name = name if name is not None else "py-" + uuid.uuid4().hex
        if not _NAME.fullmatch(self.name):
            raise ValueError(f"the name of the session is {self.name!r}: write 1 to 64 letters, digits, _ or -")
        self.env = env
        self._client, self._branch_of = client, branch_of
        self._used = False

    async def __aenter__(self) -> AsyncSession:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def run(
        self,
        code: str,
        *,
        stdin: Contents | None = None,
        variables: Mapping[str, Any] | None = None,
        files: Mapping[str, Contents] | None = None,
        timeout: float | None = None,
        progress: Progress | None = None,
        last: bool = False,
    ) -> Result:
        """Runs code in the session. With ``last``, the session ends with it.

        The other arguments are those of ``AsyncClient.run``.
        """
        branch_of, self._branch_of = self._branch_of, None
        params = _result.parameters(
            code, self.env, self.name, branch_of, stdin, variables, files, timeout, end_session=last
        )
        self._used = not last
        try:
            return await self._client._call(params, progress)
        except CallRefused:
            self._branch_of = branch_of
            raise

    async def write_files(self, files: Mapping[str, Contents]) -> None:
        """Writes files, by their paths relative to /workspace, of 8 MiB together at most."""
        answer = await self.run("", files=files)
        if not answer.ok:
            raise CallRefused(answer.stderr.strip() or answer.remarks, answer.outcome)

    async def read_file(self, path: str) -> bytes:
        """The contents of a file, by its path relative to /workspace: at most 8 MiB."""
        name = path.removeprefix("/workspace/")
        return await self._client.read(f"sandbox://{self.name}/{quote(name)}")

    async def branch(self, name: str | None = None) -> AsyncSession:
        """A session that begins as a copy of this one, with its processes and files.

        The environment must have branches, and no call of this session may run.
        """
        copy = AsyncSession(self._client, self.env, name, branch_of=self.name)
        await copy.run("")
        return copy

    async def close(self) -> None:
        """Ends the session, if a call has begun it."""
        if self._used and not self._client._closed:
            try:
                await self.run("", last=True)
            except SandboxError:
                pass  # it has ended, or its server has
