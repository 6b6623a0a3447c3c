package main

import (
	"fmt"
	"strings"
	"time"
)

// printed is how many lines a loop prints.
const printed = 50_000

// loopsThatPrint are in the languages that have sessions.
var loopsThatPrint = map[string]string{
	"python": "for i in range(%d): print(i)",
	"bash":   "for ((i = 0; i < %d; i++)); do echo $i; done",
	"node":   "for (let i = 0; i < %d; i++) console.log(i)",
}

// printing is the group of a loop that prints, in a session beside the same loop into a pipe.
func (b *bench) printing(language string) group {
	a := b.found[language]
	var lines strings.Builder
	for i := range printed {
		fmt.Fprintln(&lines, i)
	}
	code, want := fmt.Sprintf(loopsThatPrint[language], printed), strings.TrimSpace(lines.String())
	return group{
		name: "printing-" + language, base: plainName, rounds: 40, budget: 5 * time.Second,
		title: fmt.Sprintf("%s: a loop that prints %d lines", language, printed),
		list: []entry{
			{contender: b.plain(a, workload{code: code, want: want})},
			// An answer has the first lines and the last ones.
			{contender: b.call(a, "run in a session", b.cold, "bench", code, want[:1000])},
		},
	}
}
