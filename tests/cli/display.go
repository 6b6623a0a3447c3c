package cli

import (
	"fmt"
	"strings"
	"sync"
	"unicode/utf8"
)

// display is a terminal's screen: enough of an xterm for line editors and for
// programs that draw on all of it.
type display struct {
	mu            sync.Mutex
	rows, columns int
	cells         [][]rune
	other         [][]rune // the main screen while the alternate one is shown
	row, column   int
	saved         [2]int
	wrap          bool            // the next character begins a line
	modes         map[int]bool    // private modes that were set or reset
	colours       bool            // some are set
	left          map[string]bool // other settings that are not as usual
	cursor        [2]int          // what ESC 7 saved
	rest          []byte          // an unfinished sequence

	// answer sends what the terminal answers to queries.
	answer func(string)
}

func newDisplay(rows, columns int) *display {
	d := &display{modes: map[int]bool{}, left: map[string]bool{}, answer: func(string) {}}
	d.resize(rows, columns)
	return d
}

// resize cuts or fills at the bottom and at the right.
func (d *display) resize(rows, columns int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.rows, d.columns = rows, columns
	d.cells = fit(d.cells, rows, columns)
	if d.other != nil {
		d.other = fit(d.other, rows, columns)
	}
	d.row, d.column = min(d.row, rows-1), min(d.column, columns-1)
}

func fit(cells [][]rune, rows, columns int) [][]rune {
	fitted := make([][]rune, rows)
	for i := range fitted {
		fitted[i] = []rune(strings.Repeat(" ", columns))
		if i < len(cells) {
			copy(fitted[i], cells[i])
		}
	}
	return fitted
}

// String is what the screen shows, without blanks at the ends.
func (d *display) String() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var lines []string
	for _, line := range d.cells {
		lines = append(lines, strings.TrimRight(string(line), " "))
	}
	return strings.TrimRight(strings.Join(lines, "\n"), "\n")
}

// changed returns what is not as usual: private modes by their numbers, and
// other settings by their names.
func (d *display) changed() []string {
	d.mu.Lock()
	defer d.mu.Unlock()
	var changed []string
	for number, on := range d.modes {
		if on != (number == 25 || number == 7) {
			changed = append(changed, fmt.Sprint(number))
		}
	}
	for name, left := range d.left {
		if left {
			changed = append(changed, name)
		}
	}
	if d.colours {
		changed = append(changed, "colours")
	}
	return changed
}

func (d *display) Write(data []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	all := append(d.rest, data...)
	for len(all) > 0 {
		n := d.take(all)
		if n == 0 {
			break
		}
		all = all[n:]
	}
	d.rest = append([]byte(nil), all...)
	return len(data), nil
}

// take shows the first character or sequence and returns its length, or 0 if it
// is unfinished.
func (d *display) take(data []byte) int {
	switch b := data[0]; {
	case b == 0x1b:
		return d.escape(data)
	case b == '\r':
		d.column, d.wrap = 0, false
	case b == '\n':
		d.down()
	case b == '\b':
		d.column, d.wrap = max(0, d.column-1), false
	case b == '\t':
		d.column = min(d.columns-1, d.column/8*8+8)
	case b < ' ' || b == 0x7f:
	default:
		if !utf8.FullRune(data) {
			return 0
		}
		r, size := utf8.DecodeRune(data)
		d.put(r)
		return size
	}
	return 1
}

func (d *display) put(r rune) {
	if d.wrap {
		d.column, d.wrap = 0, false
		d.down()
	}
	d.cells[d.row][d.column] = r
	if d.column == d.columns-1 {
		wraps, given := d.modes[7]
		d.wrap = wraps || !given
	} else {
		d.column++
	}
}

func (d *display) down() {
	d.wrap = false
	if d.row < d.rows-1 {
		d.row++
		return
	}
	copy(d.cells, d.cells[1:])
	d.cells[d.rows-1] = []rune(strings.Repeat(" ", d.columns))
}

// escape executes a sequence that begins with ESC.
func (d *display) escape(data []byte) int {
	if len(data) < 2 {
		return 0
	}
	switch data[1] {
	case '[':
		for i := 2; i < len(data); i++ {
			if data[i] >= 0x40 {
				d.control(string(data[2:i]), data[i])
				return i + 1
			}
		}
		return 0
	case ']': // up to BEL or ESC \
		for i := 2; i < len(data); i++ {
			if data[i] == '\a' || data[i] == '\\' && data[i-1] == 0x1b {
				d.command(string(data[2:i]))
				return i + 1
			}
		}
		return 0
	case '7':
		d.cursor = [2]int{d.row, d.column}
	case '8':
		d.row, d.column = min(d.cursor[0], d.rows-1), min(d.cursor[1], d.columns-1)
	case '(', ')':
		if len(data) < 3 {
			return 0
		}
		return 3
	}
	return 2
}

// command executes an operating system command.
func (d *display) command(text string) {
	switch number, _, _ := strings.Cut(text, ";"); number {
	case "4", "10", "11", "12":
		d.left["colour "+number] = true
	case "104", "110", "111", "112":
		d.left["colour "+number[1:]] = false
		if number == "104" {
			d.left["colour 4"] = false
		}
	}
}

// control executes the sequence ESC [ params letter.
func (d *display) control(params string, letter byte) {
	switch {
	case letter == 'u' && strings.HasPrefix(params, ">"):
		d.left["encoding of keys"] = true
	case letter == 'u' && params == "<99":
		d.left["encoding of keys"] = false
	case letter == 'm' && strings.HasPrefix(params, ">"):
		d.left["modified keys"] = params != ">4"
		return
	case letter == 'q' && strings.HasSuffix(params, " "):
		d.left["cursor"] = params != "0 "
	case letter == 'r':
		d.left["margins"] = params != ""
		d.row, d.column = 0, 0
	case letter == 'n' && params == "6":
		d.answer(fmt.Sprintf("\x1b[%d;%dR", d.row+1, d.column+1))
	case letter == 't' && params == "21":
		d.answer("\x1b]ltouch /tmp/pwn\x1b\\")
	}
	private := strings.HasPrefix(params, "?")
	var numbers []int
	for word := range strings.SplitSeq(strings.TrimPrefix(params, "?"), ";") {
		n := 0
		for _, digit := range word {
			if digit < '0' || digit > '9' {
				return
			}
			n = min(n*10+int(digit-'0'), 9999)
		}
		numbers = append(numbers, n)
	}
	first := max(1, numbers[0])
	d.wrap = false
	switch letter {
	case 'A':
		d.row = max(0, d.row-first)
	case 'B':
		d.row = min(d.rows-1, d.row+first)
	case 'C':
		d.column = min(d.columns-1, d.column+first)
	case 'D':
		d.column = max(0, d.column-first)
	case 'G':
		d.column = min(d.columns, first) - 1
	case 'H', 'f':
		d.row, d.column = min(d.rows, first)-1, 0
		if len(numbers) > 1 {
			d.column = min(d.columns, max(1, numbers[1])) - 1
		}
	case 'J':
		begin := 0
		if numbers[0] == 0 {
			d.blank(d.row, d.column)
			begin = d.row + 1
		}
		for row := begin; row < d.rows; row++ {
			d.blank(row, 0)
		}
	case 'K':
		d.blank(d.row, d.column)
	case 'm':
		d.colours = numbers[len(numbers)-1] != 0
	case 'h', 'l':
		if private {
			for _, number := range numbers {
				d.set(number, letter == 'h')
			}
			return
		}
		for _, number := range numbers {
			d.left[fmt.Sprint("mode ", number)] = (letter == 'h') != (number == 12)
		}
	}
}

func (d *display) blank(row, from int) {
	for column := from; column < d.columns; column++ {
		d.cells[row][column] = ' '
	}
}

// set sets or resets a private mode.
func (d *display) set(number int, on bool) {
	if number == 1049 && on != d.modes[number] {
		if on {
			d.other, d.cells = d.cells, fit(nil, d.rows, d.columns)
			d.saved = [2]int{d.row, d.column}
		} else {
			d.cells, d.other = d.other, nil
			d.row, d.column = min(d.saved[0], d.rows-1), min(d.saved[1], d.columns-1)
		}
	}
	d.modes[number] = on
}
