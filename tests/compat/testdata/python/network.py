# What looks at the network finds none and says so, and does not break.
import socket
import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer

assert socket.getaddrinfo("localhost", 80, socket.AF_INET)
try:
    socket.getaddrinfo("nowhere.invalid", 80)
    raise SystemExit("a name was resolved")
except socket.gaierror:
    pass


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"served")

    def log_message(self, *args):
        pass


server = HTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
assert urllib.request.urlopen(f"http://127.0.0.1:{server.server_port}/").read() == b"served"
try:
    urllib.request.urlopen("http://192.0.2.1/", timeout=5)
    raise SystemExit("an address was reached")
except urllib.error.URLError:
    pass
a, b = socket.socketpair()
a.send(b"x")
assert b.recv(1) == b"x"
assert socket.gethostname()
print("ok")
