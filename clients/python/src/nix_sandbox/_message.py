"""Messages of the Model Context Protocol, in its revision without a handshake."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ._errors import ProtocolError

VERSION = "2026-07-28"

#: The longest message that is read, in bytes: an answer may have several images.
MAX_MESSAGE = 256 << 20


def request(id: int, method: str, params: Mapping[str, Any], wants_progress: bool) -> bytes:
    """A request as JSON. Its progress token is its id."""
    meta = dict(params.get("_meta") or {})
    meta["io.modelcontextprotocol/protocolVersion"] = VERSION
    meta["io.modelcontextprotocol/clientCapabilities"] = {}
    meta["io.modelcontextprotocol/clientInfo"] = {"name": "nix-sandbox-python", "version": "1"}
    if wants_progress:
        meta["progressToken"] = id
    return encode({"jsonrpc": "2.0", "id": id, "method": method, "params": {**params, "_meta": meta}})


def notification(method: str, params: Mapping[str, Any]) -> bytes:
    return encode({"jsonrpc": "2.0", "method": method, "params": dict(params)})


def encode(message: Mapping[str, Any]) -> bytes:
    try:
        return json.dumps(message, separators=(",", ":"), allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise ValueError(f"the call cannot be written as JSON: {error}") from error


def decode(text: bytes) -> dict[str, Any]:
    try:
        message = json.loads(text)
    except ValueError as error:
        raise ProtocolError(f"the server sent {text[:80]!r}, which is not JSON") from error
    if not isinstance(message, dict):
        raise ProtocolError(f"the server sent {text[:80]!r}, which is not a message")
    return message


def outcome(message: Mapping[str, Any]) -> dict[str, Any]:
    """The result in a reply. An error is raised."""
    error = message.get("error")
    if error is not None:
        raise ProtocolError(str(error.get("message", "the server gave no reason")), error.get("code"))
    result = message.get("result")
    if not isinstance(result, dict):
        raise ProtocolError("the server sent a reply without a result")
    return result


def progress_of(message: Mapping[str, Any]) -> tuple[Any, float, str] | None:
    """The token, seconds and line of a notification of progress."""
    if message.get("method") != "notifications/progress":
        return None
    params = message.get("params") or {}
    return params.get("progressToken"), float(params.get("progress") or 0), str(params.get("message") or "")
