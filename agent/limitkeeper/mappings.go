package limitkeeper

import (
	"os"
	"strconv"
	"time"
)

const (
	// mappingsTime bounds the processor time in which a scan counts mappings. The
	// next scan covers the remaining processes.
	mappingsTime = 50 * time.Millisecond
	// A process with more than manyMappings mappings counts as one with
	// allMappings, the default of vm.max_map_count, because mappings cost more to
	// count than to make. Interpreters have about 500.
	manyMappings = 4096
	allMappings  = 65_530
	// mappingCost is the size of a vm_area_struct, and linkCost that of an
	// anon_vma_chain, in bytes.
	mappingCost = 200
	linkCost    = 64
	// fewLinks is too little memory to tell the generations of processes apart.
	fewLinks = 16 << 20
	// mappingTime is the processor time that a process uses between two counts of
	// its mappings. A mapping takes a microsecond to make.
	mappingTime = 10 * time.Millisecond
)

type mappingsOf struct {
	time  int64 // its processor time when they were counted, in ns
	count int   // at most manyMappings + 1
}

// dueProcesses returns the processes that have not been counted, or may have made
// mappings since, and forgets processes that have ended.
func (k *kernelScanner) dueProcesses(found []process, self int) (due []process) {
	alive := make(map[int]mappingsOf, len(k.mappings))
	for _, p := range found {
		if p.pid == self {
			continue
		}
		m, known := k.mappings[p.pid]
		known = known && m.time <= p.time // otherwise the number was reused
		if !known {
			// A fork has all mappings of its parent. It is counted anyway, because
			// it may have started another program since.
			m, known = k.mappings[p.parent]
			m.time = -int64(mappingTime)
		}
		if known {
			alive[p.pid] = m
		}
		if !known || p.time-m.time >= int64(mappingTime) {
			due = append(due, p)
		}
	}
	k.mappings = alive
	return due
}

// costOfMappings returns the kernel memory of the processes' mappings, in bytes. Each
// mapping with pages of its own also has a link to the same mapping of every ancestor
// of its process, back to the last one that started another program.
func costOfMappings(mappings map[int]mappingsOf, found []process, self int) (total int64) {
	var links int64
	for _, m := range mappings {
		if m.count > manyMappings {
			total += allMappings * mappingCost
		}
		links += int64(m.count) * linkCost
	}
	if links*int64(len(mappings)) <= fewLinks {
		return total
	}
	for pid, depth := range generations(found, self) {
		total += int64(mappings[pid].count) * int64(depth) * linkCost
	}
	return total
}

// generations returns for each process how many generations of processes, its own
// included, it can have mappings from. If the parent of a process has ended, its
// parent is this process, self, and every process but its descendants may be of an
// earlier generation.
func generations(found []process, self int) map[int]int {
	alive := make(map[int]bool, len(found))
	for _, p := range found {
		alive[p.pid] = true
	}
	children := map[int][]int{}
	for _, p := range found {
		parent := p.parent
		if !alive[parent] {
			parent = self
		}
		if p.pid != self {
			children[parent] = append(children[parent], p.pid)
		}
	}
	depths := make(map[int]int, len(found))
	var walk func(pid, depth int) (descendants int)
	walk = func(pid, depth int) (descendants int) {
		depths[pid] = depth
		for _, child := range children[pid] {
			descendants += walk(child, depth+1)
		}
		return descendants + 1
	}
	for _, pid := range children[self] {
		others := len(found) - walk(pid, 0)
		walk(pid, max(others, 1))
	}
	return depths
}

// countMappings returns the number of mappings of a process or a thread, at most
// manyMappings + 1, which it also assumes if they cannot be read: code can bring that
// about.
func countMappings(pid int) int {
	path := "/proc/" + strconv.Itoa(pid) + "/maps"
	file, err := os.Open(path)
	if hasEnded(err) {
		return 0
	}
	if err != nil {
		return manyMappings + 1
	}
	file.Close()
	return countLines(path, manyMappings+1, nil)
}
