package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/tests/patience"
)

const (
	// hogLimit is the limit of the server's Python, in MiB; a hog that
	// nothing stops ends by itself at hogMost.
	hogLimit = 1024
	hogMost  = hogLimit * 7 / 4
)

// fastHog takes memory with several processes as fast as they can write it.
// They keep a record in a file, which outlives them: what they all had before
// they began (0), when they crossed the limit (1), and for each what it took
// and when it last did. What is shared by them counts for each, so that the
// record tells of rather too much, and of a crossing rather too early.
const fastHog = `
import mmap, os, time
hogs, limit, most = %d, %d << 20, %d << 20
file = open('/workspace/record', 'w+b')
file.truncate(4096)
record = memoryview(mmap.mmap(file.fileno(), 4096)).cast('q')
first, own = os.getpid(), 0
for n in range(1, hogs):
    if os.fork() == 0:
        own = n
        break
block = b'x' * (1 << 20)
memory = mmap.mmap(-1, most // hogs, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
if os.getpid() == first:
    before = 0
    for pid in filter(str.isdigit, os.listdir('/proc')):
        for line in open(f'/proc/{pid}/status'):
            if line.startswith(('RssAnon', 'RssShmem', 'VmPTE')):
                before += int(line.split()[1]) << 10
    record[0] = before
while record[0] == 0: pass
for n in range(most // hogs >> 20):
    memory.write(block)
    now = time.monotonic_ns()
    record[2 + 2 * own] += 1 << 20
    record[3 + 2 * own] = now
    if record[1] == 0 and record[0] + sum(record[2:2 + 2 * hogs:2]) > limit:
        record[1] = now
time.sleep(1)
print('not stopped')
if os.getpid() != first: os._exit(0)
`

const readRecord = `
import struct
record = struct.unpack('16q', open('/workspace/record', 'rb').read(128))
print(record[0] + sum(record[2::2]), record[1], max(record[3::2]))`

// A hog is stopped soon after it crosses its limit, by its own clock, and not
// far above it, without a control group, in which the kernel would be first.
func TestFastHogNoDelegate(t *testing.T) {
	const (
		rounds = 5
		most   = hogLimit * 12 / 10
	)
	within := patience.For(500 * time.Millisecond)
	for _, hogs := range []int{1, 4} {
		t.Run(fmt.Sprint(hogs), func(t *testing.T) {
			c := start(t)
			if strings.Contains(c.Log(), "limits by=cgroup") {
				t.Skip("the kernel holds the limits here")
			}
			var used []int64
			var took []time.Duration
			for range rounds {
				got := in(c, "s", "python", fmt.Sprintf(fastHog, hogs, hogLimit, hogMost))
				if got.Fact("limit") != "memory_mb" || !strings.Contains(got.Text(), "used more than 1024 MB of memory") {
					t.Fatalf("%q, facts %v", got.Text(), got.Meta)
				}
				record := in(c, "s", "python", readRecord)
				var bytes, crossed, last int64
				if n, err := fmt.Sscan(record.Text(), &bytes, &crossed, &last); n != 3 || err != nil {
					t.Fatalf("the record is %q: %v", record.Text(), err)
				}
				// Stopped between the limit and the next record, it took
				// next to nothing more.
				after := time.Duration(0)
				if crossed != 0 {
					after = time.Duration(last - crossed)
				}
				said, _ := got.Fact("limit_used").(float64)
				if said <= hogLimit || int64(said) > hogMost {
					t.Errorf("said to have used %v MiB", said)
				}
				t.Logf("used %d MiB, %.0f by the answer; stopped %v after the limit", bytes>>20, said, after)
				used, took = append(used, max(bytes>>20, int64(said))), append(took, after)
			}
			// A busy host may delay one of them.
			slices.Sort(used)
			slices.Sort(took)
			if got := used[rounds/2]; got > most {
				t.Errorf("%v MiB were used, want at most %d of most of them", used, most)
			}
			if got := took[rounds/2]; got > within {
				t.Errorf("it took %v to stop them, want at most %v of most of them", took, within)
			}
		})
	}
}
