package jail

import (
	"os"

	"golang.org/x/sys/unix"
)

// mostDispensable is the highest value of oom_score_adj: the kernel chooses such
// a process before any other, however much memory the others have.
const mostDispensable = "1000"

// yieldToHost makes this process, and the sandbox that it becomes, the first that
// the kernel ends where the machine has no memory left: much of what the kernel
// keeps for code counts as no process's memory, so that the kernel would choose
// the largest program of the host instead. It takes no privilege. /proc is
// read-only inside, so that the code cannot take it back.
//
// It also keeps a crash from starting the handler that kernel.core_pattern names,
// which runs as root and reads the memory of what crashed. For such handlers a
// limit of 0 does not hold, and 1 does (core(5)). The agent sets it as well; but
// only root may raise it, where whoever starts the server has 0.
//
// Errors are ignored. A container may have /proc read-only, and an ordinary user
// whose hard limit is 0 cannot raise it; the sandbox is as closed without.
func yieldToHost() {
	_ = os.WriteFile("/proc/self/oom_score_adj", []byte(mostDispensable), 0)
	_ = unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: 1, Max: 1})
}
