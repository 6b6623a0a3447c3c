# sqlite with its locks and its log, mmap, temporary files, links, locks.
import fcntl
import mmap
import os
import sqlite3
import tempfile

db = sqlite3.connect("data.db")
db.execute("pragma journal_mode=wal")
db.execute("create table t (x integer)")
with db:
    db.executemany("insert into t values (?)", ((n,) for n in range(1000)))
other = sqlite3.connect("data.db")
assert other.execute("select sum(x) from t").fetchone() == (499500,)
with tempfile.TemporaryFile() as file:
    file.truncate(1 << 20)
    with mmap.mmap(file.fileno(), 0) as view:
        view[5:10] = b"mapped"[:5]
        view.flush()
    file.seek(5)
    assert file.read(5) == b"mappe"
with open("lock", "w") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    fcntl.lockf(file, fcntl.LOCK_EX)
os.symlink("lock", "link")
os.link("lock", "hard")
os.rename("hard", "moved")
os.utime("moved", ns=(1, 2))
assert os.stat("moved").st_mtime_ns == 2 and os.readlink("link") == "lock"
assert len(list(os.scandir("."))) >= 4
print("ok")
