"""Run code in the sandboxes of nix-sandbox-mcp.

``Client`` and ``Session`` wait for each call, ``AsyncClient`` and ``AsyncSession`` are the same for
asyncio. A client starts a server of its own, or uses one over HTTP:

    with Client() as client:
        print(client.run("print(6 * 7)", env="python").stdout)

The package uses the standard library alone.
"""

from ._errors import (
    CallRefused,
    ConnectionLost,
    ProtocolError,
    SandboxError,
    ServerNotStarted,
)
from ._client import AsyncClient, AsyncSession
from ._result import Call, Contents, Environment, Image, OutputFile, Result
from ._sync import Client, Session

__all__ = [
    "AsyncClient",
    "AsyncSession",
    "Call",
    "CallRefused",
    "Client",
    "ConnectionLost",
    "Contents",
    "Environment",
    "Image",
    "OutputFile",
    "ProtocolError",
    "Result",
    "SandboxError",
    "ServerNotStarted",
    "Session",
]

__version__ = "0.1.0"
