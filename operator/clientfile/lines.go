package clientfile

import "strings"

// mergeLines adds to a file of TOML or YAML, a line for each setting of a server. The text begins
// with lines that name the server's table: one in TOML, two in YAML. If the file has the server,
// the lines that differ are replaced.
func (f Format) mergeLines(file []byte, add string, differs func(key string) bool, has bool) []byte {
	text := string(file)
	if text != "" && !strings.HasSuffix(text, "\n") {
		text += "\n"
	}
	lines, own := strings.SplitAfter(text, "\n"), strings.SplitAfter(add, "\n")
	head, separator := own[:1], "="
	if f == YAML {
		head, separator = own[:2], ":"
	}
	key := func(line string) string {
		name, _, _ := strings.Cut(line, separator)
		return strings.TrimRight(name, " ")
	}
	insert := func(at int, new ...string) string {
		return strings.Join(lines[:at], "") + strings.Join(new, "") + strings.Join(lines[at:], "")
	}
	if !has {
		if at := after(lines, head[:1]); f == YAML && at > 0 {
			return []byte(insert(at, own[1:]...))
		}
		if text != "" && f == TOML {
			text += "\n"
		}
		return []byte(text + add)
	}
	begin := after(lines, head)
	for _, line := range own[len(head):] {
		if begin == 0 || line == "" || !differs(strings.TrimSpace(key(line))) {
			continue
		}
		replaced := false
		for at := begin; at < len(lines) && !f.begins(lines[at], line); at++ {
			if key(lines[at]) == key(line) {
				lines[at], replaced = line, true
				break
			}
		}
		if !replaced {
			lines = strings.SplitAfter(insert(begin, line), "\n")
		}
	}
	return []byte(strings.Join(lines, ""))
}

// after returns the index of the line after those of a table's head, or 0 if they are missing.
func after(lines, head []string) (at int) {
	for _, want := range head {
		for at < len(lines) && strings.TrimRight(lines[at], " \r\n") != strings.TrimRight(want, "\n") {
			at++
		}
		if at == len(lines) {
			return 0
		}
		at++
	}
	return at
}

// begins reports whether a line begins another table than the one of a line of it.
func (f Format) begins(line, of string) bool {
	if f == TOML {
		return strings.HasPrefix(strings.TrimSpace(line), "[")
	}
	indent := len(of) - len(strings.TrimLeft(of, " "))
	return strings.TrimSpace(line) != "" && len(line)-len(strings.TrimLeft(line, " ")) < indent
}
