# Modules that talk to the kernel in ways of their own.
import ctypes
import decimal
import faulthandler
import locale
import platform
import random
import resource
import secrets
import select
import signal
import ssl
import time
import uuid
import zoneinfo

ctypes.CDLL(None).getpid()
callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(lambda x: x + 1)
assert callback(1) == 2
faulthandler.enable()
assert platform.system() == "Linux" and platform.machine()
assert len(secrets.token_bytes(32)) == 32 and uuid.uuid4() and uuid.uuid1()
ssl.create_default_context()
resource.getrlimit(resource.RLIMIT_NOFILE)
poll = select.epoll()
poll.close()
signal.setitimer(signal.ITIMER_REAL, 0)
signal.pthread_sigmask(signal.SIG_BLOCK, [])
time.sleep(0.01)
assert time.clock_gettime(time.CLOCK_MONOTONIC) > 0
assert decimal.Decimal("0.1") + decimal.Decimal("0.2") == decimal.Decimal("0.3")
locale.setlocale(locale.LC_ALL, "")
assert isinstance(random.SystemRandom().random(), float)
print("ok")
