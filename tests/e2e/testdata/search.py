# Searches everything that code can read for texts, and prints where they are. The
# texts come masked, so that the search does not find itself; the memory of this
# process is searched from outside.
import os, stat

mask = 0x55
texts = {name: bytes(b ^ mask for b in bytes.fromhex(masked)) for name, masked in TEXTS.items()}
longest = max(map(len, texts.values()))
read = 0


def search(path, start=0, size=None):
    global read
    try:
        with open(path, "rb", buffering=0) as file:
            file.seek(start)
            kept, found = b"", set()
            while size is None or size > 0:
                part = file.read(1 << 20 if size is None else min(size, 1 << 20))
                if not part:
                    break
                if size is not None:
                    size -= len(part)
                window = kept + part
                found |= {name for name, text in texts.items() if text in window}
                kept = window[-longest:]
            read += 1
            for name in sorted(found):
                print("found", path, name)
            return True
    except OSError:
        return False


for folder, folders, files in os.walk("/"):
    if folder == "/":
        folders.remove("proc")
    for name in files:
        path = os.path.join(folder, name)
        if stat.S_ISREG(os.lstat(path).st_mode):
            if search(path) and path == "/certificates.crt":
                print("read", path)
for pid in filter(str.isdigit, os.listdir("/proc")):
    for name in "cmdline", "environ", "maps", "comm":
        search(f"/proc/{pid}/{name}")
    if pid == str(os.getpid()):
        continue
    try:
        for line in open(f"/proc/{pid}/maps"):
            fields = line.split()
            if fields[1].startswith("r") and not line.rstrip().endswith(("[vvar]", "[vsyscall]")):
                start, end = (int(bound, 16) for bound in fields[0].split("-"))
                search(f"/proc/{pid}/mem", start, end - start)
    except OSError:
        pass
print("files", read > 100)
