package command

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/pipe"
	"github.com/spf13/pflag"
)

// Serve are the flags of a server.
type Serve struct {
	Stdio     bool
	HTTP      string // an address; empty for that of the configuration
	LogFormat string
}

// Add adds the flags of every server.
func (s *Serve) Add(flags *pflag.FlagSet) {
	flags.BoolVar(&s.Stdio, "stdio", false, "speak MCP over standard input and output")
	flags.StringVar(&s.LogFormat, "log-format", "text", "write the log, on standard error, as `text|json`")
}

// AddHTTP adds the flag of a server for many clients.
func (s *Serve) AddHTTP(flags *pflag.FlagSet) {
	flags.StringVar(&s.HTTP, "http", "", "listen at `ADDRESS:PORT`, at unix:PATH, or at the socket that systemd passes: systemd")
}

// Check returns an error if the flags contradict each other.
func (s *Serve) Check() error {
	switch {
	case s.LogFormat != "text" && s.LogFormat != "json":
		return Misuse(fmt.Sprintf("--log-format is %q", s.LogFormat), "use text or json")
	case s.Stdio && s.HTTP != "":
		return Misuse("serve has both --stdio and --http", "leave one of them out")
	}
	return nil
}

// Parse reads the arguments of a program that has no other commands. The wrapper and the
// operator's program have checked them.
func (s *Serve) Parse(args []string, add ...func(*pflag.FlagSet)) error {
	flags := pflag.NewFlagSet(Program, pflag.ContinueOnError)
	flags.Usage = func() {}
	for _, add := range add {
		add(flags)
	}
	if err := flags.Parse(args); err != nil {
		return Misuse(err.Error(), "see "+Program+" --help")
	}
	if flags.NArg() > 0 {
		return Misuse(fmt.Sprintf("unknown command %q", flags.Arg(0)), "see "+Program+" --help")
	}
	return s.Check()
}

// Log returns the log in the format of --log-format.
func (s *Serve) Log(to io.Writer) *slog.Logger {
	to = pipe.Writer(to)
	if s.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(to, nil))
	}
	return slog.New(slog.NewTextHandler(to, nil))
}
