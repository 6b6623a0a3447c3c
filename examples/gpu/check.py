# Finds out what code in a sandbox can do with the devices that it has. Each line is
# "ok WHAT", "SKIP WHAT: why not here" or "FAIL WHAT: why". It needs Python alone; with
# PyTorch beside it, it also multiplies two matrices on the GPU.
import ctypes
import fcntl
import os
import struct
import sys

failed = []


def report(what, check):
    try:
        print("ok", what + ":", check())
    except NotHere as reason:
        print("SKIP", what + ":", reason)
    except Exception as error:
        failed.append(what)
        print("FAIL", what + ":", f"{type(error).__name__}: {error}")


class NotHere(Exception):
    pass


def nodes():
    usual = {"console", "core", "fd", "full", "mqueue", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout", "tty", "urandom", "zero"}
    found = [os.path.join(folder, file) for folder, _, files in os.walk("/dev") for file in files]
    return sorted(path for path in found if path.split("/")[2] not in usual and not os.path.islink(path))


def driver(path):
    """The driver of a node of the Direct Rendering Manager, as the kernel names it."""
    name = ctypes.create_string_buffer(64)
    query = bytearray(struct.pack("=iiiiQQQQQQ", 0, 0, 0, 0, 64, ctypes.addressof(name), 0, 0, 0, 0))
    fd = os.open(path, os.O_RDWR)
    try:
        fcntl.ioctl(fd, 0xC0406400, query)  # DRM_IOCTL_VERSION
    finally:
        os.close(fd)
    return name.value.decode(), ".".join(map(str, struct.unpack_from("=iii", query)))


def render_nodes():
    found = [path for path in nodes() if path.startswith("/dev/dri/renderD")]
    if not found:
        raise NotHere("there is no /dev/dri/renderD*")
    return ", ".join("{} is {} {}".format(path, *driver(path)) for path in found)


def kfd():
    if not os.path.exists("/dev/kfd"):
        raise NotHere("there is no /dev/kfd, which AMD's cards have")
    version = bytearray(8)
    fd = os.open("/dev/kfd", os.O_RDWR)
    try:
        fcntl.ioctl(fd, 0x80084B01, version)  # AMDKFD_IOC_GET_VERSION
    finally:
        os.close(fd)
    return "version {}.{}".format(*struct.unpack("=II", version))


def cuda():
    try:
        library = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        if any(path.startswith("/dev/nvidia") for path in nodes()):
            raise
        raise NotHere(str(error))

    def call(function, *arguments):
        status = getattr(library, function)(*arguments)
        if status != 0:
            raise RuntimeError(f"{function} returned {status}")

    call("cuInit", 0)
    version, count = ctypes.c_int(), ctypes.c_int()
    call("cuDriverGetVersion", ctypes.byref(version))
    call("cuDeviceGetCount", ctypes.byref(count))
    cards = []
    for number in range(count.value):
        device, name, memory = ctypes.c_int(), ctypes.create_string_buffer(100), ctypes.c_size_t()
        call("cuDeviceGet", ctypes.byref(device), number)
        call("cuDeviceGetName", name, 100, device)
        call("cuDeviceTotalMem_v2", ctypes.byref(memory), device)
        context, pointer = ctypes.c_void_p(), ctypes.c_uint64()
        call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        call("cuCtxSetCurrent", context)
        size = 64 << 20
        sent, received = os.urandom(size), ctypes.create_string_buffer(size)
        call("cuMemAlloc_v2", ctypes.byref(pointer), ctypes.c_size_t(size))
        call("cuMemcpyHtoD_v2", pointer, sent, ctypes.c_size_t(size))
        call("cuMemcpyDtoH_v2", received, pointer, ctypes.c_size_t(size))
        call("cuMemFree_v2", pointer)
        if received.raw != sent:
            raise RuntimeError("64 MiB came back from the GPU as something else")
        cards.append(f"{name.value.decode()} with {memory.value >> 20} MiB, 64 MiB there and back")
    if not cards:
        raise RuntimeError("the driver knows no card")
    return f"CUDA {version.value // 1000}.{version.value % 1000 // 10}; " + "; ".join(cards)


def torch():
    try:
        import torch
    except ImportError as error:
        raise NotHere(str(error))
    if not torch.cuda.is_available():
        raise RuntimeError(f"torch {torch.__version__} finds no GPU")
    a, b = torch.rand(1024, 1024), torch.rand(1024, 1024)
    if not torch.allclose((a.cuda() @ b.cuda()).cpu(), a @ b, rtol=1e-2):
        raise RuntimeError("the GPU multiplies otherwise than the processor")
    return f"torch {torch.__version__} on {torch.cuda.get_device_name(0)}"


report("device nodes", lambda: ", ".join(nodes()) or "none")
report("libraries", lambda: os.environ.get("LD_LIBRARY_PATH") or "none of a driver")
report("render nodes", render_nodes)
report("AMD's compute node", kfd)
report("CUDA", cuda)
report("PyTorch", torch)
sys.exit(bool(failed))
