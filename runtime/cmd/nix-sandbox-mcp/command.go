package main

import (
	"flag"
	"fmt"
	"io"
	"strings"
)

// command is a word that may follow the program's name.
type command struct {
	name string
	// args are the words that follow it, in the usage.
	args string
	// first are the words that the first of them may be, for completions:
	// separated by spaces, or [environments].
	first string
	// summary is one line for the list of commands, lower case.
	summary string
	// details are the rest of its help: whole lines, or empty.
	details string
	// define declares its options and returns what it does.
	define func(*flag.FlagSet) runner
}

// runner does a command's work with the words that are no options. It returns
// the exit status, or the error that [fail] tells.
type runner func(streams streams, args []string) (int, error)

// words is how the command is called.
func (c command) words() string {
	return strings.TrimSpace(program + " " + c.name)
}

// flags returns the command's options, and what it does once they are parsed.
func (c command) flags() (*flag.FlagSet, runner) {
	flags := flag.NewFlagSet(c.name, flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	if c.define == nil {
		return flags, nil
	}
	return flags, c.define(flags)
}

// parse reads options wherever they stand and returns the other words. All
// words after -- are others.
func parse(flags *flag.FlagSet, args []string) (words []string, err error) {
	for {
		if err := flags.Parse(args); err != nil {
			return nil, explain(err)
		}
		rest := flags.Args()
		read := len(args) - len(rest)
		if len(rest) == 0 || read > 0 && args[read-1] == "--" {
			return append(words, rest...), nil
		}
		words, args = append(words, rest[0]), rest[1:]
	}
}

// explain words what package flag says of a wrong option.
func explain(err error) error {
	if name, ok := strings.CutPrefix(err.Error(), "flag provided but not defined: -"); ok {
		return fmt.Errorf("unknown option %s", spell(strings.TrimPrefix(name, "-")))
	}
	if name, ok := strings.CutPrefix(err.Error(), "flag needs an argument: -"); ok {
		return fmt.Errorf("%s needs a value", spell(name))
	}
	return err
}

// spell writes an option as people do.
func spell(name string) string {
	if len(name) == 1 {
		return "-" + name
	}
	return "--" + name
}
