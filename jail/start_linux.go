package jail

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// firstExtra is the first descriptor after the standard ones.
const firstExtra = 3

// Start replaces this process by the sandbox. It returns only if that fails.
func (s *Spec) Start(project Project) error {
	parent := unix.Getppid()
	if err := closeOnExec(); err != nil {
		return err
	}
	// Keyrings and mounts are the thread's, and the thread that execs is the
	// one that stays.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// What is missing is said while nothing has changed yet.
	filter, err := unix.Open(s.Seccomp, unix.O_RDONLY, 0) // stays open across exec
	if err != nil {
		return &Refusal{
			Problem: fmt.Sprintf("open the system call filter %s: %v", s.Seccomp, err),
			Hint:    "build the sandbox again, so that its parts are in the store",
		}
	}
	if err := unix.Access(s.Bubblewrap, unix.X_OK); err != nil {
		return s.notStarted(err.Error())
	}
	variables, err := s.variables()
	if err != nil {
		return err
	}
	yieldToHost()
	project, err = leaveRoot(project)
	if err != nil {
		return err
	}
	if err := namespacesAllowed(s.Bubblewrap); err != nil {
		return err
	}
	if err := leaveKeys(); err != nil {
		return err
	}
	if err := s.checkBinds(); err != nil {
		return err
	}
	if project.Overlay {
		if err := overlayAllowed(s.Bubblewrap); err != nil {
			return err
		}
	}
	room, inside := s.plan(project)
	// The flags travel in an anonymous file, not in the arguments, which
	// every user of the host can read and which have a size limit.
	flags, err := memfile("flags", terminated(slices.Concat(inside, variables)))
	if err != nil {
		return err
	}
	words := append([]string{
		s.Bubblewrap, "--args", strconv.Itoa(flags), "--seccomp", strconv.Itoa(filter), "--",
	}, s.command(project)...)
	if room != nil {
		around, err := memfile("room", terminated(room))
		if err != nil {
			return err
		}
		words = append([]string{s.Bubblewrap, "--args", strconv.Itoa(around), "--"}, words...)
	}
	if err := leaveSignals(); err != nil {
		return err
	}
	if unix.Getppid() != parent {
		return errors.New("whoever started the sandbox has ended")
	}
	// Bubblewrap asks itself to end with its parent (--die-with-parent), and
	// does so when its child is about to go on. One that is ended before leaves
	// a child that waits for it for good: until then it lives on, and the agent
	// finds its input at the end.
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("leave the signal of the parent's end to bubblewrap: %w", err)
	}
	return s.notStarted(unix.Exec(s.Bubblewrap, words, nil).Error())
}

// leaveKeys gives the sandbox a keyring of its own: processes inherit their
// session's, and could read the passwords and tickets that it holds.
func leaveKeys() error {
	// No name: the keyring is new, and this process's alone.
	_, err := unix.KeyctlInt(unix.KEYCTL_JOIN_SESSION_KEYRING, 0, 0, 0, 0)
	switch {
	// A kernel or a container without keys has none for the sandbox either.
	case err == nil, errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EPERM):
		return nil
	case errors.Is(err, unix.EDQUOT):
		return &Refusal{
			Problem: "this user may hold no more keyrings, and each sandbox has one",
			Hint:    "run fewer sandboxes at once, or raise kernel.keys.maxkeys with sysctl",
		}
	}
	return fmt.Errorf("make a keyring for the sandbox: %w", err)
}

// plan is what bubblewrap is told: the flags of the room around the sandbox,
// nil where it needs none, and those of the sandbox. In a room, what is shown
// of the host lies below the room's folder, numbered.
func (s *Spec) plan(project Project) (room, inside []string) {
	show := func(from string) string { return from }
	if project.Overlay {
		room = slices.Clone(s.Overlay.Flags)
		shown := 0
		show = func(from string) string {
			to := s.Overlay.Room + "/" + strconv.Itoa(shown)
			shown++
			room = append(room, "--ro-bind", from, to)
			return to
		}
	}
	inside = slices.Concat(s.Flags, s.masks())
	for _, bind := range s.Binds {
		inside = append(inside, "--ro-bind", show(bind.From), bind.To)
	}
	switch {
	case project.Overlay:
		inside = append(inside,
			"--overlay-src", show(project.Dir),
			"--overlay", s.Overlay.Upper, s.Overlay.Work, project.Mount)
	case project.Dir != "":
		inside = append(inside, "--ro-bind", project.Dir, project.Mount)
	}
	return room, append(inside, s.Seal...)
}

// command is the first process, told of the layer if there is one.
func (s *Spec) command(project Project) []string {
	if !project.Overlay {
		return s.Command
	}
	return slices.Concat(s.Command[:2], []string{s.Overlay.Option, project.Mount}, s.Command[2:])
}

// terminated are words, each ended by a zero byte.
func terminated(words []string) []byte {
	var list bytes.Buffer
	for _, word := range words {
		list.WriteString(word)
		list.WriteByte(0)
	}
	return list.Bytes()
}

// memfile returns the descriptor of an anonymous file with these contents,
// at its beginning, which stays open across exec.
func memfile(name string, contents []byte) (int, error) {
	fd, err := unix.MemfdCreate(name, 0)
	if err != nil {
		return 0, fmt.Errorf("make an anonymous file: %w", err)
	}
	for rest := contents; len(rest) > 0; {
		n, err := unix.Write(fd, rest)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return 0, fmt.Errorf("fill an anonymous file: %w", err)
		}
		rest = rest[max(n, 0):]
	}
	if _, err := unix.Seek(fd, 0, 0); err != nil {
		return 0, fmt.Errorf("rewind an anonymous file: %w", err)
	}
	return fd, nil
}

// closeOnExec keeps every descriptor of the caller, beyond the standard
// ones, out of the sandbox.
func closeOnExec() error {
	err := unix.CloseRange(firstExtra, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	if err == nil {
		return nil
	}
	// Kernels before 5.11.
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return fmt.Errorf("list the open descriptors: %w", err)
	}
	for _, entry := range entries {
		if fd, err := strconv.Atoi(entry.Name()); err == nil && fd >= firstExtra {
			unix.CloseOnExec(fd)
		}
	}
	return nil
}
