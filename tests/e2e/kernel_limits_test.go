package e2e

import (
	"strings"
	"testing"
)

// What the kernel keeps for code beside its memory has limits too, and the answer
// says which one was crossed. Below it, the same code ends by itself.
func TestKernelLimits_AreNamed(t *testing.T) {
	const (
		locks = `
import fcntl, sys, time
for name in range(COUNT // 100):
    file = open(f"/tmp/{name}", "wb")
    globals()[f"file{name}"] = file
    for byte in range(100):
        fcntl.lockf(file, fcntl.LOCK_EX, 1, 2 * byte)
if COUNT > 4096:
    time.sleep(20)
print("done")
`
		terminals = `
import os, time
ends = [os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY) for _ in range(COUNT)]
if COUNT > 64:
    time.sleep(20)
print("done")
`
		watches = `
import os, select, time
files = [os.eventfd(0) for _ in range(500)]
instances = [select.epoll() for _ in range(COUNT // 500)]
for instance in instances:
    for file in files:
        instance.register(file, select.EPOLLIN)
if COUNT > 32768:
    time.sleep(20)
print("done")
`
	)
	c := start(t, limited(t))
	for _, test := range []struct{ code, few, many, answer, limit string }{
		{locks, "1000", "10000", "[stopped: held more than 4096 locks on files]", "file_locks"},
		{watches, "30000", "100000", "[stopped: watched more than 32768 files with epoll]", "epoll_watches"},
		{terminals, "40", "200", "[stopped: opened more than 64 terminals]", "terminals"},
	} {
		if got := run(c, "python", strings.ReplaceAll(test.code, "COUNT", test.few)); got.Text() != "done\n" {
			t.Errorf("%s of them: %q", test.few, got.Text())
		}
		got := run(c, "python", strings.ReplaceAll(test.code, "COUNT", test.many))
		if !got.IsError || !strings.HasSuffix(got.Text(), test.answer) || got.Fact("limit") != test.limit {
			t.Errorf("%s of them: %q, %v, want %q", test.many, got.Text(), got.Meta, test.answer)
		}
	}
}
