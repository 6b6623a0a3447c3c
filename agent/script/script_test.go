package script

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestClean(t *testing.T) {
	for name, test := range map[string]struct{ code, want string }{
		"code":                        {"a\n  b\n", "a\n  b\n"},
		"nothing":                     {"", ""},
		"a byte order mark":           {"\ufeffa", "a"},
		"carriage returns":            {"a\r\nb\r\n", "a\nb\n"},
		"one at the very end":         {"a\r\nb\r", "a\nb"},
		"a carriage return in a text": {"a\r\nb\nc", "a\r\nb\nc"},
		"a fence":                     {"```python\na\n```", "\na\n"},
		"a fence after blank lines":   {"\n\n  ```js\na\n```\n\n", "\n\n  \na\n"},
		"a fence without a name":      {"```\na\n```", "\na\n"},
		"a fence that is not closed":  {"```c++\na\nb", "\na\nb"},
		"a fence that is not opened":  {"a\nb\n```\n", "a\nb\n"},
		"a mark and a fence":          {"\ufeff```\r\na\r\n```\r\n", "\na\n"},
		"a fence and nothing":         {"```", ""},
		"a fence in a text":           {"cat <<EOF\n```\na\n```\nEOF", "cat <<EOF\n```\na\n```\nEOF"},
		"a text that ends with one":   {"cat <<EOF\n```\na\n```", "cat <<EOF\n```\na\n```"},
		"a fence in a fence":          {"```sh\ncat <<E\n```\nE\n```", "\ncat <<E\n```\nE\n"},
		"a command in backquotes":     {"```echo a` `", "```echo a` `"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := Clean(test.code); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func FuzzClean(f *testing.F) {
	for _, code := range []string{"```python\na\n```", "\ufeffa\r\n", "a\n```"} {
		f.Add(code)
	}
	f.Fuzz(func(t *testing.T, code string) {
		clean := Clean(code)
		// No line moves: what is left of the code is where it was.
		before, after := strings.Split(code, "\n"), strings.Split(clean, "\n")
		if len(after) > len(before) {
			t.Fatalf("%q has more lines than %q", clean, code)
		}
		for i, line := range after {
			was := strings.TrimSpace(strings.TrimPrefix(before[i], "\ufeff"))
			if got := strings.TrimSpace(line); got != "" && got != was {
				t.Errorf("line %d of %q became %q", i+1, code, line)
			}
		}
	})
}

func TestInterpreter(t *testing.T) {
	for code, want := range map[string][]string{
		"":                                   nil,
		"echo":                               nil,
		"#!":                                 nil,
		"# !/bin/sh":                         nil,
		"#!/bin/sh\necho":                    {"sh"},
		"#! /usr/bin/python3 -u\nprint()":    {"python3", "-u"},
		"#!/usr/bin/env node":                {"node"},
		"#!/usr/bin/env -S node --no-warn\n": {"node", "--no-warn"},
		"#!/usr/bin/env":                     nil,
		"#!/usr/bin/env -i sh":               nil,
		"#!/usr/bin/env A=b sh":              nil,
		"\n#!/bin/sh":                        nil,
	} {
		if diff := cmp.Diff(want, Interpreter(code)); diff != "" {
			t.Errorf("%q: %s", code, diff)
		}
	}
}
