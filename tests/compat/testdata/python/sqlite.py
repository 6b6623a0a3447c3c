# A database that four processes write to at once, with a journal and with a log.
import multiprocessing as mp
import sqlite3


def write(name, worker):
    connection = sqlite3.connect(name, timeout=600)
    for number in range(25):
        with connection:
            connection.execute("INSERT INTO numbers VALUES (?, ?)", (worker, number))


for mode in ("delete", "wal"):
    name = f"{mode}.db"
    connection = sqlite3.connect(name)
    assert connection.execute(f"PRAGMA journal_mode={mode}").fetchone() == (mode,)
    connection.execute("CREATE TABLE numbers (worker INT, number INT)")
    connection.commit()
    workers = [mp.get_context("fork").Process(target=write, args=(name, worker)) for worker in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(50)
    assert connection.execute("SELECT count(*) FROM numbers").fetchone() == (100,)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()
print("ok")
