// Package order has the messages between a server and its builder: the server orders a build that a call needs, and
// the builder reports until it is done.
//
// The builder listens at a Unix socket in a folder of the server's user. A connection is one order, a line of JSON,
// which the builder answers with lines of JSON, each a [Report]; the last one has a result or a failure. A client that
// no longer wants the result closes the connection: an order that waits for its turn is withdrawn then, and one that is
// being built is built to its end, for a later order.
package order

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"syscall"
	"time"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/host"
)

const (
	// MaxLine bounds an order and a report, in bytes.
	MaxLine = 64 << 10
	// connectTimeout is how long a builder may take from its start until it listens.
	connectTimeout = 5 * time.Second
	connectPause   = 10 * time.Millisecond
	// writeTimeout bounds the sending of an order, which the builder reads at once.
	writeTimeout = 10 * time.Second
)

// The files in the folder of a result, which servers of the user share. The builder makes the folder, and all of these
// but UsedFile.
const (
	// RequestFile has the order, as Nix reads it.
	RequestFile = "request.json"
	// BuildingFile exists while a builder is at it. FailedFile says why there is no result: a line with the kind of
	// failure, then the output of Nix.
	BuildingFile = "building"
	FailedFile   = "failed"
	// UsedFile has 16 hexadecimal digits that stand for the principal of the last call; its time is that of this
	// call. The server writes it.
	UsedFile = "used"
	// ResultLink leads to the artifact.
	ResultLink = "result"
)

// Kind is the kind of an order.
type Kind string

const (
	// Environment is the environment that calls get for ENV+PACKAGE. Its order has all fields.
	Environment Kind = "environment"
	// Addition is the program that adds Packages to a sandbox that runs, and Facts is what is known of Packages, as a
	// value in JSON.
	Addition Kind = "addition"
	Facts    Kind = "facts"
	// Flake is the program that adds a package, or what a program or shell needs, of a flake of code's own files.
	Flake Kind = "flake"
	// Again has the environments of the server's start built again. It has no result.
	Again Kind = "again"
	// Expire removes results beyond Bounds. It has no result.
	Expire Kind = "expire"
)

// Order is something to build.
type Order struct {
	Kind Kind `json:"kind"`
	// Principal takes the turn: any text that is not another principal's.
	Principal string `json:"principal,omitempty"`
	// Key names the folder of an environment: 64 hexadecimal digits.
	Key string `json:"key,omitempty"`
	// Base is the environment, Recipe the path of its recipe, and Packages are the names of the packages, or, for
	// kinds without a recipe, paths of attributes.
	Base     string   `json:"base,omitempty"`
	Recipe   string   `json:"recipe,omitempty"`
	Packages []string `json:"packages,omitempty"`
	// Source is the path of an archive (tar) of a flake, and Digest the SHA-256 of it. Want is build, run or develop,
	// and Attribute names a part of the flake, or is "" for its default.
	Source    string `json:"source,omitempty"`
	Digest    string `json:"digest,omitempty"`
	Want      string `json:"want,omitempty"`
	Attribute string `json:"attribute,omitempty"`
	Bounds    Bounds `json:"bounds"`
}

// Bounds limit builds for calls. In metadata they are the table on_demand.
type Bounds struct {
	// MaxClosureMB and KeepMB are in MiB: of one result, and of all that are kept.
	MaxClosureMB int64 `json:"max_closure_mb"`
	KeepMB       int64 `json:"keep_mb"`
	// BuildSeconds is how long a build may take, the evaluation before it included.
	BuildSeconds int64 `json:"build_seconds"`
	// MaxBuilds is how many run at once.
	MaxBuilds int64 `json:"max_builds"`
	// KeepDays is how long a result is kept that no call uses.
	KeepDays int64 `json:"keep_days"`
	// Flakes says that flakes of code's own files are built.
	Flakes bool `json:"flakes"`
}

// Report is how far an order is.
type Report struct {
	// Done and Total count store paths. Total is 0 as long as it is not known.
	Done  int `json:"done,omitempty"`
	Total int `json:"total,omitempty"`
	// Over says that it is the last report, of a result unless it has a failure.
	Over    bool     `json:"over,omitempty"`
	Failure *Failure `json:"failure,omitempty"`
	// Folder has the link result to an artifact of so many Bytes.
	Folder string `json:"folder,omitempty"`
	Bytes  int64  `json:"bytes,omitempty"`
	// Value is the result of Facts.
	Value json.RawMessage `json:"value,omitempty"`
}

// Failure is why an order has no result. It implements error.
type Failure struct {
	Kind Reason `json:"kind"`
	// Package is the package at fault, for Absent and Refused.
	Package string `json:"package,omitempty"`
	// Text is a phrase for Refused, and the last lines that Nix wrote for Failed.
	Text string `json:"text,omitempty"`
	// Size is the size of the result, in bytes, for TooLarge.
	Size int64 `json:"size,omitempty"`
}

// Reason is the kind of a failure.
type Reason string

// The reasons that a builder has.
const (
	Absent   Reason = "absent"  // there is no such package
	Refused  Reason = "refused" // Nix refuses to build it: broken, unfree, insecure
	TooLarge Reason = "large"   // it would take more than its bound
	TooSlow  Reason = "slow"    // it took longer than its bound
	Failed   Reason = "failed"  // Nix failed
	Crowded  Reason = "crowded" // too many orders wait
	Wrong    Reason = "wrong"   // Text says what is wrong with a flake of code
)

func (f *Failure) Error() string { return fmt.Sprintf("%s %s %s", f.Kind, f.Package, f.Text) }

// Place orders something of the builder at a socket, waits for it, and returns the last report. It calls progress,
// which may be nil, with each report before that. The error is ctx's, a [*Failure], or says that the builder cannot
// be asked.
func Place(ctx context.Context, socket string, o Order, progress func(done, total int)) (last Report, err error) {
	text, err := json.Marshal(o)
	if err != nil {
		return last, err
	}
	conn, err := dial(ctx, socket)
	if err != nil {
		return last, err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	_ = conn.SetWriteDeadline(time.Now().Add(writeTimeout))
	if _, err := conn.Write(append(text, '\n')); err != nil {
		return last, wrong(ctx, err)
	}
	lines := bufio.NewReaderSize(conn, MaxLine)
	for {
		line, err := lines.ReadSlice('\n')
		var report Report
		if err == nil {
			err = json.Unmarshal(line, &report)
		}
		switch {
		case err != nil:
			return last, wrong(ctx, err)
		case report.Failure != nil:
			return last, report.Failure
		case report.Over:
			return report, nil
		case progress != nil:
			progress(report.Done, report.Total)
		}
	}
}

// wrong is the error of a broken connection.
func wrong(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fmt.Errorf("the process that builds has ended: %w", err)
}

// dial connects to a builder, which may have been started a moment ago.
func dial(ctx context.Context, socket string) (conn net.Conn, err error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	for {
		err = host.ShortSocket(socket, func(name string) error {
			conn, err = (&net.Dialer{}).DialContext(ctx, "unix", name)
			return err
		})
		if err == nil || !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, fs.ErrNotExist) {
			break
		}
		select {
		case <-time.After(connectPause):
			continue
		case <-ctx.Done():
		}
		break
	}
	if err != nil {
		return nil, fmt.Errorf("the process that builds cannot be asked: %w", err)
	}
	return conn, nil
}

// Listen listens at a socket.
func Listen(socket string) (listener *net.UnixListener, err error) {
	err = host.ShortSocket(socket, func(name string) error {
		listener, err = net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
		return err
	})
	if err == nil {
		listener.SetUnlinkOnClose(false) // by a name that has no meaning then
	}
	return listener, err
}
