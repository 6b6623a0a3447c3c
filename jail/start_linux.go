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

// Start replaces this process by the sandbox, or waits for the sandbox and ends with its
// status. It returns only if that fails. events is the descriptor to which the proxy of
// the network writes what it refuses, or [NoEvents].
func (s *Spec) Start(request Request, events int) error {
	parent := unix.Getppid()
	if err := closeOnExec(); err != nil {
		return err
	}
	if err := inherit(request.CodeGroup); err != nil {
		return err
	}
	// Users, keyrings and mounts belong to a thread, and only the thread that calls
	// execve stays.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// What is missing is an error before anything has changed.
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
	proxy, err := s.readProxy()
	if err != nil {
		return err
	}
	var network *step
	startNetwork := func() (err error) {
		if s.Network != nil && network == nil {
			network, err = s.Network.start(proxy, events)
			s.yieldToHost()
		}
		return err
	}
	if unix.Geteuid() == 0 {
		// As root, so that the proxy becomes a user of its own.
		if err := startNetwork(); err != nil {
			return err
		}
	}
	s.yieldToHost()
	// With a network, this process may wait for the sandbox.
	request, err = dropRoot(request, s.Network != nil)
	if err != nil {
		return err
	}
	if err := namespacesAllowed(s.Bubblewrap); err != nil {
		return err
	}
	if err := newKeyring(); err != nil {
		return err
	}
	if err := s.checkBinds(); err != nil {
		return err
	}
	if request.Project.Overlay {
		if err := overlayAllowed(s.Bubblewrap); err != nil {
			return err
		}
	}
	if request.devices.needsStore() && !request.Project.Overlay {
		if err := overlayAllowed(s.Bubblewrap); err != nil {
			return &Refusal{
				Problem: "the devices of this sandbox bring folders of the store, and this kernel lets no user namespace make overlays: that takes Linux 5.11 with overlayfs",
				Hint:    "use a newer kernel, or devices whose specification names no path of the store",
			}
		}
	}
	if err := request.checkDevices(); err != nil {
		return err
	}
	// What is refused is said once, and not by the proxy's start too.
	if err := startNetwork(); err != nil {
		return err
	}
	var join, upper []string
	if request.Workspace != 0 {
		if join, err = s.Workspace.join(request.Workspace); err != nil {
			return err
		}
	}
	if request.Upper != 0 {
		if upper, err = s.Overlay.send(request.Upper); err != nil {
			return err
		}
	}
	command := func() (outer, args []string, flags int, err error) {
		outer, inside := s.plan(request, network.flags()...)
		// The flags are in an anonymous file and not in the arguments, which every
		// user of the host can read and whose size is limited.
		if flags, err = memfile("flags", terminated(slices.Concat(inside, variables))); err != nil {
			return nil, nil, 0, err
		}
		args = append([]string{
			s.Bubblewrap, "--args", strconv.Itoa(flags), "--seccomp", strconv.Itoa(filter), "--",
		}, s.command(request)...)
		return outer, slices.Concat(upper, join, network.command(), args), flags, nil
	}
	if network == nil && request.stagesDevices() {
		request.devices.isStaged = true
		_, args, flags, err := command()
		if err != nil {
			return err
		}
		if hasStarted, err := request.devices.startStaged(parent, s.Devices.StoreDir, args); hasStarted {
			return err
		}
		request.devices.isStaged = false
		// The sandbox would inherit it.
		_ = unix.Close(flags)
	}
	outer, args, _, err := command()
	if err != nil {
		return err
	}
	switch {
	case outer != nil:
		flags, err := memfile("outer flags", terminated(outer))
		if err != nil {
			return err
		}
		args = append([]string{s.Bubblewrap, "--args", strconv.Itoa(flags), "--"}, args...)
	case network != nil:
		return network.startAndWait(parent, args)
	}
	return become(parent, args)
}

// become replaces this process by bubblewrap with these arguments. It returns only
// if that fails, or if the parent has ended.
func become(parent int, args []string) error {
	if err := resetSignals(); err != nil {
		return err
	}
	// Bubblewrap itself asks to end with its parent (--die-with-parent), when its
	// child is about to go on. A bubblewrap that ended before that would leave a
	// child which waits for it for good. So it does not end with its parent until
	// then; where the parent has ended, the agent finds the end of its input.
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("leave the signal of the parent's end to bubblewrap: %w", err)
	}
	if unix.Getppid() != parent {
		return errors.New("whoever started the sandbox has ended")
	}
	return fmt.Errorf("start %s: %w", args[0], unix.Exec(args[0], args, nil))
}

// newKeyring gives the sandbox a session keyring of its own. Processes inherit
// their session's, and could read the passwords and tickets in it.
func newKeyring() error {
	// Without a name, the keyring is a new one.
	_, err := unix.KeyctlInt(unix.KEYCTL_JOIN_SESSION_KEYRING, 0, 0, 0, 0)
	switch {
	// In a kernel or a container without keys there are none to read.
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

// plan returns the flags of the bubblewraps: of that which makes the outer namespace,
// nil where none is needed for it, and of the sandbox's. In the outer namespace, and in the
// one where the launcher makes the mounts of devices, what the sandbox sees of the host lies
// in numbered folders. more are flags of the sandbox that only its start knows.
func (s *Spec) plan(request Request, more ...string) (outer, inside []string) {
	project := request.Project
	isStaged := request.devices != nil && request.devices.isStaged
	var hostDir string
	switch {
	case project.Overlay:
		outer, hostDir = slices.Clone(s.Overlay.Flags), s.Overlay.HostDir
	case request.Workspace != 0:
		outer, hostDir = slices.Clone(s.Workspace.Flags), s.Workspace.HostDir
	case request.devices.needsStore():
		outer, hostDir = slices.Clone(s.Devices.Flags), s.Devices.HostDir
	case isStaged:
		hostDir = s.Devices.HostDir
	}
	shown := 0
	showAs := func(flag, from string) string {
		if hostDir == "" {
			return from
		}
		to := hostDir + "/" + strconv.Itoa(shown)
		shown++
		if isStaged {
			request.devices.show(from, to)
		} else {
			outer = append(outer, flag, from, to)
		}
		return to
	}
	show := func(from string) string { return showAs("--ro-bind", from) }
	flags, last := s.Flags, []string(nil)
	if isStaged {
		flags, last = withoutDev(flags)
		last = append(request.devices.lastFlags(), last...)
	}
	inside = slices.Concat(flags, s.masks(), more)
	if request.devices != nil {
		outside, added := request.devices.flags(s.Devices.Store, showAs)
		outer = append(outer, outside...)
		inside = append(inside, added...)
	}
	if request.Workspace != 0 {
		outer = append(outer, s.Workspace.Join...)
		inside = append(inside, "--bind", s.Workspace.At, s.Workspace.Mount)
	}
	for _, bind := range s.Binds {
		inside = append(inside, "--ro-bind", show(bind.From), bind.To)
	}
	if request.Inbox != "" {
		inside = append(inside, "--ro-bind", show(request.Inbox), s.InboxMount)
	}
	switch {
	case project.Overlay:
		inside = append(inside,
			"--overlay-src", show(project.Dir),
			"--overlay", s.Overlay.Upper, s.Overlay.Work, project.Mount)
	case project.Dir != "":
		inside = append(inside, "--ro-bind", show(project.Dir), project.Mount)
	}
	return outer, slices.Concat(inside, s.Seal, last)
}

// command returns the first process and its arguments, with the options for the
// layer, the code's control group and a slow machine where there are such.
func (s *Spec) command(request Request) []string {
	var options []string
	if request.Project.Overlay {
		options = append(options, s.Overlay.Option, request.Project.Mount)
	}
	if request.CodeGroup != 0 {
		options = append(options, codeGroupOption, strconv.Itoa(request.CodeGroup))
	}
	if request.StartFactor != 0 {
		options = append(options, startFactorOption, strconv.Itoa(request.StartFactor))
	}
	if options == nil {
		return s.Command
	}
	return slices.Concat(s.Command[:2], options, s.Command[2:])
}

// terminated returns arguments, each with a zero byte after it.
func terminated(args []string) []byte {
	var list bytes.Buffer
	for _, arg := range args {
		list.WriteString(arg)
		list.WriteByte(0)
	}
	return list.Bytes()
}

// memfile returns the descriptor of an anonymous file with some contents, at its
// beginning. It stays open across execve.
func memfile(name string, contents []byte) (int, error) {
	fd, err := unix.MemfdCreate(name, 0)
	if err != nil {
		return 0, fmt.Errorf("make an anonymous file: %w", err)
	}
	return fd, fill(fd, contents)
}

// fill writes the contents of an anonymous file that is empty, and goes to its beginning.
func fill(fd int, contents []byte) error {
	for rest := contents; len(rest) > 0; {
		n, err := unix.Write(fd, rest)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("fill an anonymous file: %w", err)
		}
		rest = rest[max(n, 0):]
	}
	if _, err := unix.Seek(fd, 0, 0); err != nil {
		return fmt.Errorf("rewind an anonymous file: %w", err)
	}
	return nil
}

// closeOnExec keeps every descriptor of the caller but the standard ones out of
// the sandbox.
func closeOnExec() error {
	err := unix.CloseRange(firstExtra, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	if err == nil {
		return nil
	}
	// A kernel before 5.11.
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
