# What a framework for tensors does with its loaders: blocks of shared memory that
# workers fill, by name and by descriptors that are passed on.
import mmap
import multiprocessing as mp
import os
import socket
from multiprocessing import reduction, resource_tracker, shared_memory

size = 256 << 10


def load(tasks, results):
    while (number := tasks.get()) is not None:
        block = shared_memory.SharedMemory(create=True, size=size)
        block.buf[:] = bytes([number % 256]) * size
        results.put((number, block.name))
        resource_tracker.unregister("/" + block.name, "shared_memory")
        block.close()


def fill(end):
    with end:
        for number in range(40):
            file = os.open("/dev/shm", os.O_TMPFILE | os.O_RDWR, 0o600)
            os.ftruncate(file, size)
            with mmap.mmap(file, size) as memory:
                memory[0], memory[size - 1] = number, number
            reduction.send_handle(end, file, None)
            os.close(file)


if __name__ == "__main__":
    tasks, results = mp.SimpleQueue(), mp.Queue()
    workers = [mp.Process(target=load, args=(tasks, results)) for _ in range(4)]
    for worker in workers:
        worker.start()
    for number in range(100):
        tasks.put(number)
    for _ in range(100):
        number, name = results.get()
        block = shared_memory.SharedMemory(name=name)
        assert block.buf[0] == number and block.buf[size - 1] == number
        block.close()
        block.unlink()
    for _ in workers:
        tasks.put(None)
    for worker in workers:
        worker.join(30)
    here, there = mp.Pipe()
    sender = mp.Process(target=fill, args=(there,))
    sender.start()
    there.close()
    kept = []
    for number in range(40):
        file = reduction.recv_handle(here)
        kept.append(mmap.mmap(file, size))
        os.close(file)
        assert kept[-1][0] == number and kept[-1][size - 1] == number
    sender.join(30)
    print("ok")
