# Pools by spawn and by fork server start python again and import a module,
# as test runners with several workers do.
import pathlib
import sys

pathlib.Path("work.py").write_text("def square(x):\n    return x * x\n")
sys.path.insert(0, ".")
program = """
import multiprocessing as mp
import work

if __name__ == "__main__":
    for way in ("spawn", "forkserver"):
        with mp.get_context(way).Pool(2) as pool:
            assert pool.map(work.square, range(10)) == [x * x for x in range(10)]
    print("both")
"""
pathlib.Path("program.py").write_text(program)
import subprocess

done = subprocess.run([sys.executable, "program.py"], capture_output=True, text=True)
assert (done.returncode, done.stdout) == (0, "both\n"), done
print("ok")
