# A server of MCP that does what servers should not. It has no single quote, because it is
# started from a command line.
import json, sys, threading, time
heard, waiting, calls = [], [], [0]
def tool(name, properties=None, **more):
    return {"name": name, "description": name, "inputSchema": {"type": "object", "properties": properties or {}, "required": list(properties or {}), "additionalProperties": False}, **more}
number = {"type": "number"}
tools = [tool("add", {"a": number, "b": number}), tool("late", {"n": number})]
more = [tool(name) for name in "forbidden fail refuse flood large die hang nested garbage heard count".split()]
more.append({"name": "shaped", "inputSchema": {"type": "object"}, "outputSchema": {"type": "object", "properties": {"n": number}, "required": ["n"]}})
more.append({"name": "wrong", "inputSchema": {"type": "object", "$ref": "https://schemas.example/x.json"}})
def send(**message): print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
def text(id, value, **more): send(id=id, result={"content": [{"type": "text", "text": str(value)}], **more})
for line in sys.stdin:
    m = json.loads(line)
    method, id, params = m.get("method"), m.get("id"), m.get("params") or {}
    if method == "initialize": send(id=id, result={"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "x", "version": "1"}})
    elif method == "tools/list": send(id=id, result={"tools": more} if params.get("cursor") else {"tools": tools, "nextCursor": "2"})
    elif method == "ping": send(id=id, result={})
    elif method != "tools/call":
        heard.append(json.dumps(m))
        if id == "asked" and len([h for h in heard if "asked" in h]) % 2 == 0: text(nested, "\n".join(heard[-2:]))
    else:
        name, given = params["name"], params["arguments"]
        if name == "add": text(id, given["a"] + given["b"])
        elif name == "late":
            waiting.append((id, given["n"]))
            if len(waiting) == 4 or "only" in sys.argv:
                for one in reversed(waiting): text(*one)
                waiting.clear()
            else: threading.Timer(0.2, lambda: [text(*waiting.pop()) for _ in list(waiting)]).start()
        elif name == "shaped" and "whole" in given: send(id=id, result=given["whole"])
        elif name == "shaped": text(id, "x", structuredContent=given)
        elif name == "fail": text(id, "it failed", isError=True)
        elif name == "refuse": send(id=id, error={"code": -32602, "message": "no such thing"})
        elif name == "flood":
            while True: sys.stdout.write("x" * 65536)
        elif name == "large": text(id, "x" * (1 << 20))
        elif name == "die":
            print("dying words", file=sys.stderr, flush=True)
            sys.exit(1)
        elif name == "nested":
            nested = id
            send(id="asked", method="sampling/createMessage", params={})
            send(id="asked", method="elicitation/create", params={})
        elif name == "garbage":
            print("this is no message\n[]\n{\"id\": 99, \"result\": 1}", flush=True)
            text(id, "after garbage")
        elif name == "heard": text(id, heard)
        elif name == "count":
            calls[0] += 1
            text(id, calls[0])
