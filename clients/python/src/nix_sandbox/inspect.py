"""Samples of Inspect (inspect_ai) in the sandboxes of nix-sandbox-mcp: ``sandbox=("nix", "bash")``.

The configuration is the name of an environment with Bash and coreutils, ``bash`` by default. Each
sample has a session of it. A server is started as ``nix-sandbox-mcp``, or as ``NIX_SANDBOX_COMMAND``
says; with ``NIX_SANDBOX_URL``, and ``NIX_SANDBOX_TOKEN`` if it asks for one, a server over HTTP is used.

Commands of a sample run one after the other, as the one user of its sandbox: a command for another
user fails. Inspect has to run on asyncio.
"""

from __future__ import annotations

import os
import shlex
from typing import Any, Literal, overload

from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxEnvironmentLimits,
    sandboxenv,
)

from ._client import AsyncClient, AsyncSession
from ._errors import CallRefused, SandboxError
from ._result import Result

#: How much one call carries, in bytes: the server takes and gives 8 MiB.
_PART = 4 << 20
#: How much output comes with the call's own answer, in bytes of each stream; more is read from files.
_INLINE = 4 << 10
#: The only file of this module in /workspace, while a file is carried.
_CARRIED = ".nix-sandbox-part"
#: How many samples have a sandbox at once, unless Inspect is told another number.
_SAMPLES = 32


def _connect() -> AsyncClient:
    url = os.environ.get("NIX_SANDBOX_URL")
    if url:
        return AsyncClient(url=url, token=os.environ.get("NIX_SANDBOX_TOKEN"))
    return AsyncClient(shlex.split(os.environ.get("NIX_SANDBOX_COMMAND", "nix-sandbox-mcp")))


@sandboxenv(name="nix")
class NixSandboxEnvironment(SandboxEnvironment):
    """A sandbox of nix-sandbox-mcp for one sample."""

    _client: AsyncClient | None = None
    _tasks = 0

    def __init__(self, session: AsyncSession) -> None:
        super().__init__()
        self._session = session
        self._takes_timeout = True

    @classmethod
    async def task_init(cls, task_name: str, config: Any) -> None:
        NixSandboxEnvironment._tasks += 1
        if NixSandboxEnvironment._client is None:
            NixSandboxEnvironment._client = _connect()

    @classmethod
    async def task_cleanup(cls, task_name: str, config: Any, cleanup: bool) -> None:
        NixSandboxEnvironment._tasks -= 1
        client = NixSandboxEnvironment._client
        if NixSandboxEnvironment._tasks <= 0 and client is not None:
            NixSandboxEnvironment._client = None
            await client.close()

    @classmethod
    async def sample_init(
        cls, task_name: str, config: Any, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        if config is not None and not isinstance(config, str):
            raise ValueError(f'the configuration is {config!r}: write the name of an environment, such as "bash"')
        if NixSandboxEnvironment._client is None:
            NixSandboxEnvironment._client = _connect()
        session = NixSandboxEnvironment._client.session(config or "bash")
        await session.run("")
        return {"default": cls(session)}

    @classmethod
    async def sample_cleanup(
        cls, task_name: str, config: Any, environments: dict[str, SandboxEnvironment], interrupted: bool
    ) -> None:
        for environment in environments.values():
            await environment.as_type(NixSandboxEnvironment)._session.close()

    @classmethod
    def default_concurrency(cls) -> int | None:
        return _SAMPLES

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        if user is not None and (await self._call("id -un; id -u")).stdout.split().count(user) == 0:
            return ExecResult(False, 1, "", f"there is no user {user} here: commands run as the sandbox's one user")
        words = ["env", *(f"{name}={value}" for name, value in (env or {}).items()), *cmd]
        if timeout is not None:
            words = ["timeout", "--kill-after=2", str(timeout), *words]
        stdin: bytes | None = input.encode() if isinstance(input, str) else input
        source = ""
        if stdin is not None and len(stdin) > _PART:
            await self.write_file("/tmp/.nix-sandbox-stdin", stdin)
            stdin, source = None, " </tmp/.nix-sandbox-stdin"
        # Output goes to files, because an answer has room for little. Its first line has the exit status
        # and both sizes.
        got = await self._call(
            f"(cd -- /workspace && cd -- {shlex.quote(cwd or '.')} && exec {shlex.join(words)}){source}"
            " >/tmp/.nix-sandbox-out 2>/tmp/.nix-sandbox-err\n"
            "set -- $? $(stat -c %s /tmp/.nix-sandbox-out /tmp/.nix-sandbox-err); echo $*\n"
            f"[ $2 -gt {_INLINE} ] || cat /tmp/.nix-sandbox-out; [ $3 -gt {_INLINE} ] || cat /tmp/.nix-sandbox-err >&2",
            stdin=stdin,
            timeout=timeout,
        )
        facts, _, stdout = got.stdout.partition("\n")
        try:
            status, out_size, err_size = (int(fact) for fact in facts.split())
        except ValueError:
            raise SandboxError(got.stderr + got.remarks) from None
        stderr = got.stderr
        limit = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        if out_size > _INLINE:
            stdout = (await self._read("/tmp/.nix-sandbox-out", min(out_size, limit))).decode(errors="replace")
        if err_size > _INLINE:
            stderr = (await self._read("/tmp/.nix-sandbox-err", min(err_size, limit))).decode(errors="replace")
        if max(out_size, err_size) > limit:
            raise OutputLimitExceededError(
                SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, stdout if out_size > limit else stderr
            )
        if timeout is not None and status in (124, 137) and got.duration >= timeout:
            raise TimeoutError(f"the command was stopped after {timeout} s")
        if status == 126 and "Permission denied" in stderr:
            raise PermissionError(stderr.strip())
        return ExecResult(status == 0, status, stdout, stderr)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        data = contents.encode() if isinstance(contents, str) else contents
        path = shlex.quote(file)
        for at in range(0, max(len(data), 1), _PART):
            got = await self._call(
                f'(cd /workspace && mkdir -p -- "$(dirname -- {path})" && cat {_CARRIED} {">>" if at else ">"}{path});'
                f" s=$?; rm -f /workspace/{_CARRIED}; (exit $s)",
                files={_CARRIED: data[at : at + _PART]},
            )
            if not got.ok:
                raise _problem(file, got.stderr or got.remarks)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        path = shlex.quote(file)
        got = await self._call(
            f"(cd /workspace && if [ -d {path} ]; then echo Is a directory >&2; exit 1; fi; stat -L -c %s -- {path} && head -c 0 -- {path})"
        )
        if not got.ok:
            raise _problem(file, got.stderr or got.remarks)
        size = int(got.stdout)
        if size > SandboxEnvironmentLimits.MAX_READ_FILE_SIZE:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None)
        data = await self._read(file, size)
        return data.decode() if text else data

    async def _read(self, file: str, size: int) -> bytes:
        """As many bytes of a file, in parts, through a file that the server gives."""
        data = bytearray()
        while len(data) < size:
            part = min(_PART, size - len(data))
            got = await self._call(
                f"(cd /workspace && tail -c +{len(data) + 1} -- {shlex.quote(file)} | head -c {part} >{_CARRIED})"
            )
            if not got.ok:
                raise _problem(file, got.stderr or got.remarks)
            carried = await self._session.read_file(_CARRIED)
            if not carried:
                break
            data += carried
        if data:
            await self._call(f"rm -f /workspace/{_CARRIED}")
        return bytes(data)

    async def _call(self, code: str, timeout: int | None = None, **given: Any) -> Result:
        """A call whose time is the command's, if the server allows that, and otherwise the usual one."""
        got: Result | None = None
        if timeout is not None and self._takes_timeout:
            try:
                got = await self._session.run(code, timeout=timeout + 5, **given)
            except CallRefused as refusal:
                if "timeout" not in str(refusal):
                    raise
                self._takes_timeout = False
        if got is None:
            got = await self._session.run(code, **given)
        if got.timed_out:
            raise TimeoutError(got.remarks)
        return got


def _problem(file: str, words: str) -> Exception:
    """The exception that Inspect expects for an error of a program."""
    text = f"{file}: {words.strip()}"
    for part, kind in (
        ("No such file or directory", FileNotFoundError),
        ("Permission denied", PermissionError),
        ("Is a directory", IsADirectoryError),
    ):
        if part in words:
            return kind(text.replace("Is a directory", "it is a directory"))
    return OSError(text)
