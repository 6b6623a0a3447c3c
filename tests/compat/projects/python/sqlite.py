# Reads the project's database, and writes to it where the project may be written to.
import os
import shutil
import sqlite3

database = sqlite3.connect("file:/project/notes.db?mode=ro", uri=True)
assert database.execute("SELECT text FROM notes ORDER BY number").fetchall() == [("one",), ("two",)]
database.close()
if os.access("/project", os.W_OK):
    database = sqlite3.connect("/project/notes.db")
    with database:
        database.execute("INSERT INTO notes VALUES (3, 'three')")
    assert database.execute("SELECT count(*) FROM notes").fetchone() == (3,)
    database.close()
shutil.copy("/project/notes.db", "copy.db")
copy = sqlite3.connect("copy.db")
copy.execute("PRAGMA journal_mode=wal")
with copy:
    copy.execute("DELETE FROM notes")
print("ok")
