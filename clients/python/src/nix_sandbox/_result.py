"""What a call is made of, and what it brings."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Union

from ._errors import CallRefused, ProtocolError

#: The contents of a file, or of standard input.
Contents = Union[str, bytes]

PREFIX = "nix-sandbox-mcp/"


@dataclass(frozen=True)
class Environment:
    """An environment of the server."""

    name: str
    #: The line with which the server describes it to models, or "".
    description: str


@dataclass(frozen=True)
class Image:
    """An image that the code wrote or showed."""

    data: bytes
    #: Such as ``image/png``.
    type: str


@dataclass(frozen=True)
class OutputFile:
    """A file in /workspace/outputs that the call wrote, and that is no image."""

    name: str
    #: The argument of ``Client.read``.
    uri: str
    #: In bytes.
    size: int
    type: str


@dataclass(frozen=True)
class Call:
    """A call for ``run_many``. The fields are the arguments of ``Client.run``."""

    code: str
    env: str
    stdin: Contents | None = None
    variables: Mapping[str, Any] | None = None
    files: Mapping[str, Contents] | None = None
    timeout: float | None = None


@dataclass(frozen=True)
class Result:
    """What a call brought."""

    #: What the code wrote, as text: bytes that are not UTF-8 are U+FFFD.
    stdout: str
    stderr: str
    #: 128 + N if signal N ended the code.
    exit_code: int
    #: ``ok``, or ``failed`` if the code ended by itself with another exit status than 0; otherwise
    #: ``timeout``, ``cancelled``, ``memory``, ``limit`` or ``crashed``.
    outcome: str
    #: How long the code ran, in seconds.
    duration: float
    #: The server's remarks: how the code ended, what was cut, and hints.
    remarks: str
    images: tuple[Image, ...]
    files: tuple[OutputFile, ...]
    #: Whether a part of stdout or stderr is left out; a remark in them says where.
    truncated: bool
    #: All facts of the server, by name and without the server's prefix.
    facts: Mapping[str, Any] = field(repr=False)

    @property
    def ok(self) -> bool:
        """Whether the code ended by itself with exit status 0."""
        return self.outcome == "ok"

    @property
    def timed_out(self) -> bool:
        """Whether the code was stopped at its time limit."""
        return self.outcome == "timeout"


def parameters(
    code: str,
    env: str,
    session: str | None = None,
    branch_of: str | None = None,
    stdin: Contents | None = None,
    variables: Mapping[str, Any] | None = None,
    files: Mapping[str, Contents] | None = None,
    timeout: float | None = None,
    end_session: bool = False,
) -> dict[str, Any]:
    """The params of a tools/call."""
    arguments: dict[str, Any] = {"code": code, "env": env}
    if session is not None:
        arguments["session"] = session
    if branch_of is not None:
        arguments["from"] = branch_of
    meta: dict[str, Any] = {PREFIX + "verbatim": True}
    if timeout is not None:
        meta[PREFIX + "timeout"] = timeout
    if stdin is not None:
        meta[PREFIX + "stdin"] = _encode(stdin)
    if variables is not None:
        meta[PREFIX + "variables"] = dict(variables)
    if files is not None:
        meta[PREFIX + "files"] = {name: _encode(contents) for name, contents in files.items()}
    if end_session:
        meta[PREFIX + "end_session"] = True
    return {"name": "run", "arguments": arguments, "_meta": meta}


def _encode(contents: Contents) -> str | dict[str, str]:
    if isinstance(contents, str):
        return contents
    return {"base64": base64.b64encode(contents).decode("ascii")}


def result(answer: Mapping[str, Any]) -> Result:
    """The Result of a tools/call's result."""
    facts = {
        name.removeprefix(PREFIX): value
        for name, value in (answer.get("_meta") or {}).items()
        if name.startswith(PREFIX)
    }
    texts: list[str] = []
    images: list[Image] = []
    files: list[OutputFile] = []
    for item in answer.get("content", []):
        kind = item.get("type")
        if kind == "text":
            texts.append(item.get("text", ""))
        elif kind == "image":
            images.append(Image(decode(item.get("data", "")), item.get("mimeType", "")))
        elif kind == "resource_link":
            files.append(
                OutputFile(item.get("name", ""), item.get("uri", ""), item.get("size") or 0, item.get("mimeType", ""))
            )
    parts: dict[str, str] = dict(zip(facts.get("content", []), texts))
    if "exit_code" not in facts:
        # The sandbox did not start or ended, and stdout is what it wrote before.
        words = parts.get("remarks") or "\n".join(texts) or "the server gave no reason"
        raise CallRefused(words, facts.get("outcome", "refused"))
    return Result(
        stdout=parts.get("stdout", ""),
        stderr=parts.get("stderr", ""),
        exit_code=facts["exit_code"],
        outcome=facts.get("outcome", "ok"),
        duration=facts.get("duration_ms", 0) / 1000,
        remarks=parts.get("remarks", ""),
        images=tuple(images),
        files=tuple(files),
        truncated=bool(facts.get("truncated")),
        facts=facts,
    )


def contents(answer: Mapping[str, Any]) -> bytes:
    """The bytes of a resources/read's result."""
    parts = answer.get("contents") or []
    if not parts:
        raise ProtocolError("the server answered a read with no contents")
    first = parts[0]
    if "blob" in first:
        return decode(first["blob"])
    return first.get("text", "").encode()


def decode(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ProtocolError(f"the server sent base64 that is none: {error}") from error


#: Is called with the seconds that a call has taken, and a line about it.
Progress = Callable[[float, str], None]
