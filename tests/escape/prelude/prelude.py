# What every attempt in Python may use. The suite puts its variables before
# this text and the call of attempt() after it.
import errno
import os
import platform
import sys
from contextlib import suppress

# `with trying:` goes on after a refusal; without it, a refusal ends the attempt.
trying = suppress(OSError)


def note(word, text=""):
    os.write(2, f"{word} {TOKEN} {text}\n".encode(errors="replace"))


def escaped(what):
    "The attempt has succeeded."
    note("escaped", what)


def lacking(what):
    "This machine lacks what the attempt is about, so that it would show nothing."
    note("lacking", what)


def expect(*paths):
    "Where a control finds none of these, this machine lacks what it is about."
    if CONTROL and not any(os.path.lexists(path) for path in paths):
        lacking("none of " + " ".join(paths))


def capable(number):
    "Whether this process has a capability: root of a container may lack it."
    with open("/proc/self/status") as file:
        held = [int(line.split()[1], 16) for line in file if line.startswith("CapEff:")]
    return bool(held[0] >> number & 1)


def show(data):
    "Prints what was read: a secret in it is evidence."
    data = data if isinstance(data, bytes) else str(data).encode(errors="replace")
    os.write(1, data[:16384] + b"\n")


def read(path):
    with open(path, "rb") as file:
        show(file.read(16384))


def pids():
    return sorted(int(name) for name in os.listdir("/proc") if name.isdigit())


# System calls: their numbers on x86_64 and on aarch64.
CALLS = {
    "acct": (163, 89), "add_key": (248, 217), "adjtimex": (159, 171), "bpf": (321, 280),
    "chroot": (161, 51), "clock_adjtime": (305, 266), "clock_settime": (227, 112), "clone": (56, 220), "clone3": (435, 435),
    "delete_module": (176, 106), "fanotify_init": (300, 262), "finit_module": (313, 273),
    "fsconfig": (431, 431), "fsmount": (432, 432), "fsopen": (430, 430), "fspick": (433, 433),
    "get_mempolicy": (239, 236), "getpid": (39, 172), "init_module": (175, 105), "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427), "io_uring_setup": (425, 425), "ioctl": (16, 29), "ioperm": (173, None), "iopl": (172, None),
    "ioprio_set": (251, 30), "io_setup": (206, 0), "cachestat": (451, 451), "fanotify_mark": (301, 263), "memfd_create": (319, 279),
    "vmsplice": (278, 75), "kcmp": (312, 272), "kexec_file_load": (320, 294), "kexec_load": (246, 104),
    "keyctl": (250, 219), "listmount": (458, 458), "lookup_dcookie": (212, 18), "lsm_list_modules": (461, 461),
    "lsm_set_self_attr": (460, 460), "open_tree_attr": (467, 467), "_sysctl": (156, None), "ustat": (136, None),
    "mbind": (237, 235), "memfd_secret": (447, 447), "migrate_pages": (256, 238), "modify_ldt": (154, None),
    "mount": (165, 40), "mount_setattr": (442, 442), "move_mount": (429, 429), "move_pages": (279, 239),
    "mq_getsetattr": (245, 185), "mq_open": (240, 180), "mq_timedreceive": (243, 183), "mq_timedsend": (242, 182),
    "mq_unlink": (241, 181), "msgget": (68, 186), "msgrcv": (70, 188), "name_to_handle_at": (303, 264),
    "nfsservctl": (180, 42), "open_by_handle_at": (304, 265), "open_tree": (428, 428), "openat": (257, 56),
    "openat2": (437, 437), "perf_event_open": (298, 241), "personality": (135, 92), "pidfd_getfd": (438, 438),
    "pidfd_open": (434, 434), "pidfd_send_signal": (424, 424), "pivot_root": (155, 41), "prlimit64": (302, 261),
    "process_madvise": (440, 440), "process_mrelease": (448, 448), "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271), "ptrace": (101, 117), "quotactl": (179, 60), "quotactl_fd": (443, 443),
    "reboot": (169, 142), "request_key": (249, 218), "rt_tgsigqueueinfo": (297, 240), "sched_setattr": (314, 274), "semget": (64, 190),
    "set_mempolicy": (238, 237), "setdomainname": (171, 162), "sethostname": (170, 161), "setns": (308, 268),
    "settimeofday": (164, 170), "shmat": (30, 196), "shmget": (29, 194), "statmount": (457, 457),
    "swapoff": (168, 225), "swapon": (167, 224), "sysfs": (139, None), "syslog": (103, 116),
    "tgkill": (234, 131), "umount2": (166, 39), "unshare": (272, 97), "uselib": (134, None),
    "userfaultfd": (323, 282), "vhangup": (153, 58),
    "fcntl": (72, 25), "futex": (202, 98), "futex_requeue": (456, 456), "mmap": (9, 222), "seccomp": (317, 277),
    "setsockopt": (54, 208), "timer_create": (222, 107),
    "landlock_add_rule": (445, 445), "landlock_create_ruleset": (444, 444), "landlock_restrict_self": (446, 446),
    "fsetxattr": (190, 7), "prctl": (157, 167), "preadv2": (327, 286), "set_mempolicy_home_node": (450, 450), "setxattrat": (463, 463),
}


def call(name, *arguments):
    "Makes a system call and returns its result; a refusal is an OSError."
    import ctypes

    number = CALLS[name] if isinstance(name, str) else (name, name)
    number = number[platform.machine() == "aarch64"]
    if number is None:
        raise OSError(errno.ENOSYS, "not on this machine")
    ready = []
    for argument in arguments:
        if isinstance(argument, int):
            argument = ctypes.c_long(argument)
        elif argument is None or isinstance(argument, bytes):
            argument = ctypes.c_char_p(argument)
        ready.append(argument)
    syscall = ctypes.CDLL(None, use_errno=True).syscall
    syscall.restype = ctypes.c_long
    result = syscall(ctypes.c_long(number), *ready)
    if result == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(name))
    return result


def reached(name, *arguments):
    """Makes a system call with arguments that can do nothing. Any answer but
    a refusal shows that the kernel's code behind it can be reached."""
    try:
        answer = call(name, *arguments)
    except OSError as error:
        if CONTROL and error.errno == errno.ENOSYS:
            return lacking(f"the kernel has no {name}")
        if error.errno in (errno.EPERM, errno.EACCES, errno.ENOSYS):
            return
        answer = errno.errorcode.get(error.errno, error.errno)
    escaped(f"{name} reaches the kernel and answers {answer}")


def forged():
    "Frames that only an agent may send."
    return bytes.fromhex(FORGED)


def attempt(source):
    for module in NEEDS.split():
        try:
            __import__(module)
        except ImportError:
            return lacking(f"python has no module {module}")
    note("started")
    try:
        exec(compile(source, NAME, "exec"), globals())
    except (OSError, MemoryError) as error:
        note("refused", repr(error))
    note("tried")
