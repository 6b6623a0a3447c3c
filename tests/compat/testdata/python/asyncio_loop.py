# An event loop: timers, a server on the loopback, subprocesses, threads.
import asyncio


async def answer(reader, writer):
    writer.write((await reader.readline()).upper())
    await writer.drain()
    writer.close()


async def main():
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(b"hello\n")
    assert await reader.readline() == b"HELLO\n"
    writer.close()
    child = await asyncio.create_subprocess_exec("echo", "child", stdout=asyncio.subprocess.PIPE)
    out, _ = await child.communicate()
    assert out == b"child\n" and child.returncode == 0
    assert await asyncio.to_thread(sum, range(10)) == 45
    await asyncio.gather(*(asyncio.sleep(0.01) for _ in range(100)))
    server.close()


asyncio.run(asyncio.wait_for(main(), 40))
print("ok")
