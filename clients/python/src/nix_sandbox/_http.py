"""A server over HTTP: at an address, or at a Unix socket."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from . import _message as message
from ._errors import ConnectionLost, ProtocolError
from ._result import Progress

#: Bounds of what a server's response may have before its body, and of a line of its events.
_LINE = 64 << 10
_LINES = 100
#: How many idle connections are kept.
_IDLE = 64


class _Stale(Exception):
    """A connection that was kept has ended before a byte of the response came."""


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.used = False

    def close(self) -> None:
        self.writer.close()


class HTTP:
    """Carries requests to a server over HTTP/1.1. Each request in flight has a connection."""

    def __init__(self, url: str, token: str | None, ssl_context: ssl.SSLContext | None) -> None:
        self._unix: str | None = None
        if url.startswith("unix:"):
            self._unix, host, path = url.removeprefix("unix:"), "localhost", "/mcp"
        else:
            parts = urlsplit(url)
            if parts.scheme not in ("http", "https") or not parts.hostname:
                raise ValueError(f"the url is {url!r}: write http://HOST:PORT, https://HOST or unix:/PATH")
            secure = parts.scheme == "https"
            self._address = parts.hostname, parts.port or (443 if secure else 80)
            self._tls = (ssl_context or ssl.create_default_context()) if secure else None
            host, path = parts.netloc.rpartition("@")[2], parts.path
            if path in ("", "/"):
                path = "/mcp"
        lines = [f"POST {path} HTTP/1.1", f"Host: {host}", "Content-Type: application/json"]
        lines += ["Accept: application/json, text/event-stream", f"MCP-Protocol-Version: {message.VERSION}"]
        if token is not None:
            lines.append(f"Authorization: Bearer {token}")
        if any(ord(char) < 32 or ord(char) > 126 for line in lines for char in line):
            raise ValueError("the url or the token has a character that HTTP does not allow there")
        self._head = "\r\n".join(lines).encode("ascii")
        self._idle: list[_Connection] = []
        self._closed = False
        self._last = 0

    async def request(self, method: str, params: Mapping[str, Any], progress: Progress | None) -> dict[str, Any]:
        self._last += 1
        body = message.request(self._last, method, params, progress is not None)
        name = params.get("name") or params.get("uri") or ""
        head = self._head + f"\r\nMcp-Method: {method}\r\nContent-Length: {len(body)}".encode("ascii")
        if name:
            if not (name.isascii() and name.isprintable()):
                raise ValueError(f"{name!r} has a character that HTTP does not allow in a header")
            head += f"\r\nMcp-Name: {name}".encode("ascii")
        while True:
            if self._closed:
                raise ConnectionLost("the client is closed")
            connection = self._idle.pop() if self._idle else await self._connect()
            done = False
            try:
                reply = await self._exchange(connection, head + b"\r\n\r\n" + body, progress)
                done = True
                return message.outcome(reply)
            except _Stale:
                continue
            except ValueError as error:  # of a line that is too long
                raise ProtocolError(f"the server sent something else than HTTP: {error}") from error
            except (OSError, EOFError) as error:
                # In this revision of the protocol, closing the connection cancels the call, too.
                raise ConnectionLost(f"the connection to the server ended: {error or 'no more bytes'}") from error
            finally:
                if done and connection.used and not self._closed and len(self._idle) < _IDLE:
                    self._idle.append(connection)
                else:
                    connection.close()

    async def _connect(self) -> _Connection:
        try:
            if self._unix is not None:
                streams = await asyncio.open_unix_connection(self._unix, limit=_LINE)
            else:
                streams = await asyncio.open_connection(*self._address, ssl=self._tls, limit=_LINE)
        except OSError as error:
            where = self._unix or "%s:%d" % self._address
            raise ConnectionLost(f"{where} does not answer: {error.strerror or error}") from error
        return _Connection(*streams)

    async def _exchange(self, connection: _Connection, text: bytes, progress: Progress | None) -> dict[str, Any]:
        reader, was_used = connection.reader, connection.used
        connection.used = False
        try:
            connection.writer.write(text)
            await connection.writer.drain()
            first = await reader.readline()
        except OSError:
            if was_used:
                raise _Stale from None
            raise
        if not first:
            if was_used:
                raise _Stale
            raise EOFError("the server closed it")
        status, fields = await _head(reader, first)
        body = _body(reader, fields)
        if fields.get("content-type", "").startswith("text/event-stream") and status == 200:
            reply = None
            async for event in _events(body):
                told = message.progress_of(event)
                if told is None and ("result" in event or "error" in event):
                    reply = event
                elif told is not None and progress is not None:
                    progress(told[1], told[2])
            if reply is None:
                raise EOFError("the server's events ended without the answer")
        else:
            data = bytearray()
            async for part in body:
                data += part
                if len(data) > message.MAX_MESSAGE:
                    raise ProtocolError(f"the answer has more than {message.MAX_MESSAGE} bytes")
            reply = self._reply(status, bytes(data))
        connection.used = fields.get("connection", "").lower() != "close"
        return reply

    @staticmethod
    def _reply(status: int, data: bytes) -> dict[str, Any]:
        try:
            reply = message.decode(data)
        except ProtocolError:
            reply = {}
        if status == 200 and ("error" in reply or "result" in reply):
            return reply
        if isinstance(reply.get("error"), dict):
            raise ProtocolError(str(reply["error"].get("message")), status)
        words = data[:1000].decode(errors="replace").strip() or "nothing more"
        raise ProtocolError(f"the server answered with status {status}: {words}", status)

    async def close(self) -> None:
        self._closed = True
        while self._idle:
            connection = self._idle.pop()
            connection.close()
            with contextlib.suppress(OSError):
                await connection.writer.wait_closed()


async def _head(reader: asyncio.StreamReader, first: bytes) -> tuple[int, dict[str, str]]:
    words = first.split(None, 2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/1.") or not words[1].isdigit():
        raise ProtocolError(f"the server sent {first[:80]!r}, which is not HTTP")
    fields: dict[str, str] = {}
    for _ in range(_LINES):
        line = await reader.readline()
        if line in (b"\r\n", b"\n"):
            return int(words[1]), fields
        if not line:
            raise EOFError("the response ended early")
        name, _, value = line.decode("latin-1").partition(":")
        fields[name.strip().lower()] = value.strip()
    raise ProtocolError(f"the server's response has more than {_LINES} fields")


async def _body(reader: asyncio.StreamReader, fields: Mapping[str, str]) -> AsyncIterator[bytes]:
    try:
        if fields.get("transfer-encoding", "").lower() == "chunked":
            while size := int((await reader.readline()).partition(b";")[0] or b"?", 16):
                while size > 0:
                    part = await reader.read(min(size, _LINE))
                    if not part:
                        raise EOFError("the response ended early")
                    size -= len(part)
                    yield part
                await reader.readline()
            await reader.readline()
            return
        left = int(fields.get("content-length", "-1"))
    except ValueError as error:
        raise ProtocolError(f"the server's response has a wrong size: {error}") from error
    while left != 0:
        part = await reader.read(_LINE if left < 0 else min(left, _LINE))
        if not part:
            if left < 0:
                return
            raise EOFError("the response ended early")
        left -= len(part) if left > 0 else 0
        yield part


async def _events(body: AsyncIterator[bytes]) -> AsyncIterator[dict[str, Any]]:
    """The messages in a stream of server-sent events."""
    rest, data = bytearray(), bytearray()
    async for part in body:
        searched = len(rest)
        rest += part
        if len(rest) + len(data) > message.MAX_MESSAGE:
            raise ProtocolError(f"an event has more than {message.MAX_MESSAGE} bytes")
        while (end := rest.find(b"\n", searched)) >= 0:
            line = bytes(rest[:end]).rstrip(b"\r")
            del rest[: end + 1]
            searched = 0
            if line.startswith(b"data:"):
                data += line[5:].removeprefix(b" ")
            elif not line and data:
                yield message.decode(bytes(data))
                data.clear()
