import json, sys
add = {"name": "add", "description": "Adds two numbers.", "inputSchema": {"type": "object", "properties": {"a": {"type": "number"}, "b": {"type": "number"}}, "required": ["a", "b"]}}
for line in sys.stdin:
    message = json.loads(line)
    answers = {
        "initialize": {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {"name": "ten", "version": "1"}},
        "tools/list": {"tools": [add]}, "ping": {},
    }
    if message["method"] == "tools/call":
        answers["tools/call"] = {"content": [{"type": "text", "text": str(sum(message["params"]["arguments"].values()))}]}
    if message["method"] in answers:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": answers[message["method"]]}), flush=True)
