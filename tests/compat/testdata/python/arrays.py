# NumPy with threads of its linear algebra.
import importlib.util

if importlib.util.find_spec("numpy") is None:
    print("skip: this environment has no numpy")
    raise SystemExit
import numpy as np

a = np.random.default_rng(1).random((300, 300))
assert np.allclose(a @ np.linalg.inv(a), np.eye(300), atol=1e-6)
np.save("a.npy", a)
assert np.array_equal(np.load("a.npy", mmap_mode="r"), a)
print("ok")
