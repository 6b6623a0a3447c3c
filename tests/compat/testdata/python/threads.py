# More threads than processors, a lock, and a pool of them.
import threading
from concurrent.futures import ThreadPoolExecutor

count, lock = 0, threading.Lock()


def add():
    global count
    for _ in range(1000):
        with lock:
            count += 1


threads = [threading.Thread(target=add) for _ in range(16)]
for t in threads:
    t.start()
for t in threads:
    t.join()
assert count == 16_000, count
with ThreadPoolExecutor(32) as pool:
    assert sum(pool.map(len, ["a"] * 100)) == 100
print("ok")
