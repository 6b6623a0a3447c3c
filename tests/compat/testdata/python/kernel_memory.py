# What an honest program has of the kernel's memory: a server with workers behind a daemon,
# each with as many mappings as an interpreter with large libraries, connections that wait
# to be accepted, and watches of files.
import ctypes, mmap, os, socket, sys, time

maps = [mmap.mmap(-1, 8192, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | (mmap.PROT_WRITE if n % 2 else 0)) for n in range(800)]
for each in maps[1::2]:
    each[0] = 1
libc = ctypes.CDLL(None, use_errno=True)
for _ in range(4):
    watch = libc.inotify_init1(0)
    if watch < 0 or libc.inotify_add_watch(watch, b".", 0x300) < 0:
        sys.exit(f"inotify: {os.strerror(ctypes.get_errno())}")
listener = socket.create_server(("127.0.0.1", 0), backlog=512)
clients = [socket.create_connection(listener.getsockname()) for _ in range(300)]
reader, writer = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for _ in range(60):
            if os.fork() == 0:
                connection, _ = listener.accept()
                connection.sendall(b"served")
                os.write(writer, b"x")
                time.sleep(60)
                os._exit(0)
        time.sleep(60)
    os._exit(0)
os.wait()
os.close(writer)
served = 0
while served < 60:
    got = len(os.read(reader, 64))
    if got == 0:
        sys.exit(f"{served} of 60 workers served")
    served += got
time.sleep(3)  # several scans
if sum(client.recv(6) == b"served" for client in clients[:60]) != 60:
    sys.exit("a worker did not serve")
print("ok")
