# A server that keeps 1,200 connections open at once and serves them by epoll.
import resource
import select
import socket
import threading

connections = 1200
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
listener.setblocking(False)


def serve():
    poll, clients, answered = select.epoll(), {}, 0
    poll.register(listener, select.EPOLLIN)
    while answered < connections:
        for descriptor, _ in poll.poll(timeout=30):
            if descriptor == listener.fileno():
                client = listener.accept()[0]
                client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                poll.register(client, select.EPOLLIN | select.EPOLLET)
                clients[client.fileno()] = client
            else:
                clients[descriptor].send(clients[descriptor].recv(100).upper())
                answered += 1


server = threading.Thread(target=serve)
server.start()
clients = [socket.create_connection(listener.getsockname()) for _ in range(connections)]
for number, client in enumerate(clients):
    client.send(b"hello %d" % number)
for number, client in enumerate(clients):
    assert client.recv(100) == b"HELLO %d" % number
server.join()
print("ok")
