# POSIX timers, signals with a value, and a pair of message queues.
import ctypes
import os
import signal
import threading

libc = ctypes.CDLL(None, use_errno=True)
seen = []
signal.signal(signal.SIGALRM, lambda *_: seen.append(1))
signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
while len(seen) < 5:
    signal.pause()
signal.setitimer(signal.ITIMER_REAL, 0)
timers = [ctypes.c_void_p() for _ in range(200)]
assert all(libc.timer_create(1, None, ctypes.byref(timer)) == 0 for timer in timers)
assert all(libc.timer_delete(timer) == 0 for timer in timers)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGRTMIN])
for _ in range(100):
    assert libc.sigqueue(os.getpid(), signal.SIGRTMIN, None) == 0
assert all(signal.sigwait([signal.SIGRTMIN]) == signal.SIGRTMIN for _ in range(100))
queues = [libc.mq_open(name, os.O_RDWR | os.O_CREAT, 0o600, None) for name in (b"/questions", b"/answers")]
if min(queues) < 0 and ctypes.get_errno() == 38:
    print("skip: the kernel has no message queues")
    raise SystemExit
assert min(queues) >= 0, os.strerror(ctypes.get_errno())


def answer():
    text = ctypes.create_string_buffer(8192)
    size = libc.mq_receive(queues[0], text, 8192, None)
    libc.mq_send(queues[1], text.raw[:size].upper(), size, 0)


thread = threading.Thread(target=answer)
thread.start()
assert libc.mq_send(queues[0], b"hello", 5, 0) == 0
text = ctypes.create_string_buffer(8192)
assert libc.mq_receive(queues[1], text, 8192, None) == 5 and text.value == b"HELLO"
thread.join()
print("ok")
