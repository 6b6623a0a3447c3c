"""The client against the real server, on standard streams and over HTTP."""

import asyncio
import pathlib
import socket
import tempfile
import threading
import time
import unittest

from nix_sandbox import (
    AsyncClient,
    Call,
    CallRefused,
    Client,
    ConnectionLost,
    ProtocolError,
    SandboxError,
    ServerNotStarted,
)
from support import LONG, SERVER, Serve


class Calls:
    """What both ways to a server promise."""

    client: Client

    def test_environments_are_listed(self):
        named = {env.name: env.description for env in self.client.environments()}
        self.assertIn("python", named)
        self.assertIn("bash", named)
        self.assertIn("Python", named["python"])

    def test_code_is_run(self):
        got = self.client.run("import sys; print('out', end=''); print('[exit status 0]', file=sys.stderr); sys.exit(3)", "python")
        self.assertEqual((got.stdout, got.stderr, got.exit_code, got.outcome), ("out", "[exit status 0]\n", 3, "failed"))
        self.assertEqual(got.remarks, "[exit status 3]")
        self.assertFalse(got.ok)
        quiet = self.client.run("", "python")
        self.assertEqual((quiet.stdout, quiet.stderr, quiet.ok), ("", "", True))

    def test_a_call_is_given_stdin_variables_and_files(self):
        code = "import sys\nprint(sys.stdin.buffer.read(), x, y, open('a/b', 'rb').read(), open('c').read())"
        got = self.client.run(
            code, "python", stdin=b"\xff\n", variables={"x": [1, 2.0, None], "y": "é'\"#"}, files={"a/b": b"\x00", "c": "ü"}
        )
        self.assertEqual(got.stdout, "b'\\xff\\n' [1, 2.0, None] é'\"# b'\\x00' ü\n", got)

    def test_a_mistake_is_refused_with_the_servers_words(self):
        for arguments, words in (
            ({"env": "python", "files": {"../x": ""}}, "use a path relative"),
            ({"env": "none"}, 'there is no env "none"'),
            ({"env": "python", "variables": {"a b": 1}}, '"a b"'),
        ):
            with self.assertRaises(CallRefused) as caught:
                self.client.run("print(1)", **arguments)
            self.assertIn(words, str(caught.exception))
        with self.assertRaisesRegex(ValueError, "JSON"):
            self.client.run("print(1)", "python", variables={"a": object()})
        self.assertEqual(self.client.run("print(1)", "python").stdout, "1\n")

    def test_a_session_keeps_state_and_files(self):
        with self.client.session("python") as session:
            session.run("x = 1; open('f', 'w').write('text');")
            session.write_files({"d/g": b"\x00\x01"})
            self.assertEqual(session.run("x += 1; print(x, open('d/g', 'rb').read())").stdout, "2 b'\\x00\\x01'\n")
            self.assertEqual(session.read_file("f"), b"text")
            self.assertEqual(session.read_file("/workspace/d/g"), b"\x00\x01")
            with self.assertRaises(ProtocolError) as caught:
                session.read_file("none")
            self.assertIn("none", str(caught.exception))
            with self.assertRaises(CallRefused):
                session.write_files({"f/g": "f is no folder"})
            name = session.name
        # Its room is free again, and the name means another session.
        with self.client.session("python", name) as again:
            self.assertEqual(again.run("print('x' in globals())").stdout, "False\n")

    def test_a_last_call_ends_the_session(self):
        session = self.client.session("python", "the-last")
        session.run("x = 5")
        self.assertEqual(session.run("print(x)", last=True).stdout, "5\n")
        self.assertEqual(session.run("print('x' in globals())", last=True).stdout, "False\n")

    def test_images_and_files_come_back(self):
        code = "import os, base64\nopen('outputs/a.png', 'wb').write(base64.b64decode(%r)); open('outputs/b.bin', 'wb').write(b'\\xff');"
        png = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
        got = self.client.run("import os; os.makedirs('outputs', exist_ok=True)\n" + code % png, "python")
        self.assertEqual([(image.type, image.data[:4]) for image in got.images], [("image/png", b"\x89PNG")], got)
        self.assertEqual([(file.name, file.size) for file in got.files], [("b.bin", 1)])
        self.assertEqual(self.client.read(got.files[0].uri), b"\xff")

    def test_long_output_is_cut(self):
        got = self.client.run("print('é' * 1_000_000)", "python")
        self.assertTrue(got.truncated)
        self.assertGreater(got.facts["cut_bytes"], 1_000_000)

    def test_many_calls_are_answered_in_order(self):
        calls = [Call("import sys; print(int(sys.stdin.read()) * 2)", "python", stdin=str(n)) for n in range(24)]
        calls[7] = Call("print(1)", "none")
        with self.assertRaises(CallRefused):
            self.client.run_many(calls, 4)
        got = self.client.run_many(iter(calls), 4, return_exceptions=True)
        self.assertIsInstance(got.pop(7), CallRefused)
        self.assertEqual([int(result.stdout) // 2 for result in got], [n for n in range(24) if n != 7])
        self.assertEqual(self.client.run_many([]), [])

    def test_progress_is_told(self):
        told = []
        self.client.run("for i in 1 2 3 4 5 6; do echo step $i; sleep 1; done", "bash", progress=lambda *what: told.append(what))
        self.assertTrue(told)
        self.assertRegex(told[0][1], "step")

    def test_a_cancelled_call_ends_its_code(self):
        async def cancel():
            async with self.another() as client:
                async with client.session("bash") as session:
                    begun = asyncio.Event()
                    code = "echo begun | tee f; sleep 25; echo ended >f"
                    task = asyncio.create_task(session.run(code, progress=lambda *_: begun.set()))
                    await begun.wait()
                    task.cancel()
                    with self.assertRaises(asyncio.CancelledError):
                        await task
                    # The next call of the session waits for the end of the cancelled one.
                    self.assertEqual((await session.run("cat f")).stdout, "begun\n")

        asyncio.run(asyncio.wait_for(cancel(), 2 * LONG))

    def test_threads_share_a_client(self):
        got = {}

        def work(number):
            got[number] = self.client.run(f"print({number})", "python").stdout

        threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LONG)
        self.assertEqual(got, {n: f"{n}\n" for n in range(4)})

    def test_large_messages_pass(self):
        data = bytes(range(256)) * (8 << 12)
        with self.client.session("python") as session:
            session.write_files({"large": data[: 8 << 20]})
            self.assertEqual(session.read_file("large"), data[: 8 << 20])
        with self.assertRaisesRegex(CallRefused, "8388608 are allowed"):
            self.client.run("", "python", stdin=data + b"x")


class OverStdio(Calls, unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.client = Client([SERVER])

    @classmethod
    def tearDownClass(cls):
        cls.client.close()

    def another(self):
        return AsyncClient([SERVER])

    def test_a_server_that_does_not_start_is_an_error(self):
        with self.assertRaisesRegex(ServerNotStarted, "install nix-sandbox-mcp"):
            with Client(["/nowhere/nix-sandbox-mcp"]):
                pass

    def test_a_server_that_ends_is_an_error_with_its_log(self):
        client = Client(["sh", "-c", "echo the reason >&2; read line; exit 7"])
        with self.assertRaisesRegex(ConnectionLost, "status 7(.|\n)*the reason"):
            client.run("", "python")
        with self.assertRaisesRegex(ConnectionLost, "status 7"):
            client.run("", "python")
        client.close()

    def test_a_server_that_talks_nonsense_is_an_error(self):
        for words in ("echo nonsense", "echo []", "head -c 1000 /dev/zero; echo", "echo '{\"id\": 1, \"result\": 5}'"):
            client = Client(["sh", "-c", "read line; " + words + "; exec cat >/dev/null"])
            with self.assertRaises(SandboxError):
                client.run("", "python")
            client.close()

    def test_a_closed_client_refuses(self):
        client = Client([SERVER])
        client.run("", "bash")
        client.close()
        client.close()
        with self.assertRaisesRegex(SandboxError, "closed"):
            client.run("", "bash")

    def test_variables_reach_the_server(self):
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "file").write_text("of the project")
            with Client([SERVER], env={"PROJECT_DIR": folder}) as client:
                self.assertEqual(client.run("cat /project/file", "bash").stdout, "of the project")


class OverHTTP(Calls, unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Serve()
        cls.client = Client(url=cls.server.url, token=cls.server.token)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        cls.server.close()

    def another(self):
        return AsyncClient(url=self.server.url, token=self.server.token)

    def test_a_wrong_token_is_refused(self):
        for token in (None, "wrong"):
            with Client(url=self.server.url, token=token) as client, self.assertRaises(ProtocolError) as caught:
                client.run("", "python")
            self.assertEqual(caught.exception.code, 401)
        with self.assertRaises(ValueError):
            Client(url=self.server.url, token="a\r\nb: c")

    def test_an_address_without_a_server_is_an_error(self):
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
        with Client(url=f"http://127.0.0.1:{port}") as client, self.assertRaisesRegex(ConnectionLost, str(port)):
            client.run("", "python")

    def test_a_server_that_talks_nonsense_is_an_error(self):
        for words in (
            b"",
            b"nonsense\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhel",
            b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\ndata: 5\n\n",
            b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 1000,
            b"HTTP/1.1 200 " + b"x" * 100_000,
            b"HTTP/1.1 502 Bad\r\nContent-Length: 3\r\n\r\nbad",
        ):
            with socket.create_server(("127.0.0.1", 0)) as listener:

                def answer():
                    connection, _ = listener.accept()
                    with connection:
                        connection.recv(1 << 16)
                        connection.sendall(words)

                thread = threading.Thread(target=answer)
                thread.start()
                with Client(url="http://127.0.0.1:%d" % listener.getsockname()[1]) as client:
                    with self.assertRaises(SandboxError, msg=words[:60]):
                        client.run("", "python")
                thread.join(LONG)


if __name__ == "__main__":
    unittest.main()
