package main

import (
	"path/filepath"
	"time"
)

// kept are the groups of calls in sessions whose files are kept, each beside the same
// call in a session whose files are not.
func (b *bench) kept() []group {
	const (
		many   = "import os\nfor i in range(10000):\n    os.makedirs(f'd{i % 100}', exist_ok=True)\n    print(i, file=open(f'd{i % 100}/{i}', 'w'))"
		change = "n = globals().get('n', 0) + 1\nfor i in range(10):\n    with open(f'd{i}/{i}', 'w') as f: f.write(str(n) * 500)\nprint(2)"
	)
	const some = "for i in range(10): print(i, file=open(f'f{i}', 'w'))"
	return []group{
		b.keptBeside("kept-1", "calls that change nothing, no files", "", "print(1+1)", 10),
		b.keptBeside("kept-2", "calls that change nothing, 10 files", some, "print(1+1)", 10),
		b.keptBeside("kept-3", "calls that change nothing, 10,000 files", many, "print(1+1)", 10),
		b.keptBeside("kept-4", "the same with a pause after each", many, "print(1+1)", 1),
		b.keptBeside("kept-5", "calls that change 10 of 10,000 files", many, change, 10),
		b.keptBeside("kept-6", "the same with a pause after each", many, change, 1),
	}
}

func (b *bench) keptBeside(name, title, first, code string, batch int) group {
	const base = "files end with the session"
	a := b.found["python"]
	g := group{name: name, title: "python in a session: " + title, base: base, rounds: 300, budget: 10 * time.Second}
	add := func(name, state string) {
		c := b.call(a, name, b.cold, "bench", code, "2")
		// A pause is as long as the server works after an answer.
		c.first, c.works = first, batch == 1
		if state != "" {
			c.launch.env = append([]string{"SESSION_KEEP_FILES=1", "XDG_STATE_HOME=" + filepath.Join(b.temp, state)}, b.env...)
		}
		g.list = append(g.list, entry{contender: c, batch: batch})
	}
	add(base, "")
	add("files are kept", name)
	return g
}
