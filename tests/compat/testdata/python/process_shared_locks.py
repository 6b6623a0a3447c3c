# The C library's own locks and conditions between processes, in shared memory: a
# mutex that inherits priorities and a condition that wakes all.
import ctypes
import mmap
import os

libc = ctypes.CDLL(None, use_errno=True)
memory = mmap.mmap(-1, 4096)
start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
mutex, condition, state = start, start + 256, ctypes.c_int.from_address(start + 512)
attributes = ctypes.create_string_buffer(64)


def done(result):
    if result:
        raise OSError(result, os.strerror(result))


done(libc.pthread_mutexattr_init(attributes))
done(libc.pthread_mutexattr_setpshared(attributes, 1))
done(libc.pthread_mutexattr_setprotocol(attributes, 1))  # PTHREAD_PRIO_INHERIT
done(libc.pthread_mutex_init(ctypes.c_void_p(mutex), attributes))
done(libc.pthread_condattr_init(attributes))
done(libc.pthread_condattr_setpshared(attributes, 1))
done(libc.pthread_cond_init(ctypes.c_void_p(condition), attributes))

children = []
for _ in range(6):
    pid = os.fork()
    if pid == 0:
        done(libc.pthread_mutex_lock(ctypes.c_void_p(mutex)))
        state.value += 1
        while state.value < 1000:
            done(libc.pthread_cond_wait(ctypes.c_void_p(condition), ctypes.c_void_p(mutex)))
        done(libc.pthread_mutex_unlock(ctypes.c_void_p(mutex)))
        os._exit(0)
    children.append(pid)
while True:
    done(libc.pthread_mutex_lock(ctypes.c_void_p(mutex)))
    ready = state.value == 6
    if ready:
        state.value = 1000
        done(libc.pthread_cond_broadcast(ctypes.c_void_p(condition)))
    done(libc.pthread_mutex_unlock(ctypes.c_void_p(mutex)))
    if ready:
        break
assert all(os.waitpid(pid, 0)[1] == 0 for pid in children)
print("ok")
