# Servers of asyncio on TCP, on IPv6 alone, on a Unix socket and for datagrams, with
# the options that such servers set.
import asyncio
import os
import socket


async def echo(reader, writer):
    while line := await reader.readline():
        writer.write(line)
        await writer.drain()
    writer.close()


async def talk(reader, writer):
    for number in range(20):
        writer.write(b"line %d\n" % number)
        assert await reader.readline() == b"line %d\n" % number
    writer.close()
    await writer.wait_closed()


class Datagrams(asyncio.DatagramProtocol):
    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, address):
        self.transport.sendto(data[::-1], address)


class Answer(asyncio.DatagramProtocol):
    def __init__(self, answer):
        self.answer = answer

    def datagram_received(self, data, address):
        self.answer.set_result(data)


async def main():
    server = await asyncio.start_server(echo, "127.0.0.1", 0, reuse_port=True, backlog=200)
    address = server.sockets[0].getsockname()
    await asyncio.gather(*[asyncio.create_task(visit(address)) for _ in range(200)])
    if os.path.exists("/proc/net/if_inet6"):
        six = socket.socket(socket.AF_INET6)
        six.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        six.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
        six.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        six.bind(("::1", 0))
        await asyncio.start_server(echo, sock=six)
        await visit(six.getsockname()[:2])
    await asyncio.start_unix_server(echo, "socket")
    await talk(*await asyncio.open_unix_connection("socket"))
    loop = asyncio.get_running_loop()
    transport, _ = await loop.create_datagram_endpoint(Datagrams, local_addr=("127.0.0.1", 0))
    answer = loop.create_future()
    other, _ = await loop.create_datagram_endpoint(
        lambda: Answer(answer), remote_addr=transport.get_extra_info("sockname")
    )
    other.sendto(b"abc")
    assert await asyncio.wait_for(answer, 20) == b"cba"
    process = await asyncio.create_subprocess_exec("/bin/sh", "-c", "echo $((6 * 7))", stdout=-1)
    assert (await process.communicate())[0] == b"42\n"


async def visit(address):
    await talk(*await asyncio.open_connection(*address))


asyncio.run(asyncio.wait_for(main(), 50))
print("ok")
