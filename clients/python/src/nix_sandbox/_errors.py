"""What can go wrong. Code that fails is no exception: its Result says so."""


class SandboxError(Exception):
    """The base of this package's exceptions. Its text is the server's, where that said something."""


class CallRefused(SandboxError):
    """The server did not run a call, or it ended without a result, and says why."""

    def __init__(self, message: str, outcome: str = "refused") -> None:
        super().__init__(message)
        #: The server's word: ``refused``, ``cancelled`` or ``died``.
        self.outcome = outcome


class ProtocolError(SandboxError):
    """The server refused a message, or sent one that is none of the protocol."""

    def __init__(self, message: str, code: int | None = None) -> None:
        super().__init__(message)
        #: The code of JSON-RPC, or the status of HTTP, or None.
        self.code = code


class ConnectionLost(SandboxError):
    """The server ended, or the connection to it did, before the answer came."""


class ServerNotStarted(SandboxError):
    """The program of the server could not be started."""
