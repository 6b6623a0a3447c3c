package builder

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"

	"golang.org/x/sys/unix"
)

const (
	// maxLine bounds a line of Nix's output in the log, in bytes. A project's flake can print anything.
	maxLine = 4096
	// shownLines is how many lines of Nix's error are kept for the answer to a call.
	shownLines = 20
	// endTime is how long Nix may take to end its own builds.
	endTime = 3 * time.Second
	// maxValue bounds the value of an evaluation, in bytes.
	maxValue = 4 << 20
)

// Nix runs the programs of Nix on the server's expressions.
type Nix struct {
	// Start is the file with the server's library and package set (nix/wrapper/default.nix).
	Start string
	// Log gets the output of the programs, each line with a name before it.
	Log io.Writer
}

// nixError is the error of a program: the last lines that it wrote, from its last error on.
type nixError struct{ text string }

func (e *nixError) Error() string { return e.text }

// flakes are the arguments of nix that older versions want before they know these commands.
var flakes = []string{"nix", "--extra-experimental-features", "nix-command flakes"}

// Eval returns the value of an attribute of Start, which is a string.
func (n *Nix) Eval(ctx context.Context, name, attribute string, arguments ...string) (string, error) {
	words := append(append(append([]string{}, flakes...), "eval", "--impure", "--raw", "-f", n.Start), arguments...)
	var value bytes.Buffer
	err := n.run(ctx, command{name: name, words: append(words, attribute), out: &value})
	if value.Len() > maxValue {
		return "", &nixError{fmt.Sprintf("the value of %s has more than %d MiB", attribute, maxValue>>20)}
	}
	return value.String(), err
}

// Build builds an installable, and makes root a link to it that keeps it from Nix's garbage collection.
func (n *Nix) Build(ctx context.Context, c command, root string, arguments ...string) error {
	c.words = append(append(append([]string{}, flakes...), "build", "-v", "--no-write-lock-file", "--out-link", root), arguments...)
	return n.run(ctx, c)
}

// Realise does the same for a derivation. The words of the command are further arguments.
func (n *Nix) Realise(ctx context.Context, c command, root, derivation string) error {
	c.words = append([]string{"nix-store", "--realise", derivation, "--add-root", root, "--indirect"}, c.words...)
	return n.run(ctx, c)
}

// command is a program to run.
type command struct {
	name  string // in the log
	words []string
	dir   string
	env   []string // nil is this process's
	// out gets its standard output, which otherwise is logged. It is given no more than a byte beyond maxValue.
	out io.Writer
	// line is told each line of its standard error. It may be nil.
	line func(string)
	// quiet keeps it out of the log, and plain writes its lines there without a name.
	quiet, plain bool
}

// run runs a program in a process group of its own, at a low priority, so that calls that run are not slowed down.
// If ctx ends, all of the group does. The error is ctx's or a [*nixError].
func (n *Nix) run(ctx context.Context, c command) error {
	cmd := exec.CommandContext(ctx, "nice", append([]string{"-n", "10"}, c.words...)...)
	cmd.Dir, cmd.Env = c.dir, c.env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGTERM) }
	cmd.WaitDelay = endTime
	log := &logged{ctx: ctx, to: n.Log, name: c.name, seen: c.line}
	switch {
	case c.quiet:
		log.to = io.Discard
	case c.plain:
		log.name = ""
	}
	cmd.Stderr, cmd.Stdout = log, io.Writer(log)
	if c.out != nil {
		cmd.Stdout = &limited{c.out, maxValue + 1}
	}
	err := cmd.Run()
	log.end()
	if ctx.Err() != nil && cmd.Process != nil {
		_ = unix.Kill(-cmd.Process.Pid, unix.SIGKILL) // SIGTERM did not end all
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err == nil:
		return nil
	case len(log.last) > 0:
		return &nixError{strings.Join(log.last, "\n")}
	}
	return &nixError{fmt.Sprintf("%s ended without a word: %v", c.words[0], err)}
}

// limited passes on a bounded number of bytes.
type limited struct {
	to   io.Writer
	left int
}

func (l *limited) Write(p []byte) (int, error) {
	part := p[:min(len(p), l.left)]
	l.left -= len(part)
	_, err := l.to.Write(part)
	return len(p), err
}

// logged writes lines to a log. It is used by one goroutine at a time.
type logged struct {
	ctx  context.Context // at its end, what a program says of that is left out
	to   io.Writer
	name string
	seen func(string)
	text []byte
	last []string // lines from the last error on
}

func (l *logged) Write(p []byte) (int, error) {
	l.text = append(l.text, p...)
	for {
		at := bytes.IndexByte(l.text, '\n')
		if at < 0 && len(l.text) < maxLine {
			return len(p), nil
		}
		next := at + 1
		if at < 0 || at > maxLine {
			at, next = maxLine, maxLine
		}
		l.line(string(l.text[:at]))
		l.text = l.text[next:]
	}
}

func (l *logged) end() {
	if len(l.text) > 0 {
		l.line(string(l.text))
	}
}

func (l *logged) line(text string) {
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return -1
		}
		return r
	}, strings.ToValidUTF8(text, "\uFFFD"))
	// nixpkgs has thousands of these lines.
	if strings.HasPrefix(text, "evaluating file '") {
		return
	}
	if l.seen != nil {
		l.seen(text)
	}
	prefix := ""
	if l.name != "" {
		prefix = "nix-sandbox-mcp: " + l.name + ": "
	}
	if l.ctx.Err() == nil {
		fmt.Fprintf(l.to, "%s%s\n", prefix, text)
	}
	// Lines before the last error do not explain it. Nix indents it below a trace.
	if plain := strings.TrimSpace(text); strings.HasPrefix(plain, "error:") {
		l.last, text = nil, plain
	}
	l.last = append(l.last, text)
	if len(l.last) > shownLines {
		l.last = l.last[1:]
	}
}

// passed are the variables that Nix acts on. A derivation can ask for any variable of the process that builds it
// (impureEnvVars), so that the derivations of a project are built with these alone.
var passed = map[string]bool{}

func init() {
	for name := range strings.FieldsSeq(`PATH HOME USER LOGNAME LANG LC_ALL TMPDIR XDG_CACHE_HOME XDG_CONFIG_DIRS
		XDG_CONFIG_HOME XDG_DATA_HOME XDG_STATE_HOME NIX_CONF_DIR NIX_REMOTE NIX_SSL_CERT_FILE NIX_USER_CONF_FILES
		SSL_CERT_FILE SSH_AUTH_SOCK http_proxy https_proxy ftp_proxy all_proxy no_proxy
		HTTP_PROXY HTTPS_PROXY FTP_PROXY ALL_PROXY NO_PROXY`) {
		passed[name] = true
	}
}

// confined returns the variables for a build of a project's derivation, and the arguments that have Nix build
// it in its own sandbox. Nix's settings that a variable has go to a file.
func confined(settings string) (env, arguments []string, err error) {
	if err := os.WriteFile(settings, []byte(os.Getenv("NIX_CONFIG")+"\n"), 0o600); err != nil {
		return nil, nil, err
	}
	files := os.Getenv("NIX_USER_CONF_FILES")
	if folder, err := os.UserConfigDir(); files == "" && err == nil {
		files = folder + "/nix/nix.conf"
	}
	for _, variable := range os.Environ() {
		if name, _, _ := strings.Cut(variable, "="); passed[name] && name != "NIX_USER_CONF_FILES" {
			env = append(env, variable)
		}
	}
	return append(env, "NIX_USER_CONF_FILES="+settings+":"+files), []string{"--option", "sandbox", "true", "--option", "sandbox-fallback", "false"}, nil
}

// WithoutPrograms has git start no program that a checkout names. Nix before 2.20 asks git about checkouts, and an
// unpacked archive can bring such settings.
func WithoutPrograms() {
	count, _ := strconv.Atoi(os.Getenv("GIT_CONFIG_COUNT"))
	for i, setting := range []string{"core.fsmonitor=false", "core.hooksPath=/dev/null"} {
		key, value, _ := strings.Cut(setting, "=")
		os.Setenv(fmt.Sprintf("GIT_CONFIG_KEY_%d", count+i), key)
		os.Setenv(fmt.Sprintf("GIT_CONFIG_VALUE_%d", count+i), value)
	}
	os.Setenv("GIT_CONFIG_COUNT", strconv.Itoa(count+2))
}

// isEnd reports whether an error is the end of a context.
func isEnd(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
