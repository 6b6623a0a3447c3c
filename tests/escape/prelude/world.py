# What attempts on a network by name may use, too.
import socket
import ssl
import struct


def resolver():
    "The address of the resolver that this side is told to ask."
    with open("/etc/resolv.conf") as file:
        return [line.split()[1] for line in file if line.startswith("nameserver")][0]


def connect(host, port=80):
    return socket.create_connection((host, port), timeout=3)


def hear(connection, size=1 << 20):
    "Reads to the end, or until nothing has come for a second; shows it."
    connection.settimeout(1)
    heard = b""
    try:
        while len(heard) < size and (data := connection.recv(65536)):
            heard += data
    except OSError:
        pass
    show(heard)
    return heard


def say(host, data, port=80):
    "Sends bytes to a server and shows what it answers."
    with connect(host, port) as connection:
        connection.sendall(data)
        return hear(connection)


def get(host, name=None, address=None, port=80):
    "Fetches a page over HTTP."
    request = f"GET /small HTTP/1.1\r\nHost: {name or host}\r\nConnection: close\r\n\r\n"
    return say(address or host, request.encode(), port)


def careless():
    "A TLS context that believes everybody."
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


def tls(host, name, address=None, port=443, context=None):
    "Fetches a page over TLS that names a host of its own choice."
    with (context or careless()).wrap_socket(connect(address or host, port), server_hostname=name) as connection:
        connection.sendall(f"GET /small HTTP/1.1\r\nHost: {name or host}\r\nConnection: close\r\n\r\n".encode())
        return hear(connection)


def hello(name, context=None):
    "The ClientHello of a connection to a host of this name, as one record."
    sent = ssl.MemoryBIO()
    tls_object = (context or careless()).wrap_bio(ssl.MemoryBIO(), sent, server_hostname=name)
    try:
        tls_object.do_handshake()
    except ssl.SSLWantReadError:
        pass
    return sent.read()


def extended(record, *extensions):
    "A ClientHello with further extensions, each a pair of number and bytes."
    body = bytearray(record)
    at = 5 + 4 + 2 + 32
    at += 1 + body[at]  # session
    at += 2 + struct.unpack(">H", body[at:at + 2])[0]  # ciphers
    at += 1 + body[at]  # compression
    more = b"".join(struct.pack(">HH", kind, len(data)) + data for kind, data in extensions)
    body[at:at + 2] = struct.pack(">H", struct.unpack(">H", body[at:at + 2])[0] + len(more))
    return handshake(bytes(body[9:]) + more)


def handshake(message, size=16384):
    "A ClientHello's message in records of a size."
    message = b"\x01" + struct.pack(">I", len(message))[1:] + message
    pieces = [message[i:i + size] for i in range(0, len(message), size)]
    return b"".join(b"\x16\x03\x01" + struct.pack(">H", len(piece)) + piece for piece in pieces)


def greeted(host, data, piece=None):
    "Sends a ClientHello and reports where a server answers it with a handshake."
    with connect(host, 443) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for i in range(0, len(data), piece or len(data)):
            connection.sendall(data[i:i + (piece or len(data))])
        if hear(connection)[:1] == b"\x16":
            escaped("a server has answered the ClientHello")


def encoded(name):
    "A name as labels with their lengths."
    labels = name if isinstance(name, list) else [label for label in name.encode().split(b".") if label]
    return b"".join(bytes([len(label)]) + label for label in labels) + b"\0"


def question(name, kind=1, count=1, tail=b"", records=0, flags=0x0100, of_class=1):
    "A message that asks about a name."
    return struct.pack(">HHHHHH", 0x1234, flags, count, 0, 0, records) + encoded(name) + struct.pack(">HH", kind, of_class) + tail


def ask(*messages, address=None, port=53):
    "Sends questions by datagrams and shows the answers, of which there may be none."
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        sender.settimeout(0.5)
        for message in messages:
            with trying:
                sender.sendto(message, (address or resolver(), port))
                show(sender.recv(4096))


def ask_by_stream(*messages, address=None, piece=None, port=53):
    "Sends questions on one connection, in pieces of a size, and shows the answers."
    data = b"".join(struct.pack(">H", len(message)) + message for message in messages)
    with connect(address or resolver(), port) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for i in range(0, len(data), piece or len(data)):
            connection.sendall(data[i:i + (piece or len(data))])
        hear(connection)


