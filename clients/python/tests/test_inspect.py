"""The provider for Inspect. Without inspect_ai, the parts of its interface that it uses stand in."""

import abc
import asyncio
import dataclasses
import os
import sys
import types
import unittest

from support import SERVER

try:
    import inspect_ai.util as util
except ImportError:
    util = types.ModuleType("inspect_ai.util")

    @dataclasses.dataclass
    class ExecResult:
        success: bool
        returncode: int
        stdout: str
        stderr: str

    class OutputLimitExceededError(Exception):
        def __init__(self, limit_str, truncated_output):
            super().__init__(limit_str)
            self.truncated_output = truncated_output

    class SandboxEnvironmentLimits:
        MAX_EXEC_OUTPUT_SIZE, MAX_EXEC_OUTPUT_SIZE_STR = 10 << 20, "10 MiB"
        MAX_READ_FILE_SIZE, MAX_READ_FILE_SIZE_STR = 100 << 20, "100 MiB"

    class SandboxEnvironment(abc.ABC):
        @abc.abstractmethod
        async def exec(self, *arguments, **named): ...

        @abc.abstractmethod
        async def write_file(self, *arguments): ...

        @abc.abstractmethod
        async def read_file(self, *arguments): ...

        @classmethod
        @abc.abstractmethod
        async def sample_cleanup(cls, *arguments): ...

        def as_type(self, kind):
            assert isinstance(self, kind)
            return self

    util.ExecResult, util.OutputLimitExceededError = ExecResult, OutputLimitExceededError
    util.SandboxEnvironment, util.SandboxEnvironmentLimits = SandboxEnvironment, SandboxEnvironmentLimits
    util.sandboxenv = lambda name: lambda kind: kind
    sys.modules["inspect_ai"], sys.modules["inspect_ai.util"] = types.ModuleType("inspect_ai"), util

from nix_sandbox.inspect import NixSandboxEnvironment  # noqa: E402


class Samples(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        os.environ["NIX_SANDBOX_COMMAND"] = SERVER
        await NixSandboxEnvironment.task_init("task", None)
        self.samples = await NixSandboxEnvironment.sample_init("task", "bash", {})
        self.sandbox = self.samples["default"]

    async def asyncTearDown(self):
        await NixSandboxEnvironment.sample_cleanup("task", "bash", self.samples, False)
        await NixSandboxEnvironment.task_cleanup("task", None, True)

    async def test_commands_have_input_variables_and_a_folder(self):
        got = await self.sandbox.exec(
            ["sh", "-c", 'cat; echo "$A"; pwd; echo err >&2; exit 7'], input="in\n", env={"A": "a 'b' $c"}, cwd="/tmp"
        )
        self.assertEqual((got.success, got.returncode, got.stdout, got.stderr), (False, 7, "in\na 'b' $c\n/tmp\n", "err\n"))
        self.assertEqual((await self.sandbox.exec(["cat"], input=b"")).stdout, "")
        self.assertEqual((await self.sandbox.exec(["nosuch"])).returncode, 127)
        self.assertEqual((await self.sandbox.exec(["pwd"], cwd="none")).success, False)
        with self.assertRaises(PermissionError):
            await self.sandbox.exec(["/etc/passwd"])

    async def test_large_input_and_output_pass(self):
        data = os.urandom(9 << 20).hex()
        got = await self.sandbox.exec(["wc", "-c"], input=data)
        self.assertEqual(int(got.stdout), len(data))
        got = await self.sandbox.exec(["head", "-c", str(5 << 20)], input=data)
        self.assertEqual(got.stdout, data[: 5 << 20])
        with self.assertRaises(util.OutputLimitExceededError):
            await self.sandbox.exec(["head", "-c", "11000000", "/dev/zero"])

    async def test_files_are_anywhere(self):
        data = bytes(range(256)) * (40 << 10)
        for name in ("a/b", "/tmp/c d/e", "f'g"):
            await self.sandbox.write_file(name, data)
            self.assertEqual(await self.sandbox.read_file(name, text=False), data)
            await self.sandbox.write_file(name, "é\r\n")
            self.assertEqual(await self.sandbox.read_file(name), "é\r\n")
        self.assertEqual((await self.sandbox.exec(["ls", "-A"])).stdout, "a\nf'g\noutputs\n")
        with self.assertRaises(FileNotFoundError):
            await self.sandbox.read_file("none")
        with self.assertRaises(IsADirectoryError):
            await self.sandbox.read_file("a")
        with self.assertRaises(IsADirectoryError):
            await self.sandbox.write_file("a", "")
        await self.sandbox.exec(["chmod", "000", "f'g"])
        with self.assertRaises(PermissionError):
            await self.sandbox.read_file("f'g")
        with self.assertRaises(UnicodeDecodeError):
            await self.sandbox.write_file("h", b"\xff")
            await self.sandbox.read_file("h")

    async def test_a_command_ends_at_its_timeout(self):
        with self.assertRaises(TimeoutError):
            await self.sandbox.exec(["sh", "-c", "sleep 987 & sleep 988"], timeout=1)
        got = await self.sandbox.exec(["sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' ' | grep -c 'sleep 98[7]'"])
        self.assertEqual(got.stdout, "0\n")
        self.assertEqual((await self.sandbox.exec(["sh", "-c", "exit 124"], timeout=20)).returncode, 124)

    async def test_another_user_is_refused(self):
        got = await self.sandbox.exec(["true"], user="nobody-here")
        self.assertFalse(got.success)
        self.assertIn("nobody-here", got.stderr)

    async def test_samples_do_not_meet(self):
        other = await NixSandboxEnvironment.sample_init("task", None, {})
        await self.sandbox.write_file("f", "x")
        with self.assertRaises(FileNotFoundError):
            await other["default"].read_file("f")
        await NixSandboxEnvironment.sample_cleanup("task", None, other, False)


if __name__ == "__main__":
    unittest.main()
