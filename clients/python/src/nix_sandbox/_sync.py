"""The client without asyncio: an event loop in a thread of its own carries its calls."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

from ._client import AsyncClient, AsyncSession
from ._errors import SandboxError
from ._result import Call, Contents, Environment, Progress, Result

T = TypeVar("T")


class _Loop:
    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="nix-sandbox", daemon=True)
        self._thread.start()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        if not self._thread.is_alive():
            work.close()
            raise SandboxError("the client is closed")
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            # Of a KeyboardInterrupt, the code in the sandbox hears too.
            future.cancel()
            raise

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class Client:
    """A client of one server, whose methods wait. Threads may share it.

    Its arguments and methods are those of AsyncClient. ``progress`` is called in another thread. An
    exception that comes while a method waits, such as KeyboardInterrupt, cancels the call.
    """

    def __init__(self, command: Sequence[str] = ("nix-sandbox-mcp",), **options: Any) -> None:
        self._client = AsyncClient(command, **options)
        self._loop = _Loop()
        self._closed = False

    def __enter__(self) -> Client:
        try:
            self._loop.wait(self._client.__aenter__())
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the server that the client started, with its sandboxes, or closes the connections."""
        if not self._closed:
            self._closed = True
            try:
                self._loop.wait(self._client.close())
            finally:
                self._loop.close()

    def environments(self) -> list[Environment]:
        """The environments of the server, in its order."""
        return self._loop.wait(self._client.environments())

    def run(
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
        """Runs code in a new sandbox, which ends with it: see AsyncClient.run."""
        return self._loop.wait(
            self._client.run(
                code, env, stdin=stdin, variables=variables, files=files, timeout=timeout, progress=progress
            )
        )

    def run_many(self, calls: Iterable[Call], at_once: int = 16, *, return_exceptions: bool = False) -> list[Any]:
        """Runs calls at the same time and returns their Results in order: see AsyncClient.run_many."""
        return self._loop.wait(self._client.run_many(calls, at_once, return_exceptions=return_exceptions))

    def read(self, uri: str) -> bytes:
        """The contents of a file by its URI, as OutputFile has it: at most 8 MiB."""
        return self._loop.wait(self._client.read(uri))

    def session(self, env: str, name: str | None = None) -> Session:
        """A session of an environment. Its sandbox starts with its first call."""
        return Session(self, self._client.session(env, name))


class Session:
    """A sandbox that several calls use, one at a time. Leaving its ``with`` ends it."""

    def __init__(self, client: Client, session: AsyncSession) -> None:
        self._client, self._session = client, session

    @property
    def name(self) -> str:
        return self._session.name

    @property
    def env(self) -> str:
        return self._session.env

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run(
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
        """Runs code in the session: see AsyncSession.run."""
        return self._client._loop.wait(
            self._session.run(
                code, stdin=stdin, variables=variables, files=files, timeout=timeout, progress=progress, last=last
            )
        )

    def write_files(self, files: Mapping[str, Contents]) -> None:
        """Writes files, by their paths relative to /workspace, of 8 MiB together at most."""
        self._client._loop.wait(self._session.write_files(files))

    def read_file(self, path: str) -> bytes:
        """The contents of a file, by its path relative to /workspace: at most 8 MiB."""
        return self._client._loop.wait(self._session.read_file(path))

    def branch(self, name: str | None = None) -> Session:
        """A session that begins as a copy of this one: see AsyncSession.branch."""
        return Session(self._client, self._client._loop.wait(self._session.branch(name)))

    def close(self) -> None:
        """Ends the session, if a call has begun it."""
        if not self._client._closed:
            self._client._loop.wait(self._session.close())
