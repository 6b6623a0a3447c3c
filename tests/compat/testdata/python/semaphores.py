# Semaphores, locks, conditions and barriers that processes share, by fork and by
# spawn: each is a file in /dev/shm on which they sleep.
import multiprocessing as mp
import pathlib
import sys

# What spawn starts imports the function by its name.
pathlib.Path("worker.py").write_text(
    """
def work(semaphore, condition, barrier, counter, turns):
    for _ in range(turns):
        with semaphore:
            with counter.get_lock():
                counter.value += 1
    barrier.wait()
    with condition:
        condition.notify_all()
"""
)
sys.path.insert(0, ".")
from worker import work

for method in ("fork", "spawn"):
    context = mp.get_context(method)
    semaphore, condition = context.BoundedSemaphore(2), context.Condition()
    barrier, counter = context.Barrier(5), context.Value("i", 0)
    workers = [
        context.Process(target=work, args=(semaphore, condition, barrier, counter, 200)) for _ in range(4)
    ]
    with condition:
        for worker in workers:
            worker.start()
        barrier.wait()
        assert condition.wait()
    for worker in workers:
        worker.join(30)
    assert counter.value == 800 and all(worker.exitcode == 0 for worker in workers), method
many = [mp.Semaphore() for _ in range(300)]
assert all(each.acquire() for each in many)
print("ok")
