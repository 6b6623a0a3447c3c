# Sixty terminals at once, each with a program at it, as a tool does that runs many
# commands side by side.
import os
import pty

children = []
for number in range(60):
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv("/bin/sh", ["sh", "-c", f"test -t 0 && read line && echo {number} $line"])
    children.append((pid, terminal, number))
for pid, terminal, number in children:
    os.write(terminal, b"said\n")
for pid, terminal, number in children:
    heard = b""
    while f"{number} said".encode() not in heard:
        heard += os.read(terminal, 1000)
    assert os.waitpid(pid, 0)[1] == 0
    os.close(terminal)
print("ok")
