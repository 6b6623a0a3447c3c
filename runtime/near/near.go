// Package near compares words that people or models mistype.
package near

import "github.com/nix-sandbox-mcp/nix-sandbox-mcp/wire/bounded"

// Distance is the number of bytes that have to be put in, left out or changed to make one word of
// the other. Each is cut to 64 bytes.
func Distance(a, b string) int {
	a, b = bounded.Head(a, 64), bounded.Head(b, 64)
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		last := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := last
			if a[i] != b[j] {
				cost++
			}
			last = row[j+1]
			row[j+1] = min(cost, row[j]+1, last+1)
		}
	}
	return row[len(b)]
}
