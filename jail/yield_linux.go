package jail

import (
	"cmp"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// yieldToHost makes this process, and the sandbox that follows it, the first that
// the kernel kills when the machine is out of memory. Much of what the kernel
// keeps for code counts as the memory of no process, so that otherwise the kernel
// would choose the largest program of the host. This takes no privilege, and the
// code cannot undo it, because /proc is read-only in the sandbox. A description may
// have a lower score, so that the kernel chooses other processes of its control
// group first.
//
// It also keeps a crash from starting the handler that kernel.core_pattern names,
// which runs as root and reads the memory of the process that crashed. A limit of
// 0 has no effect on such handlers, and a limit of 1 has (core(5)). The agent
// sets it as well; but where the hard limit is 0, only root may raise it. The filter
// of system calls keeps code from lowering it.
//
// Errors are ignored: a container may have /proc read-only, and an ordinary user
// with a hard limit of 0 cannot raise it. The sandbox is as confined without.
func (s *Spec) yieldToHost() {
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte(strconv.Itoa(cmp.Or(s.OOMScore, maxOOMScore))), 0)
	_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: 1, Max: 1})
}
