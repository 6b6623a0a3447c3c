# Children: pipes both ways, signals, groups, a pseudo-terminal, exit statuses.
import os
import pty
import signal
import subprocess
import sys

out = subprocess.run(["tr", "a-z", "A-Z"], input="shout", capture_output=True, text=True, check=True).stdout
assert out == "SHOUT", out
assert subprocess.run(["sh", "-c", "exit 7"]).returncode == 7
sleeper = subprocess.Popen(["sleep", "60"], start_new_session=True)
os.killpg(sleeper.pid, signal.SIGTERM)
assert sleeper.wait() == -signal.SIGTERM
many = [subprocess.Popen([sys.executable, "-c", f"print({n})"], stdout=subprocess.PIPE) for n in range(8)]
assert [int(p.communicate()[0]) for p in many] == list(range(8))
parent, child = pty.openpty()
shell = subprocess.Popen(["sh", "-c", "test -t 0 && echo terminal"], stdin=child, stdout=child)
assert shell.wait(20) == 0
assert b"terminal" in os.read(parent, 100)
print("ok")
