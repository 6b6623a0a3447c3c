# Locks between two processes: of whole files, of parts, shared and exclusive, with
# waiting; and 1,000 parts at once, as a database takes them.
import fcntl
import os

with open("file", "wb") as file:
    file.write(bytes(10000))


def child(work):
    pid = os.fork()
    if pid == 0:
        work()
        os._exit(0)
    return pid


def other(mode, taken):
    with open("file", "r+b") as file:
        try:
            mode(file)
        except BlockingIOError:
            assert not taken
            return
        assert taken


file = open("file", "r+b")
for lock in (fcntl.flock, fcntl.lockf):
    exclusive = lambda file: lock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    shared = lambda file: lock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    exclusive(file)
    assert os.waitpid(child(lambda: other(shared, False)), 0)[1] == 0
    lock(file, fcntl.LOCK_SH)
    assert os.waitpid(child(lambda: other(shared, True)), 0)[1] == 0
    assert os.waitpid(child(lambda: other(exclusive, False)), 0)[1] == 0
    lock(file, fcntl.LOCK_EX)
    waiting = child(lambda: other(lambda file: lock(file, fcntl.LOCK_EX), True))
    lock(file, fcntl.LOCK_UN)
    assert os.waitpid(waiting, 0)[1] == 0
for part in range(1000):
    fcntl.lockf(file, fcntl.LOCK_EX, 1, 2 * part)
fcntl.lockf(file, fcntl.LOCK_UN)
print("ok")
