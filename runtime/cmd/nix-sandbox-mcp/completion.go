package main

import (
	"flag"
	"fmt"
	"io"
	"strings"
)

// environments stands for the names of the environments in command.first.
const environments = "ENV"

// shellNames are the shells whose completion is known.
const shellNames = "bash zsh fish"

func completionCommand() command {
	return command{
		name:    "completion",
		args:    "bash|zsh|fish",
		first:   shellNames,
		summary: "print a shell's completion of this command line",
		details: `For one session:
  bash:  source <(nix-sandbox-mcp completion bash)
  zsh:   source <(nix-sandbox-mcp completion zsh)
  fish:  nix-sandbox-mcp completion fish | source
The package that Nix builds has them where shells look for them.
`,
		define: func(*flag.FlagSet) runner {
			return func(streams streams, args []string) (int, error) {
				writers := map[string]func(io.Writer){"bash": completeBash, "zsh": completeZsh, "fish": completeFish}
				if len(args) != 1 || writers[args[0]] == nil {
					return 0, &misuse{"name one shell", "write one of " + strings.ReplaceAll(shellNames, " ", ", ")}
				}
				writers[args[0]](streams.out)
				return 0, nil
			}
		},
	}
}

// option is one of a command, as a completion shows it.
type option struct {
	name  string // with its hyphens
	value string // what follows it; empty where nothing does
	about string
}

// options are a command's.
func (c command) options() []option {
	var list []option
	flags, _ := c.flags()
	flags.VisitAll(func(f *flag.Flag) {
		value, about := flag.UnquoteUsage(f)
		list = append(list, option{spell(f.Name), value, about})
	})
	return append(list, option{"--help", "", "print the help"})
}

// optionNames are the names alone.
func (c command) optionNames() string {
	var names []string
	for _, o := range c.options() {
		names = append(names, o.name)
	}
	return strings.Join(names, " ")
}

// valued are the options, of all commands, that a value of this kind follows.
func valued(folder bool) string {
	seen := map[string]bool{}
	var names []string
	for _, c := range append(commands(), server()) {
		for _, o := range c.options() {
			if o.value != "" && (o.value == "DIR") == folder && !seen[o.name] {
				seen[o.name] = true
				names = append(names, o.name)
			}
		}
	}
	return strings.Join(names, "|")
}

func commandNames() string {
	var names []string
	for _, c := range commands() {
		names = append(names, c.name)
	}
	return strings.Join(names, " ")
}

func completeBash(w io.Writer) {
	fmt.Fprintf(w, `# bash completion of %[1]s
_nix_sandbox_mcp() {
  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} options= first= i place=0
  COMPREPLY=()
  case $before in
    %[2]s)
      compopt -o filenames 2>/dev/null
      mapfile -t COMPREPLY < <(compgen -d -- "$word")
      return
      ;;
    %[3]s) return ;;
  esac
  if [ "$COMP_CWORD" = 1 ]; then
    mapfile -t COMPREPLY < <(compgen -W '%[4]s %[5]s' -- "$word")
    return
  fi
  # Which of the words that are no options this one is.
  for ((i = 2; i < COMP_CWORD; i++)); do
    case ${COMP_WORDS[i]} in
      %[2]s | %[3]s) i=$((i + 1)) ;;
      -?*) ;;
      *) place=$((place + 1)) ;;
    esac
  done
  case ${COMP_WORDS[1]} in
`, program, valued(true), valued(false), commandNames(), server().optionNames())
	for _, c := range commands() {
		first := c.first
		if first == environments {
			first = `$("${COMP_WORDS[0]}" list --names 2>/dev/null)`
		}
		fmt.Fprintf(w, "    %s)\n      options='%s'\n      [ $place != 0 ] || first=\"%s\"\n      ;;\n", c.name, c.optionNames(), first)
	}
	fmt.Fprint(w, `  esac
  if [[ $word == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$options" -- "$word")
  elif [ $place = 0 ]; then
    mapfile -t COMPREPLY < <(compgen -W "$first" -- "$word")
  else
    compopt -o filenames 2>/dev/null
    mapfile -t COMPREPLY < <(compgen -f -- "$word")
  fi
}
complete -F _nix_sandbox_mcp `+program+"\n")
}

// quoted writes a word for a shell.
func quoted(word string) string { return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'" }

func completeZsh(w io.Writer) {
	described := func(name, about string) string {
		return quoted(strings.ReplaceAll(name, ":", `\:`) + ":" + about)
	}
	fmt.Fprintf(w, `#compdef %[1]s
_nix_sandbox_mcp() {
  local -a commands options first
  local i place=0
  case $words[CURRENT-1] in
    (%[2]s) _files -/; return ;;
    (%[3]s) return 1 ;;
  esac
  if ((CURRENT == 2)); then
    commands=(
`, program, valued(true), valued(false))
	for _, c := range commands() {
		fmt.Fprintf(w, "      %s\n", described(c.name, c.summary))
	}
	fmt.Fprint(w, "    )\n    options=(\n")
	for _, o := range server().options() {
		fmt.Fprintf(w, "      %s\n", described(o.name, o.about))
	}
	fmt.Fprintf(w, `    )
    if [[ $PREFIX == -* ]]; then
      _describe option options
    else
      _describe command commands
    fi
    return
  fi
  for ((i = 3; i < CURRENT; i++)); do
    case $words[i] in
      (%[1]s|%[2]s) ((i++)) ;;
      (-?*) ;;
      (*) ((place++)) ;;
    esac
  done
  case $words[2] in
`, valued(true), valued(false))
	for _, c := range commands() {
		first := c.first
		if first == environments {
			first = `${(f)"$($words[1] list --names 2>/dev/null)"}`
		}
		fmt.Fprintf(w, "    (%s)\n      first=(%s)\n      options=(\n", c.name, first)
		for _, o := range c.options() {
			fmt.Fprintf(w, "        %s\n", described(o.name, o.about))
		}
		fmt.Fprint(w, "      )\n      ;;\n")
	}
	fmt.Fprint(w, `  esac
  if [[ $PREFIX == -* ]]; then
    _describe option options
  elif ((place == 0)); then
    compadd -a first
  else
    _files
  fi
}
if [[ $funcstack[1] == _nix-sandbox-mcp ]]; then
  _nix_sandbox_mcp "$@"
elif (($+functions[compdef])); then
  compdef _nix_sandbox_mcp `+program+`
fi
`)
}

func completeFish(w io.Writer) {
	fmt.Fprintf(w, "# fish completion of %[1]s\ncomplete -c %[1]s -f\n", program)
	line := func(condition string, o option) {
		dashes := "-l " + strings.TrimPrefix(o.name, "--")
		if !strings.HasPrefix(o.name, "--") {
			dashes = "-s " + strings.TrimPrefix(o.name, "-")
		}
		switch o.value {
		case "":
		case "DIR":
			dashes += " -x -a '(__fish_complete_directories)'"
		default:
			dashes += " -x"
		}
		fmt.Fprintf(w, "complete -c %s -n %s %s -d %s\n", program, condition, dashes, quoted(o.about))
	}
	for _, o := range server().options() {
		line("__fish_use_subcommand", o)
	}
	for _, c := range commands() {
		fmt.Fprintf(w, "complete -c %s -n __fish_use_subcommand -a %s -d %s\n", program, c.name, quoted(c.summary))
	}
	for _, c := range commands() {
		seen := quoted("__fish_seen_subcommand_from " + c.name)
		for _, o := range c.options() {
			line(seen, o)
		}
		first := c.first
		if first == environments {
			first = "(" + program + " list --names 2>/dev/null)"
		}
		// Whether the next word is the command's first.
		none := quoted("__fish_seen_subcommand_from " + c.name + "; and test (count (commandline -opc | string match -v -- '-*')) -eq 2")
		if first != "" {
			fmt.Fprintf(w, "complete -c %s -n %s -a %s\n", program, strings.ReplaceAll(none, "'\\''-*'\\''", `"-*"`), quoted(first))
		}
		if strings.Contains(c.args, "FILE") {
			fmt.Fprintf(w, "complete -c %s -n %s -F\n", program, seen)
		}
	}
}
