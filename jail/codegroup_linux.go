package jail

import (
	"fmt"
	"strconv"

	"golang.org/x/sys/unix"
)

// codeGroupVariable names the descriptor of a control group's folder, in which the
// agent is to start the code, and whose events it reads. The sandbox's user may write
// to the group's cgroup.procs. Whoever sets it has set the limits of the group.
const codeGroupVariable = "NIX_SANDBOX_CODE_GROUP"

// startFactorVariable says how many times longer than usual an interpreter may take to
// load, where instructions are emulated.
const startFactorVariable = "NIX_SANDBOX_START_FACTOR"

// startFactorOption tells the agent the factor.
const startFactorOption = "--start-factor"

// readStartFactor reads the value of the variable; 0 where it is empty.
func readStartFactor(value string) (int, error) {
	if value == "" {
		return 0, nil
	}
	factor, err := strconv.Atoi(value)
	if err != nil || factor < 1 || factor > 100 {
		return 0, &Refusal{
			Problem: fmt.Sprintf("%s is %q, which is not a number from 1 to 100", startFactorVariable, value),
			Hint:    "leave it unset: only the first process of a virtual machine sets it",
		}
	}
	return factor, nil
}

// codeGroupOption tells the agent the descriptor.
const codeGroupOption = "--group"

// readCodeGroup finds the group in the value of its variable; 0 where that is empty.
func readCodeGroup(value string) (int, error) {
	if value == "" {
		return 0, nil
	}
	fd, err := strconv.Atoi(value)
	var fs unix.Statfs_t
	if err != nil || fd < firstExtra || unix.Fstatfs(fd, &fs) != nil || fs.Type != unix.CGROUP2_SUPER_MAGIC {
		return 0, &Refusal{
			Problem: fmt.Sprintf("%s is %q, which is not the number of a descriptor of a control group", codeGroupVariable, value),
			Hint:    "leave it unset: only the first process of a virtual machine sets it",
		}
	}
	return fd, nil
}

// inherit has a descriptor stay open across execve.
func inherit(fd int) error {
	if fd == 0 {
		return nil
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0); err != nil {
		return fmt.Errorf("keep the descriptor %d open: %w", fd, err)
	}
	return nil
}
