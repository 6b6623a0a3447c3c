# A pool by fork, a queue and a shared counter: pipes, semaphores, /dev/shm.
import multiprocessing as mp


def square(x):
    return x * x


def put(queue, counter):
    with counter.get_lock():
        counter.value += 1
    queue.put("x" * 100_000)


fork = mp.get_context("fork")
with fork.Pool(4) as pool:
    assert pool.map(square, range(100)) == [x * x for x in range(100)]
queue, counter = fork.Queue(), fork.Value("i", 0)
children = [fork.Process(target=put, args=(queue, counter)) for _ in range(4)]
for c in children:
    c.start()
assert all(len(queue.get()) == 100_000 for _ in children)
for c in children:
    c.join()
assert counter.value == 4 and all(c.exitcode == 0 for c in children)
print("ok")
