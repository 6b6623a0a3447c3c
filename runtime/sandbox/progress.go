package sandbox

import "sync"

// Progress is what is known about a call before its result: the newest line about it, and the output
// of its code so far. Whoever wants to know asks, and until then it costs nothing. Its methods may be
// called at the same time; on nil they do nothing.
type Progress struct {
	mu     sync.Mutex
	line   string
	output OutputFunc // nil until the code runs
}

// OutputFunc returns the ends of the output of running code, at most limit bytes of each stream, and
// the newest line of both, which may be "". The line can be newer than the ends.
type OutputFunc func(limit int) (stdout, stderr Text, line string)

// Say sets what the call waits for; "" is nothing.
func (p *Progress) Say(line string) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.line = line
}

// Follow says that the code runs, and where its output is found.
func (p *Progress) Follow(output OutputFunc) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.line, p.output = "", output
}

// Waits returns what the call waits for, or "" while its code runs.
func (p *Progress) Waits() string {
	if p == nil {
		return ""
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.line == "" && p.output == nil {
		return "a sandbox, or the calls before it"
	}
	return p.line
}

// Now returns the ends of the output so far, at most limit bytes of each stream, and the newest line:
// what the call waits for, or the output's.
func (p *Progress) Now(limit int) (stdout, stderr Text, line string) {
	if p == nil {
		return
	}
	p.mu.Lock()
	said, output := p.line, p.output
	p.mu.Unlock()
	if output != nil {
		stdout, stderr, line = output(limit)
	}
	if said != "" {
		line = said
	}
	return stdout, stderr, line
}
