// Command nix adds packages to the sandbox in which it runs. It takes the command lines that people write for Nix's
// programs, asks the server for their packages over the agent's socket (package agent/asking), and does the rest
// itself: it is no Nix, and reaches neither a daemon nor a network.
//
//	nix shell INSTALLABLE... [-c COMMAND ARG...]      nix-shell -p NAME... [--run COMMAND]
//	nix run INSTALLABLE [-- ARG...]
//	nix build INSTALLABLE... [-o LINK]                nix-build '<nixpkgs>' -A NAME
//	nix develop [FOLDER] [-c COMMAND ARG...]
//	nix profile add|remove|list INSTALLABLE...        nix-env -iA nixpkgs.NAME
//	nix search nixpkgs WORD...
//	nix eval [--raw] nixpkgs#NAME.version
//
// It goes by the name that it is started by. Its exit status is that of the command, or 1.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/question"
)

// version is set when the program is linked.
var version = "unknown"

const (
	// profile is a folder with a bin on the PATH of the sandbox. It lasts as long as the packages do.
	profile = "/tmp/.nix-profile"
	// works names the commands that a refusal leads to.
	works = "use nix shell nixpkgs#NAME -c COMMAND, nix run nixpkgs#NAME, nix search nixpkgs WORD or nix eval nixpkgs#NAME.version"
)

func main() {
	if err := run(filepath.Base(os.Args[0]), os.Args[1:]); err != nil {
		var status *exec.ExitError
		if errors.As(err, &status) {
			os.Exit(status.ExitCode())
		}
		fmt.Fprintf(os.Stderr, "%s: %v\n", filepath.Base(os.Args[0]), err)
		os.Exit(1)
	}
}

func run(program string, args []string) error {
	switch program {
	case "nix-shell":
		return nixShell(args)
	case "nix-build":
		return nixBuild(args)
	case "nix-env":
		return nixEnv(args)
	}
	c, err := parse(args, globalFlags, firstWord)
	if err != nil {
		return err
	}
	switch {
	case c.has("--version"):
		fmt.Printf("nix (nix-sandbox-mcp) %s\n", version)
		return nil
	case len(c.after) == 0 || c.has("--help") || c.has("-h"):
		fmt.Println("This is no Nix, but adds packages to the sandbox: " + works + ".")
		return nil
	}
	name, rest := c.after[0], c.after[1:]
	if len(rest) > 0 && (name == "profile" || name == "flake" || name == "store") {
		name, rest = name+" "+rest[0], rest[1:]
	}
	do, known := commands[name]
	if !known {
		return fmt.Errorf("nix %s does not work in this sandbox: %s", name, works)
	}
	return do(rest)
}

var commands = map[string]func([]string) error{
	"shell": shell, "run": runProgram, "build": build, "develop": develop, "search": search, "eval": eval,
	"profile add": install, "profile install": install, "profile list": list, "profile remove": remove,
}

// flags are the flags of a command and the number of their values. One with a reason is refused.
type flags map[string]flag

type flag struct {
	values int
	refuse string
}

const expression = "an expression is not evaluated here: name packages, as in nix shell nixpkgs#jq nixpkgs#ripgrep -c COMMAND; modules of Python come with env, as in run(env: \"python+numpy\")"

// globalFlags are those of every command. Most of them have no effect here.
var globalFlags = flags{
	"--extra-experimental-features": {values: 1}, "--experimental-features": {values: 1}, "--log-format": {values: 1},
	"--max-jobs": {values: 1}, "-j": {values: 1}, "--cores": {values: 1}, "--impure": {}, "--pure-eval": {}, "--refresh": {}, "--offline": {},
	"--print-build-logs": {}, "-L": {}, "--verbose": {}, "-v": {}, "-vv": {}, "--quiet": {}, "--show-trace": {}, "--debug": {},
	"--keep-going": {}, "-k": {}, "--no-update-lock-file": {}, "--no-write-lock-file": {}, "--accept-flake-config": {}, "--no-warn-dirty": {},
	"--version": {}, "--help": {}, "-h": {}, "--no-link": {}, "--print-out-paths": {}, "--json": {}, "--raw": {}, "--priority": {values: 1}, "--profile": {values: 1},
	"--option":         {values: 2, refuse: "settings of Nix are the user's: leave --option out"},
	"--override-input": {values: 2, refuse: "there is one package set here: leave --override-input out"},
	"--inputs-from":    {values: 1, refuse: "there is one package set here: leave --inputs-from out"},
	"--store":          {values: 1, refuse: "there is one store here: leave --store out"},
	"--eval-store":     {values: 1, refuse: "there is one store here: leave --eval-store out"},
	"--expr":           {values: 1, refuse: expression}, "-E": {values: 1, refuse: expression},
	"--file": {values: 1, refuse: expression}, "-f": {values: 1, refuse: expression}, "--apply": {values: 1, refuse: expression},
	"--arg": {values: 2, refuse: expression}, "--argstr": {values: 2, refuse: expression}, "-I": {values: 1, refuse: expression}, "--include": {values: 1, refuse: expression},
}

// with returns the flags and others.
func (f flags) with(others flags) flags {
	all := maps.Clone(f)
	maps.Copy(all, others)
	return all
}

// line is a command line.
type line struct {
	words  []string            // that are no flags
	values map[string][]string // of flags
	// after are the arguments behind --, or behind a flag after which a command follows.
	after []string
}

func (l *line) has(name string) bool {
	_, has := l.values[name]
	return has
}

// firstWord among the flags of parse ends its work at the first word, with which after begins then.
const firstWord = ""

// parse reads a command line. After one of the flags in until, the rest is a command.
func parse(args []string, known flags, until ...string) (*line, error) {
	l := &line{values: map[string][]string{}}
	for i := 0; i < len(args); i++ {
		arg := args[i]
		if arg == "--" || slices.Contains(until, arg) {
			l.after = args[i+1:]
			return l, nil
		}
		if !strings.HasPrefix(arg, "-") || arg == "-" {
			if slices.Contains(until, firstWord) {
				l.after = args[i:]
				return l, nil
			}
			l.words = append(l.words, arg)
			continue
		}
		name, value, joined := strings.Cut(arg, "=")
		one, is := known[name]
		switch {
		case !is:
			return nil, fmt.Errorf("flag %s is not known here: leave it out, or %s", arg, works)
		case one.refuse != "":
			return nil, errors.New(one.refuse)
		}
		values := []string{}
		if joined {
			values = append(values, value)
		}
		for len(values) < one.values {
			if i++; i == len(args) {
				return nil, fmt.Errorf("flag %s has no value", arg)
			}
			values = append(values, args[i])
		}
		l.values[name] = append(l.values[name], values...)
	}
	return l, nil
}

// name returns the name of a package that an installable stands for, as the server knows it.
func name(installable string) (string, error) {
	plain := strings.NewReplacer(`"`, "", "'", "").Replace(installable)
	flake, attribute, found := strings.Cut(strings.TrimPrefix(plain, "flake:"), "#")
	attribute, outputs, _ := strings.Cut(attribute, "^")
	for _, prefix := range []string{"legacyPackages.", "packages."} {
		if rest, is := strings.CutPrefix(attribute, prefix); is {
			_, attribute, _ = strings.Cut(rest, ".")
		}
	}
	if outputs != "" && outputs != "*" {
		attribute += "." + strings.Split(outputs, ",")[0]
	}
	lower := strings.ToLower(flake)
	switch {
	case flake == "nixpkgs" && attribute != "":
		return attribute, nil
	case flake == "nixpkgs":
		return "", errors.New("nixpkgs alone is no package: name one, as in nixpkgs#hello")
	case strings.HasPrefix(lower, "nixpkgs/") || strings.HasPrefix(lower, "github:nixos/nixpkgs") || strings.HasPrefix(lower, "nixos"):
		return "", fmt.Errorf("there is one version of nixpkgs here: use nixpkgs#%s", or(attribute, "NAME"))
	case !found && !strings.Contains(flake, ":"):
		return "", fmt.Errorf("%s is the name of a flake: did you mean nixpkgs#%s?", installable, flake)
	}
	return "", fmt.Errorf("flake %s is not allowed here: packages come from nixpkgs, as in nixpkgs#jq", flake)
}

func or(text, otherwise string) string {
	if text == "" {
		return otherwise
	}
	return text
}

// store begins the path of a package.
const store = "/nix/store/"

// add returns the packages of installables, which are in the sandbox then. Of a flake of files, it is built what is
// wanted.
func add(installables []string, want string) ([]question.Added, error) {
	var names []string
	var all []question.Added
	for _, one := range installables {
		if strings.HasPrefix(one, store) {
			if _, err := os.Stat(one); err != nil {
				return nil, fmt.Errorf("%s is not in this sandbox: name its package, as in nixpkgs#jq", one)
			}
			all = append(all, question.Added{Name: one, Paths: []string{one}})
			continue
		}
		if folder, attribute, is := local(one); is {
			packages, err := ofFlake(folder, attribute, want)
			if err != nil {
				return nil, err
			}
			all = append(all, packages...)
			continue
		}
		name, err := name(one)
		if err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	if len(names) > 0 {
		var answer struct {
			Packages []question.Added `json:"packages"`
		}
		if err := ask(question.Question{Add: names}, &answer); err != nil {
			return nil, err
		}
		all = append(all, answer.Packages...)
	}
	return all, nil
}

// find puts the programs of packages before those of the PATH.
func find(packages []question.Added) {
	var folders []string
	for _, one := range packages {
		for _, path := range one.Paths {
			if info, err := os.Stat(path + "/bin"); err == nil && info.IsDir() {
				folders = append(folders, path+"/bin")
			}
		}
	}
	os.Setenv("PATH", strings.Join(append(folders, os.Getenv("PATH")), ":"))
}

// start becomes a command, or a shell without one.
func start(command []string) error {
	if len(command) == 0 {
		command = []string{"bash"}
	}
	path, err := exec.LookPath(command[0])
	if err != nil {
		return fmt.Errorf("%s: no such program: add the package that has it", command[0])
	}
	return fmt.Errorf("%s: %w", command[0], syscall.Exec(path, command, os.Environ()))
}

func shell(args []string) error {
	l, err := parse(args, globalFlags.with(flags{"--ignore-environment": {}, "-i": {}, "--keep": {values: 1}, "--unset": {values: 1}}), "-c", "--command")
	if err != nil {
		return err
	}
	if len(l.words) == 0 {
		return errors.New("no package is named: use nix shell nixpkgs#NAME -c COMMAND")
	}
	packages, err := add(l.words, "build")
	if err != nil {
		return err
	}
	find(packages)
	return start(l.after)
}

func runProgram(args []string) error {
	l, err := parse(args, globalFlags)
	if err != nil {
		return err
	}
	if len(l.words) == 0 {
		l.words = []string{"."}
	}
	packages, err := add(l.words[:1], "run")
	if err != nil {
		return err
	}
	find(packages)
	var has []string
	if program := packages[0].Program; strings.HasPrefix(program, store) { // of an app
		return start(append(append([]string{program}, l.words[1:]...), l.after...))
	}
	for _, path := range packages[0].Paths {
		entries, _ := os.ReadDir(path + "/bin")
		for _, entry := range entries {
			if entry.Name() == packages[0].Program {
				program := filepath.Join(path, "bin", entry.Name())
				// Without --, the words after the installable are the program's too.
				return start(append(append([]string{program}, l.words[1:]...), l.after...))
			}
			has = append(has, entry.Name())
		}
	}
	if len(has) == 0 {
		return fmt.Errorf("%s has no programs: name another package", l.words[0])
	}
	return fmt.Errorf("%s has no program %s: use nix shell %s -c %s", l.words[0], packages[0].Program, l.words[0], strings.Join(has[:min(8, len(has))], " or "))
}

func build(args []string) error {
	l, err := parse(args, globalFlags.with(flags{"--out-link": {values: 1}, "-o": {values: 1}, "--dry-run": {}, "--rebuild": {}}))
	if err != nil {
		return err
	}
	if len(l.words) == 0 {
		l.words = []string{"."}
	}
	return makeLinks(l, l.words)
}

// makeLinks adds packages, and makes links to them as nix build does.
func makeLinks(l *line, installables []string) error {
	packages, err := add(installables, "build")
	if err != nil {
		return err
	}
	link := "result"
	for _, name := range []string{"--out-link", "-o"} {
		if values := l.values[name]; len(values) > 0 {
			link = values[0]
		}
	}
	type built struct {
		Outputs map[string]string `json:"outputs"`
	}
	var all []built
	for i, one := range packages {
		if len(one.Paths) == 0 {
			continue
		}
		at := link
		if i > 0 {
			at = fmt.Sprintf("%s-%d", link, i)
		}
		if !l.has("--no-link") && !l.has("--no-out-link") {
			if err := replace(one.Paths[0], at); err != nil {
				return err
			}
		}
		if l.has("--print-out-paths") {
			fmt.Println(strings.Join(one.Paths, "\n"))
		}
		all = append(all, built{map[string]string{"out": one.Paths[0]}})
	}
	if l.has("--json") {
		return json.NewEncoder(os.Stdout).Encode(all)
	}
	return nil
}

// replace makes a link, in place of another one.
func replace(target, link string) error {
	if info, err := os.Lstat(link); err == nil {
		if info.Mode()&fs.ModeSymlink == 0 {
			return fmt.Errorf("%s is there already and is no link: use -o NAME", link)
		}
		if err := os.Remove(link); err != nil {
			return err
		}
	}
	return os.Symlink(target, link)
}

func install(args []string) error {
	l, err := parse(args, globalFlags)
	if err != nil {
		return err
	}
	if len(l.words) == 0 {
		return errors.New("no package is named: use nix profile add nixpkgs#NAME")
	}
	packages, err := add(l.words, "build")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(profile+"/bin", 0o755); err != nil {
		return err
	}
	for _, one := range packages {
		for _, path := range one.Paths {
			entries, _ := os.ReadDir(path + "/bin")
			for _, entry := range entries {
				if err := replace(filepath.Join(path, "bin", entry.Name()), filepath.Join(profile, "bin", entry.Name())); err != nil {
					return err
				}
			}
		}
	}
	text, err := json.Marshal(append(slices.DeleteFunc(installed(), func(old question.Added) bool {
		return slices.ContainsFunc(packages, func(one question.Added) bool { return one.Name == old.Name })
	}), packages...))
	if err != nil {
		return err
	}
	return os.WriteFile(profile+"/manifest.json", text, 0o644)
}

// installed are the packages of the profile.
func installed() (all []question.Added) {
	text, err := os.ReadFile(profile + "/manifest.json")
	if err != nil || json.Unmarshal(text, &all) != nil {
		return nil
	}
	return all
}

func list([]string) error {
	for _, one := range installed() {
		fmt.Printf("Name:               %s\nStore paths:        %s\n\n", one.Name, strings.Join(one.Paths, " "))
	}
	return nil
}

func remove(args []string) error {
	l, err := parse(args, globalFlags)
	if err != nil {
		return err
	}
	left := installed()
	for _, word := range l.words {
		if _, attribute, found := strings.Cut(word, "#"); found {
			word = attribute
		}
		at := slices.IndexFunc(left, func(one question.Added) bool { return one.Name == word })
		if at < 0 {
			return fmt.Errorf("the profile has no %s: see nix profile list", word)
		}
		for _, path := range left[at].Paths {
			entries, _ := os.ReadDir(path + "/bin")
			for _, entry := range entries {
				link := filepath.Join(profile, "bin", entry.Name())
				if to, _ := os.Readlink(link); to == filepath.Join(path, "bin", entry.Name()) {
					_ = os.Remove(link)
				}
			}
		}
		left = slices.Delete(left, at, at+1)
	}
	text, err := json.Marshal(left)
	if err != nil {
		return err
	}
	return os.WriteFile(profile+"/manifest.json", text, 0o644)
}
