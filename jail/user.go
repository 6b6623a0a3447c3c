package jail

import (
	"bytes"
	"fmt"
	"strconv"
)

// Users of the host that sandboxes of root's run as. Each has the starter's
// process number in it, which is the sandbox's as long as it lives: so two
// sandboxes at once have two users, and none uses up what the kernel counts
// for each user.
const (
	// ownUsers starts a range of 2^22, the most processes that Linux numbers.
	// Neither distributions nor systemd, subordinate users or containers give
	// numbers of it away.
	ownUsers = 0x7000_0000
	// dynamicUsers and their number are systemd's range for users of the
	// moment, for containers that have 65,536 users.
	dynamicUsers     = 61184
	dynamicUserCount = 4336
)

// span is a line of /proc/self/uid_map or gid_map.
type span struct{ inside, outside, count int64 }

func (s span) holds(id int64) bool { return id >= s.inside && id < s.inside+s.count }

// parseMap reads such a file.
func parseMap(text []byte) ([]span, error) {
	var spans []span
	for line := range bytes.Lines(text) {
		var numbers [3]int64
		fields := bytes.Fields(line)
		if len(fields) != len(numbers) {
			return nil, fmt.Errorf("the line %q has not three numbers", line)
		}
		for i, field := range fields {
			n, err := strconv.ParseInt(string(field), 10, 64)
			if err != nil {
				return nil, err
			}
			numbers[i] = n
		}
		spans = append(spans, span{numbers[0], numbers[1], numbers[2]})
	}
	return spans, nil
}

// sandboxUser chooses the user, and the group of the same number, of a
// sandbox that root starts, by what this system maps; 0 where root is alone
// there and an ordinary user of the system above.
func sandboxUser(users, groups []span, pid int) (int, error) {
	mapped := func(id int64) bool {
		find := func(spans []span) bool {
			for _, s := range spans {
				if s.holds(id) {
					return true
				}
			}
			return false
		}
		return find(users) && find(groups)
	}
	for _, id := range []int64{ownUsers + int64(pid), dynamicUsers + int64(pid%dynamicUserCount)} {
		if mapped(id) {
			return int(id), nil
		}
	}
	if len(users) == 1 && users[0].count == 1 && users[0].outside != 0 {
		return 0, nil
	}
	return 0, &Refusal{
		Problem: fmt.Sprintf("root starts sandboxes as the user %d or another of its own, and this container has none of them", ownUsers+pid),
		Hint:    "start the server as an ordinary user, or give the container 65536 users",
	}
}
