package jail

import (
	"os"

	"golang.org/x/sys/unix"
)

// maxOOMScore is the highest value of oom_score_adj: the kernel chooses such a
// process before any other, however much memory the others have.
const maxOOMScore = "1000"

// yieldToHost makes this process, and the sandbox that follows it, the first that
// the kernel kills when the machine is out of memory. Much of what the kernel
// keeps for code counts as the memory of no process, so that otherwise the kernel
// would choose the largest program of the host. This takes no privilege, and the
// code cannot undo it, because /proc is read-only in the sandbox.
//
// It also keeps a crash from starting the handler that kernel.core_pattern names,
// which runs as root and reads the memory of the process that crashed. A limit of
// 0 has no effect on such handlers, and a limit of 1 has (core(5)). The agent
// sets it as well; but where the hard limit is 0, only root may raise it.
//
// Errors are ignored: a container may have /proc read-only, and an ordinary user
// with a hard limit of 0 cannot raise it. The sandbox is as confined without.
func yieldToHost() {
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte(maxOOMScore), 0)
	_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: 1, Max: 1})
}
