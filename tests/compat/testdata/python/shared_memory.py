# Shared memory by name, as workers exchange arrays.
import multiprocessing as mp
from multiprocessing import shared_memory


def fill(name):
    other = shared_memory.SharedMemory(name=name)
    other.buf[:4] = b"abcd"
    other.close()


memory = shared_memory.SharedMemory(create=True, size=1 << 20)
child = mp.get_context("fork").Process(target=fill, args=(memory.name,))
child.start()
child.join()
assert bytes(memory.buf[:4]) == b"abcd"
memory.close()
memory.unlink()
print("ok")
