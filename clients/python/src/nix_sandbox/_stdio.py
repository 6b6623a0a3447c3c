"""A server that the client starts, on standard streams."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import Any

from . import _message as message
from ._errors import ConnectionLost, ProtocolError, ServerNotStarted
from ._result import Progress

#: How much of the server's log is kept, in bytes, for the error when it ends.
_LOG = 8 << 10
#: How long the server may take to end, in seconds. It ends its sandboxes meanwhile.
_END = 10.0


class Stdio:
    """Carries requests to a server of its own."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._last = 0
        self._waiting: dict[int, tuple[asyncio.Future[dict[str, Any]], Progress | None]] = {}
        self._log = b""
        self._ended: Exception | None = None
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._read_log())]

    @classmethod
    async def start(cls, command: Sequence[str], env: Mapping[str, str] | None, cwd: str | None) -> Stdio:
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                limit=message.MAX_MESSAGE,
                env=None if env is None else {**os.environ, **env},
                cwd=cwd,
            )
        except OSError as error:
            raise ServerNotStarted(
                f"{command[0]} could not be started: {error.strerror or error}; install nix-sandbox-mcp, or name its program with command"
            ) from error
        return cls(process)

    async def request(self, method: str, params: Mapping[str, Any], progress: Progress | None) -> dict[str, Any]:
        if self._ended is not None:
            raise self._ended
        self._last += 1
        id = self._last
        text = message.request(id, method, params, progress is not None)
        reply: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[id] = reply, progress
        try:
            await self._write(text)
            return message.outcome(await reply)
        except asyncio.CancelledError:
            if self._ended is None:
                self._send(message.notification("notifications/cancelled", {"requestId": id}))
            raise
        finally:
            self._waiting.pop(id, None)

    def _send(self, text: bytes) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(text + b"\n")

    async def _write(self, text: bytes) -> None:
        assert self._process.stdin is not None
        try:
            self._send(text)
            await self._process.stdin.drain()
        except OSError as error:
            await asyncio.wait(self._tasks, timeout=_END)
            raise self._ended or ConnectionLost(f"the server does not read: {error}") from error

    async def _read(self) -> None:
        assert self._process.stdout is not None
        problem: Exception | None = None
        try:
            while line := await self._process.stdout.readline():
                self._take(message.decode(line))
        except (ProtocolError, ValueError, OSError) as error:
            problem = error
            self._process.kill()
        await self._process.wait()
        await asyncio.wait([self._tasks[1]], timeout=1)
        log = self._log.decode(errors="replace").strip()
        self._ended = ConnectionLost(
            f"the server ended with status {self._process.returncode}"
            + (f": {problem}" if problem else "")
            + (f"; its log ends with\n{log}" if log else "")
        )
        for reply, _ in self._waiting.values():
            if not reply.done():
                reply.set_exception(self._ended)

    def _take(self, received: dict[str, Any]) -> None:
        told = message.progress_of(received)
        if told is not None:
            token, seconds, line = told
            if isinstance(token, int) and token in self._waiting and (progress := self._waiting[token][1]):
                progress(seconds, line)
            return
        id = received.get("id")
        if isinstance(id, int) and id in self._waiting and ("result" in received or "error" in received):
            reply = self._waiting[id][0]
            if not reply.done():
                reply.set_result(received)

    async def _read_log(self) -> None:
        assert self._process.stderr is not None
        while part := await self._process.stderr.read(_LOG):
            self._log = (self._log + part)[-_LOG:]

    async def close(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.close()
        _, late = await asyncio.wait(self._tasks, timeout=_END)
        if late:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            # A process that the server left behind may hold its log open.
            for task in late:
                task.cancel()
            await asyncio.wait(late)
