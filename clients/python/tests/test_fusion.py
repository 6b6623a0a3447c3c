"""/run_code, with the real server."""

import base64
import http.client
import json
import threading
import unittest

from nix_sandbox.fusion import Server
from support import LONG, SERVER, Serve


def text(data: bytes) -> str:
    return base64.b64encode(data).decode()


class Fusion(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(("127.0.0.1", 0), [SERVER])
        threading.Thread(target=cls.server.serve_forever, daemon=True).start()

    @classmethod
    def tearDownClass(cls):
        cls.server.shutdown()
        cls.server.server_close()

    def post(self, body, server=None, path="/run_code", **headers):
        connection = http.client.HTTPConnection(*(server or self.server).server_address, timeout=LONG)
        try:
            connection.request("POST", path, body if isinstance(body, (bytes, str)) else json.dumps(body), headers)
            response = connection.getresponse()
            data = response.read()
            return response.status, json.loads(data) if response.status == 200 else data.decode()
        finally:
            connection.close()

    def test_code_is_run(self):
        for request, status, run in (
            ({"code": "print(input())\n1", "language": "python", "stdin": "typed"}, "Success", ("Finished", 0, "typed\n")),
            ({"code": "echo [exit status 0]; exit 3", "language": "bash"}, "Failed", ("Finished", 3, "[exit status 0]\n")),
            ({"code": "const x: number = 5; console.log(x)", "language": "typescript"}, "Success", ("Finished", 0, "5\n")),
            ({"code": "echo begun; sleep 50", "language": "bash", "run_timeout": 1}, "Failed", ("TimeLimitExceeded", None, "begun\n")),
            ({"code": "cat a/b", "language": "bash", "files": {"a/b": text(b"text"), "none": None}}, "Success", ("Finished", 0, "text")),
        ):
            code, answer = self.post(request)
            got = answer["run_result"]
            self.assertEqual((code, answer["status"], (got["status"], got["return_code"], got["stdout"])), (200, status, run), answer)

    def test_files_are_fetched(self):
        _, answer = self.post(
            {"code": "printf x >b; mkdir -p d; printf '\\377' >d/c", "language": "bash", "fetch_files": ["b", "d/c", "none", "/etc/passwd"]}
        )
        self.assertEqual((answer["status"], answer["files"]), ("Success", {"b": text(b"x"), "d/c": text(b"\xff")}), answer)
        _, answer = self.post({"code": "head -c 5000000 /dev/zero >f", "language": "bash", "fetch_files": ["f", "./f"]})
        self.assertEqual((answer["status"], list(answer["files"])), ("SandboxError", ["f"]))
        self.assertIn("fetch fewer", answer["message"])

    def test_a_mistake_is_said(self):
        for request, words in (
            ({"code": "1", "language": "cobol"}, "no environment runs 'cobol': there are "),
            ({"code": "1", "language": "python", "files": {"/etc/x": ""}}, "not below /workspace"),
            ({"code": "1", "language": "python", "files": {"x": "?"}}, "not base64"),
            ({"code": "1", "language": "python", "fetch_files": ["x"] * 65}, "64 are allowed"),
        ):
            code, answer = self.post(request)
            self.assertEqual((code, answer["status"], answer["run_result"]), (200, "SandboxError", None))
            self.assertIn(words, answer["message"])
        for body in ("{", "[]", '{"code": 5}', "[" * 100_000):
            self.assertEqual(self.post(body)[0], 422, body[:20])
        self.assertEqual(self.post({}, path="/run_jupyter")[0], 404)
        self.assertEqual(self.post({"code": "1", "language": "python"}, Origin="http://page.example")[0], 403)

    def test_at_a_url_the_token_of_the_request_counts(self):
        serve = Serve()
        server = Server(("127.0.0.1", 0), [], serve.url)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            request = {"code": "print(1)", "language": "python"}
            _, answer = self.post(request, server, Authorization="Bearer " + serve.token)
            self.assertEqual(answer["run_result"]["stdout"], "1\n", answer)
            _, answer = self.post(request, server, Authorization="Bearer wrong")
            self.assertEqual((answer["status"], answer["run_result"]), ("SandboxError", None))
            self.assertIn("token", answer["message"])
        finally:
            server.shutdown()
            thread.join()
            server.server_close()
            serve.close()
