"""Measures out water by branching a session at each step.

Two jugs hold so many litres; water can be filled in, poured over and poured out. Which
steps lead to a jug with the litres that are wanted? Every state of the jugs is a session
of its own: a step begins one as a copy of the session that it comes from, so that no code
ever puts a state back. The states are searched breadth first.

    search.py SERVER ENV [LITRES LITRES WANTED]
"""

import json
import os
import subprocess
import sys
import tempfile
import time

SETUP = """
jugs, sizes = [0, 0], [{0}, {1}]

def fill(jug):
    jugs[jug] = sizes[jug]

def empty(jug):
    jugs[jug] = 0

def pour(jug, other):
    litres = min(jugs[jug], sizes[other] - jugs[other])
    jugs[jug] -= litres
    jugs[other] += litres

print(*jugs)
"""
STEPS = ["fill(0)", "fill(1)", "pour(0, 1)", "pour(1, 0)", "empty(0)", "empty(1)"]


class Server:
    """An MCP server that speaks on its standard streams."""

    def __init__(self, program, state):
        self.last = 0
        self.process = subprocess.Popen(
            [program, "--stdio"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=dict(os.environ, XDG_STATE_HOME=state),
        )
        client = {"name": "tree-search", "version": "1"}
        self.ask("initialize", protocolVersion="2025-06-18", capabilities={}, clientInfo=client)
        self.send(method="notifications/initialized")

    def send(self, **message):
        self.process.stdin.write(json.dumps(dict(message, jsonrpc="2.0")).encode() + b"\n")
        self.process.stdin.flush()

    def ask(self, method, **params):
        self.last += 1
        self.send(id=self.last, method=method, params=params)
        while line := self.process.stdout.readline():
            message = json.loads(line)
            if message.get("id") == self.last:
                if "error" in message:
                    sys.exit(message["error"]["message"])
                return message["result"]
        sys.exit("the server has ended")

    def run(self, **arguments):
        """Runs code and returns the first line that it prints."""
        result = self.ask("tools/call", name="run", arguments=arguments)
        text = "".join(part.get("text", "") for part in result["content"])
        if result.get("isError"):
            sys.exit(text)
        return text.splitlines()[0]

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def search(server, env, sizes, wanted):
    """Returns a list of nodes: session, origin, step, state and seconds. The last one is
    the solution, where there is one."""
    nodes, known, queue = [], set(), []

    def visit(origin, step, code, **more):
        session = f"node-{len(nodes)}"
        began = time.monotonic()
        state = server.run(env=env, session=session, code=code, **more)
        nodes.append((session, origin, step, state, time.monotonic() - began))
        print(f"{session:8} {origin or '':8} {step or '':11} {state:5} {nodes[-1][4] * 1000:7.0f} ms", flush=True)
        if state not in known:
            known.add(state)
            queue.append(session)
        return str(wanted) in state.split()

    visit(None, None, SETUP.format(*sizes))
    while queue:
        origin = queue.pop(0)
        for step in STEPS:
            # Whether a step leads to a new state, the session knows before it is copied.
            code = f"before = list(jugs); {step}; after = jugs; jugs = before; print(*after)"
            if server.run(env=env, session=origin, code=code) in known:
                continue
            if visit(origin, step, f"{step}; print(*jugs)", **{"from": origin}):
                return nodes, True
    return nodes, False


def path(nodes):
    """The steps that lead to the last node."""
    by_session = {node[0]: node for node in nodes}
    steps, node = [], nodes[-1]
    while node[1]:
        steps.insert(0, node[2])
        node = by_session[node[1]]
    return steps


def plot(nodes, file):
    """Draws the time of each branch as a bar of an SVG picture."""
    times = [node[4] * 1000 for node in nodes[1:]]
    width, height, left, foot = 640, 240, 70, 40
    most, step = max(times) * 1.1, (width - left - 10) / len(times)
    scale = (height - foot - 10) / most
    parts = [f'<rect width="{width}" height="{height}" fill="white"/>']
    for share in (0.25, 0.5, 0.75, 1):
        y = height - foot - share * max(times) * scale
        parts.append(f'<line x1="{left}" x2="{width - 10}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{share * max(times):.0f} ms</text>')
    for at, (milliseconds, node) in enumerate(zip(times, nodes[1:])):
        tall = milliseconds * scale
        parts.append(
            f'<rect x="{left + at * step + 1:.1f}" y="{height - foot - tall:.1f}" width="{max(step - 2, 1):.1f}"'
            f' height="{tall:.1f}" fill="#47c"><title>{node[2]}: {node[3]}</title></rect>'
        )
    parts.append(f'<text x="{left}" y="{height - 12}">each branch, from the call to its first answer</text>')
    style = 'font-family="sans-serif" font-size="12"'
    with open(file, "w") as out:
        out.write(f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" {style}>\n')
        out.write("\n".join(parts) + "\n</svg>\n")


def main():
    if len(sys.argv) not in (3, 6):
        sys.exit(__doc__)
    first, second, wanted = map(int, sys.argv[3:] or ("3", "5", "4"))
    with tempfile.TemporaryDirectory() as state:  # what sleeps when the server ends
        server = Server(sys.argv[1], state)
        nodes, found = search(server, sys.argv[2], (first, second), wanted)
        server.end()
    if not found:
        sys.exit(f"no steps lead to {wanted} litres")
    times = sorted(node[4] for node in nodes[1:])
    print("solved: " + ", ".join(path(nodes)))
    print(f"{len(nodes)} nodes, {times[len(times) // 2] * 1000:.0f} ms a branch (median)")
    plot(nodes, "tree-search.svg")


if __name__ == "__main__":
    main()
