package jail

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// Start replaces this process by the sandbox, or waits for the sandbox and ends with its
// status. It returns only if that fails.
func (s *Spec) Start(request Request) error {
	parent := unix.Getppid()
	if err := closeOnExec(); err != nil {
		return err
	}
	if err := inherit(request.CodeGroup); err != nil {
		return err
	}
	// Users, keyrings and mounts belong to a thread, and only the thread that calls
	// execve survives.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// Whatever is missing is an error before anything has changed.
	filter, err := s.openFilter()
	if err != nil {
		return err
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
	var network *networkStep
	startNetwork := func() (err error) {
		if s.Network != nil && network == nil {
			if proxy == nil {
				network = &networkStep{Proxy: request.Carrier, Ports: s.Network.Ports}
				return inherit(request.Carrier)
			}
			network, err = s.Network.start(proxy, s.AppArmor, request.Events)
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
	if err := s.namespacesAllowed(); err != nil {
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
				Problem: "the devices of this sandbox add folders to its store, which takes a kernel with overlayfs",
				Hint:    "use another kernel, or devices whose specification names no path of the store",
			}
		}
	}
	if err := request.checkDevices(); err != nil {
		return err
	}
	// An ordinary user's proxy starts last, so that it does not repeat these errors.
	if err := startNetwork(); err != nil {
		return err
	}
	todo := step{Network: network}
	var more []string
	if network != nil {
		more = network.flags(s.Network.Certificates)
	}
	if request.Workspace != 0 {
		todo.Mounts = s.Workspace.mounts(request)
	}
	if request.Upper != 0 {
		todo.Upper = &place{request.Upper, s.Overlay.Upper}
	}
	first, err := todo.command()
	if err != nil {
		return err
	}
	outer, inside := s.plan(request, more...)
	// The flags are in an anonymous file because every user of the host can read
	// arguments, and because their size is limited.
	flags, err := memfile("flags", terminated(slices.Concat(inside, variables)))
	if err != nil {
		return err
	}
	args := slices.Concat(first, []string{
		s.Bubblewrap, "--args", strconv.Itoa(flags), "--seccomp", strconv.Itoa(filter), "--",
	}, s.command(request))
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
	// Bubblewrap asks to end with its parent (--die-with-parent) only just before its
	// child goes on. If it ended earlier, its child would wait for it forever. So it
	// must not end with its parent until then; if the parent does end, the agent finds
	// the end of its input.
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("leave the signal of the parent's end to bubblewrap: %w", err)
	}
	if unix.Getppid() != parent {
		return errParentEnded
	}
	return fmt.Errorf("start %s: %w", args[0], unix.Exec(args[0], args, nil))
}

var errParentEnded = errors.New("the process that started the sandbox has ended")

// newKeyring gives the sandbox a session keyring of its own. Processes inherit
// their session's, and could read the passwords and tickets in it.
func newKeyring() error {
	// Without a name, the keyring is a new one.
	_, err := unix.KeyctlInt(unix.KEYCTL_JOIN_SESSION_KEYRING, 0, 0, 0, 0)
	switch {
	// There is no keyring in a kernel or a container without keys.
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

// plan returns the flags for bubblewrap: for the outer namespace, or nil without one, and
// for the sandbox. An outer namespace has the host's files that the
// sandbox sees in numbered folders. more are flags of the sandbox that depend on its start.
func (s *Spec) plan(request Request, more ...string) (outer, inside []string) {
	project := request.Project
	var hostDir string
	switch {
	case project.Overlay:
		outer, hostDir = slices.Clone(s.Overlay.Flags), s.Overlay.HostDir
	case request.Workspace != 0:
		outer, hostDir = slices.Clone(s.Workspace.Flags), s.Workspace.HostDir
	case request.devices.needsStore():
		outer, hostDir = slices.Clone(s.Devices.Flags), s.Devices.HostDir
	}
	shown := 0
	showAs := func(flag, from string) string {
		if hostDir == "" {
			return from
		}
		to := hostDir + "/" + strconv.Itoa(shown)
		shown++
		outer = append(outer, flag, from, to)
		return to
	}
	show := func(from string) string { return showAs("--ro-bind", from) }
	inside = slices.Concat(s.Flags, s.masks(), more)
	if request.devices != nil {
		outside, added := request.devices.flags(s.Devices.Store, showAs)
		outer = append(outer, outside...)
		inside = append(inside, added...)
	}
	if request.Workspace != 0 {
		outer = append(outer, s.Workspace.Join...)
		inside = append(inside, "--bind", s.Workspace.At, s.Workspace.Mount)
	}
	if project.Shared {
		outer = append(outer, "--dir", s.Workspace.Project)
		inside = append(inside, "--bind", s.Workspace.Project, project.Mount)
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
	if project.Git != "" {
		inside = append(inside, "--ro-bind", show(project.Git), project.GitMount)
	}
	return outer, slices.Concat(inside, s.Seal)
}

// command returns the first process of the sandbox and its arguments, with the options
// that this request adds.
func (s *Spec) command(request Request) []string {
	var options []string
	if request.Project.Overlay || request.Project.Shared {
		options = append(options, s.Overlay.Option, request.Project.Mount)
	}
	if request.CodeGroup != 0 {
		options = append(options, codeGroupOption, strconv.Itoa(request.CodeGroup))
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

// memfile returns the descriptor of an anonymous file with these contents, positioned at
// its beginning. The descriptor stays open across execve.
func memfile(name string, contents []byte) (int, error) {
	fd, err := unix.MemfdCreate(name, 0)
	if err != nil {
		return 0, fmt.Errorf("make an anonymous file: %w", err)
	}
	return fd, fill(fd, contents)
}

// fill writes the contents of an empty anonymous file and rewinds it.
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

// closeOnExec keeps all of the caller's descriptors but the standard ones out of the
// sandbox.
func closeOnExec() error {
	if err := unix.CloseRange(firstExtra, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC); err != nil {
		return fmt.Errorf("keep open files out of the sandbox, which takes Linux 5.14 or later: %w", err)
	}
	return nil
}
