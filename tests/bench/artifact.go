package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// An artifact is what the benchmark knows of one environment's sandbox. The
// contenders beside it use the same bubblewrap and the same interpreter.
type artifact struct {
	environment string // its name at the server
	language    string // python, bash or node
	run         string // bin/run
	bubblewrap  string
	tree        string // the folder that the sandbox has at /nix
	path        string // the folder that is PATH in the sandbox
	interpreter string // the interpreter outside of it
}

// programs are the interpreters of the languages that are measured.
var programs = map[string]string{"python": "python3", "bash": "bash", "node": "node"}

// spec holds the fields of an artifact's jail description that matter here.
type spec struct {
	Bubblewrap string   `json:"bubblewrap"`
	Flags      []string `json:"flags"`
}

// readMetadata reads the server's metadata and returns it with the artifacts
// of the languages that are measured, by language.
func readMetadata(name string) (map[string]any, map[string]artifact, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, nil, fmt.Errorf("read the server's metadata: %w", err)
	}
	var whole map[string]any
	var known struct {
		Environments map[string]struct {
			Type string `json:"interpreter_type"`
			Exec string `json:"exec"`
		} `json:"environments"`
	}
	if err := errors.Join(json.Unmarshal(text, &whole), json.Unmarshal(text, &known)); err != nil {
		return nil, nil, fmt.Errorf("read the server's metadata: %s: %w", name, err)
	}
	found := map[string]artifact{}
	for environment, e := range known.Environments {
		if programs[e.Type] == "" || found[e.Type].environment == e.Type {
			continue
		}
		a, err := readArtifact(environment, e.Type, e.Exec)
		if err != nil {
			return nil, nil, err
		}
		found[e.Type] = a
	}
	if len(found) == 0 {
		return nil, nil, fmt.Errorf("%s names no environment of type python, bash or node", name)
	}
	return whole, found, nil
}

// readArtifact reads the jail description in an artifact's bin/run.
func readArtifact(environment, language, run string) (artifact, error) {
	a := artifact{environment: environment, language: language, run: run}
	text, err := os.ReadFile(run)
	if err != nil {
		return a, fmt.Errorf("read the sandbox %s: %w", environment, err)
	}
	_, text, _ = bytes.Cut(text, []byte("\n"))
	var s spec
	if err := json.Unmarshal(text, &s); err != nil {
		return a, fmt.Errorf("read the sandbox %s: %s: %w", environment, run, err)
	}
	a.bubblewrap = s.Bubblewrap
	a.tree = after(s.Flags, "/nix", -1)
	// Behind the environment's programs may be a folder of the sandbox alone.
	a.path, _, _ = strings.Cut(after(s.Flags, "PATH", 1), ":")
	if a.bubblewrap == "" || a.tree == "" || a.path == "" {
		return a, fmt.Errorf("read the sandbox %s: %s names no bubblewrap, no folder for /nix or no PATH", environment, run)
	}
	// Without sandbox the interpreter is the same file at its own place.
	a.interpreter = filepath.Join(a.path, programs[language])
	if _, err := exec.LookPath(a.interpreter); err != nil {
		return a, fmt.Errorf("the interpreter of the sandbox %s, to compare with, is not in this machine's store: %w", environment, err)
	}
	return a, nil
}

// after returns the word at a distance from the first that equals word.
func after(words []string, word string, distance int) string {
	i := slices.Index(words, word)
	if i < 0 || i+distance < 0 || i+distance >= len(words) {
		return ""
	}
	return words[i+distance]
}

// minimal is the least that bubblewrap needs to run a program of the
// artifact with nothing else in sight.
func (a artifact) minimal() []string {
	return []string{
		a.bubblewrap, "--unshare-all", "--die-with-parent", "--clearenv",
		"--setenv", "PATH", a.path, "--setenv", "LANG", "C.UTF-8",
		"--ro-bind", a.tree, "/nix", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp",
	}
}
