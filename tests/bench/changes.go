package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// What it costs that the changes of sessions are saved: for a call that changes nothing,
// and for one that changes some files of a large project.
const (
	projectFiles = 10_000
	folderFiles  = 100
	changedFiles = 10
)

// changes is the group that compares a server that saves the changes of its sessions with
// one that cannot, because it has no folder for them.
func (b *bench) changes() group {
	project := filepath.Join(b.temp, "project")
	made := sync.OnceValue(func() error { return makeProject(project) })
	const nothing = "echo 42"
	some := fmt.Sprintf("for i in {1..%d}; do echo $RANDOM$RANDOM >> /project/folder$i/file$i; done; echo 42", changedFiles)
	off := b.recorded(made, "call that changes nothing, not saved", project, "", nothing)
	changed := b.recorded(made, "call that changes 10 files, saved", project, "a", some)
	return group{
		name: "changes", title: fmt.Sprintf("changes of a project of %d files, an overlay, in a session of bash", projectFiles), base: off.name,
		rounds: 200, budget: 2 * time.Minute,
		list: []entry{
			{contender: off},
			{contender: b.recorded(made, "call that changes nothing, saved", project, "b", nothing)},
			{contender: b.recorded(made, "call that changes nothing after 10 files, not saved", project, "", nothing).after(some)},
			{contender: b.recorded(made, "call that changes nothing after 10 files, saved", project, "c", nothing).after(some)},
			{contender: b.recorded(made, "call that changes 10 files, not saved", project, "", some)},
			{contender: changed},
			{contender: &patchRead{b.recorded(made, "from the answer to the read of the patch, unchanged", project, "d", nothing).after(some)}},
			{contender: &patchRead{b.recorded(made, "from the answer to the read of the patch, 10 files changed", project, "e", some)}},
		},
	}
}

// makeProject makes a project with many files.
func makeProject(project string) error {
	for i := range projectFiles {
		folder := filepath.Join(project, fmt.Sprint("folder", i/folderFiles))
		if i%folderFiles == 0 {
			if err := os.MkdirAll(folder, 0o755); err != nil {
				return err
			}
		}
		text := fmt.Sprintf("# file %d\n", i)
		for line := range 100 {
			text += fmt.Sprintf("line %d of it\n", line)
		}
		if err := os.WriteFile(filepath.Join(folder, fmt.Sprint("file", i%folderFiles)), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// recorded is a call in a session with the project as an overlay, whose changes are saved
// in a folder; nowhere where that is empty.
func (b *bench) recorded(made func() error, name, project, folder, code string) *recordedCall {
	env := []string{"PROJECT_DIR=" + project, "PROJECT_MODE=overlay"}
	if folder != "" {
		env = append(env, "XDG_STATE_HOME="+filepath.Join(b.temp, "state", folder))
	} else {
		env = append(env, "HOME=", "XDG_STATE_HOME=")
	}
	return &recordedCall{project: made, served: &served{
		name: name, environment: b.found["bash"].environment, session: "changes", code: code, want: "42",
		launch: launch{program: b.server, metadata: b.cold, env: append(b.env, env...)},
	}}
}

// recordedCall is a call after another one.
type recordedCall struct {
	*served
	project func() error // makes the project
	first   string       // the code of the session's first call; empty where there is none
}

func (c *recordedCall) after(code string) *recordedCall {
	c.first = code
	return c
}

func (c *recordedCall) Prepare(ctx context.Context) error {
	if err := c.project(); err != nil {
		return err
	}
	// To make the project may have taken longer than a preparation may.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), callLimit)
	defer cancel()
	if err := c.served.Prepare(ctx); err != nil || c.first == "" {
		return err
	}
	_, err := c.server.run(ctx, c.environment, c.session, c.first, c.want)
	return err
}

// patchRead measures the time from the answer of a call until the patch has been read,
// which waits until it is saved.
type patchRead struct{ *recordedCall }

func (c *patchRead) Call(ctx context.Context) (time.Duration, error) {
	if _, err := c.recordedCall.Call(ctx); err != nil {
		return 0, err
	}
	began := time.Now()
	message, err := c.server.Client.Call(ctx, "resources/read", map[string]any{"uri": "sandbox://" + c.session + "/changes.patch"})
	if err == nil && len(message.Result) == 0 {
		err = errors.New("there is no patch")
	}
	return message.At.Sub(began), err
}
