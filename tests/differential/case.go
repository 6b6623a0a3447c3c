package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/tools/txtar"
)

// A testCase is a program, or the cells of a notebook or session.
type testCase struct {
	name     string
	language string // the interpreter's type
	ext      string
	calls    []string
	session  bool
	folder   string // below the stage, with main.EXT or cells.json, and files
	hasFiles bool
}

var languages = map[string]string{
	".py": "python", ".ipynb": "python", ".js": "node", ".mjs": "node", ".cjs": "node", ".ts": "node", ".sh": "bash",
}

// load finds the cases below paths and copies them to the stage, a folder for each.
func load(paths []string, stage string) ([]testCase, error) {
	l := loader{stage: stage}
	for _, path := range paths {
		if err := l.walk(path); err != nil {
			return nil, err
		}
	}
	if len(l.cases) == 0 {
		return nil, errors.New("there are no cases")
	}
	return l.cases, os.WriteFile(filepath.Join(stage, "cells.py"), []byte(cellsProgram), 0o644)
}

type loader struct {
	stage string
	cases []testCase
}

func (l *loader) walk(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		return l.file(path)
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return err
	}
	if calls := callsOf(entries); len(calls) > 0 {
		return l.add(path, path, calls)
	}
	for _, entry := range entries {
		if err := l.walk(filepath.Join(path, entry.Name())); err != nil {
			return err
		}
	}
	return nil
}

func (l *loader) file(path string) error {
	if filepath.Ext(path) == ".txtar" {
		return l.archive(path)
	}
	if languages[filepath.Ext(path)] == "" {
		return nil
	}
	return l.add(path, filepath.Dir(path), []string{filepath.Base(path)})
}

// archive unpacks an archive of cases.
func (l *loader) archive(path string) error {
	archive, err := txtar.ParseFile(path)
	if err != nil {
		return err
	}
	folder, err := os.MkdirTemp(l.stage, "archive-")
	if err != nil {
		return err
	}
	root := filepath.Join(folder, strings.TrimSuffix(filepath.Base(path), ".txtar"))
	for _, f := range archive.Files {
		if !filepath.IsLocal(f.Name) {
			return fmt.Errorf("%s: the file %q is outside of it", path, f.Name)
		}
		name := filepath.Join(root, f.Name)
		if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(name, f.Data, 0o644); err != nil {
			return err
		}
	}
	return l.walk(root)
}

var callName = regexp.MustCompile(`^(code|notebook|[0-9]+)(\.\w+)$`)

// callsOf returns the names of the files that make a folder one case, in their order.
func callsOf(entries []fs.DirEntry) []string {
	var calls []string
	for _, entry := range entries {
		if groups := callName.FindStringSubmatch(entry.Name()); groups != nil && languages[groups[2]] != "" {
			calls = append(calls, entry.Name())
		}
	}
	number := func(name string) int {
		n, _ := strconv.Atoi(strings.TrimSuffix(name, filepath.Ext(name)))
		return n
	}
	slices.SortFunc(calls, func(a, b string) int { return number(a) - number(b) })
	return calls
}

func (l *loader) add(name, source string, files []string) error {
	ext := filepath.Ext(files[0])
	c := testCase{name: name, language: languages[ext], ext: ext, session: len(files) > 1 || ext == ".ipynb"}
	for _, file := range files {
		text, err := os.ReadFile(filepath.Join(source, file))
		if err != nil {
			return err
		}
		if ext != ".ipynb" {
			c.calls = append(c.calls, string(text))
			continue
		}
		if c.calls, err = cellsOf(text); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if len(c.calls) > 0 {
			c.calls = slices.Insert(c.calls, 0, seeded)
		}
	}
	if len(c.calls) == 0 {
		return nil // a notebook without code
	}
	c.folder = strconv.Itoa(len(l.cases))
	folder := filepath.Join(l.stage, c.folder)
	if err := os.MkdirAll(filepath.Join(folder, "files"), 0o755); err != nil {
		return err
	}
	if name == source { // a folder: the other files belong to it
		c.hasFiles = true
		if err := os.CopyFS(filepath.Join(folder, "files"), without{os.DirFS(source), files}); err != nil {
			return err
		}
	}
	if c.session {
		c.hasFiles = true
		cells, err := json.Marshal(c.calls)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(folder, "cells.json"), cells, 0o644); err != nil {
			return err
		}
	}
	program := filepath.Join(folder, c.program())
	l.cases = append(l.cases, c)
	return os.WriteFile(program, []byte(strings.Join(c.calls, "\n")), 0o644)
}

var module = regexp.MustCompile(`(?m)^(?:import\b[^(.]|export\b)|^[^\n/]*\bawait `)

// program is the name of the file that the bare interpreter runs.
func (c testCase) program() string {
	if c.ext == ".js" && !strings.Contains(c.calls[0], "require(") && module.MatchString(c.calls[0]) {
		return "main.mjs"
	}
	return "main" + strings.Replace(c.ext, ".ipynb", ".py", 1)
}

// without is a folder without some of its files.
type without struct {
	fs.FS
	names []string
}

func (w without) ReadDir(name string) ([]fs.DirEntry, error) {
	entries, err := fs.ReadDir(w.FS, name)
	return slices.DeleteFunc(entries, func(e fs.DirEntry) bool { return name == "." && slices.Contains(w.names, e.Name()) }), err
}

// seeded has the random numbers of a notebook be the same on both sides.
const seeded = `import random
random.seed(1)
try:
    import numpy
    numpy.random.seed(1)
except ImportError:
    pass
`

// cellsOf returns the code of a notebook's cells, in the formats 3 and 4.
func cellsOf(text []byte) ([]string, error) {
	type cell struct {
		Kind   string          `json:"cell_type"`
		Source json.RawMessage `json:"source"`
		Input  json.RawMessage `json:"input"`
	}
	var notebook struct {
		Cells      []cell
		Worksheets []struct{ Cells []cell }
	}
	if err := json.Unmarshal(text, &notebook); err != nil {
		return nil, err
	}
	for _, sheet := range notebook.Worksheets {
		notebook.Cells = append(notebook.Cells, sheet.Cells...)
	}
	var cells []string
	for _, c := range notebook.Cells {
		source := c.Source
		if source == nil {
			source = c.Input
		}
		var lines []string
		if json.Unmarshal(source, &lines) != nil {
			lines = make([]string, 1)
			_ = json.Unmarshal(source, &lines[0])
		}
		if code := strings.Join(lines, ""); c.Kind == "code" && strings.TrimSpace(code) != "" {
			cells = append(cells, code)
		}
	}
	return cells, nil
}
