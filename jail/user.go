package jail

import (
	"bytes"
	"fmt"
	"slices"
	"strconv"
)

// If root starts a sandbox, it runs as one of these users of the host. The number comes
// from the launcher's process id, which stays taken while the sandbox lives. So two
// sandboxes never have one user at a time, and neither can use up what the kernel counts
// for each user.
const (
	// ownUsers begins a range of 2^22 users, as many as Linux has process ids.
	// Neither distributions nor systemd, subordinate users or containers assign
	// numbers of this range, or of the next one of the same size.
	ownUsers = 0x7000_0000
	// ofProxy is added to the process id for the user of the network's proxy.
	ofProxy = 1 << 22
	// dynamicUsers begins systemd's range for dynamic users, which also exists
	// in containers that have 65,536 users.
	dynamicUsers     = 61184
	dynamicUserCount = 4336
)

// isSandboxUser reports whether root starts sandboxes as this user of the host.
func isSandboxUser(user int) bool {
	return user >= ownUsers && user < ownUsers+1<<22 || user >= dynamicUsers && user < dynamicUsers+dynamicUserCount
}

// span is a line of /proc/self/uid_map or gid_map.
type span struct{ inside, outside, count int64 }

// parseMap parses the text of such a file.
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

// sandboxUser chooses a user, and the group of the same number, for a sandbox that root
// starts, among the users that this user namespace maps. It returns 0 if root is the
// only one, and an ordinary user of the parent namespace.
func sandboxUser(users, groups []span, pid int) (int, error) {
	mapped := func(id int64) bool {
		holds := func(s span) bool { return id >= s.inside && id < s.inside+s.count }
		return slices.ContainsFunc(users, holds) && slices.ContainsFunc(groups, holds)
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
		Problem: fmt.Sprintf("root starts sandboxes as the user %d or another user of their own, and this container has no such user", ownUsers+pid),
		Hint:    "start the server as an ordinary user, or give the container 65536 users",
	}
}
