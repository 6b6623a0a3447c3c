package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestCommandRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		args   []string
		status int
		want   string // in the error
	}{
		"no artifact":    {nil, statusMisused, "no artifact was named"},
		"unknown option": {[]string{"--everything", "."}, statusMisused, "-everything"},
		"no sandbox":     {[]string{t.TempDir()}, statusFailed, "check what the sandbox needs"},
	} {
		t.Run(name, func(t *testing.T) {
			var out, log bytes.Buffer
			status := run(t.Context(), test.args, &out, &log)
			if status != test.status || out.Len() > 0 || !strings.HasPrefix(log.String(), program+": error: ") || !strings.Contains(log.String(), test.want) {
				t.Errorf("status %d, output %q, error %q", status, &out, &log)
			}
		})
	}
}

func TestCommandExplainsItself(t *testing.T) {
	var out, log bytes.Buffer
	if status := run(t.Context(), []string{"--help"}, &out, &log); status != 0 || out.String() != usage || log.Len() > 0 {
		t.Errorf("status %d, output %q, error %q", status, &out, &log)
	}
}
