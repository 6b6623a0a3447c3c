# A test runner whose tests start pools of processes.
import importlib.util
import pathlib
import subprocess
import sys

if importlib.util.find_spec("pytest") is None:
    print("skip: this environment has no pytest")
    raise SystemExit
pathlib.Path("test_pool.py").write_text(
    """
import concurrent.futures
import multiprocessing
import os
import pytest


@pytest.mark.parametrize("way", ["fork", "spawn"])
def test_pool(way, tmp_path):
    context = multiprocessing.get_context(way)
    with concurrent.futures.ProcessPoolExecutor(3, mp_context=context) as pool:
        assert list(pool.map(abs, [-1, -2, -3])) == [1, 2, 3]
    (tmp_path / "file").write_text("x")


def test_output(capfd):
    os.system("echo from a child")
    assert capfd.readouterr().out == "from a child\\n"
"""
)
done = subprocess.run([sys.executable, "-m", "pytest", "-q"], capture_output=True, text=True)
assert done.returncode == 0 and "3 passed" in done.stdout, done
print("ok")
