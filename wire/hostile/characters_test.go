package hostile

import "testing"

func TestInvisible(t *testing.T) {
	for r, want := range map[rune]struct{ is, hides bool }{
		'a': {}, ' ': {}, 'é': {}, '😀': {}, '―': {},
		'\u00a0': {is: true}, '\u3000': {is: true}, '\u2800': {is: true}, '\ue0b0': {is: true}, '\u0378': {is: true},
		'\x1b': {true, true}, '\x7f': {true, true}, '\u009b': {true, true}, '\u202e': {true, true}, '\u2028': {true, true},
		'\u00ad': {true, true}, '\u200d': {true, true}, '\u3164': {true, true}, '\u115f': {true, true}, '\uffa0': {true, true},
		'\ufe0f': {true, true}, '\U000e0041': {true, true}, '\U000e0100': {true, true}, '\u034f': {true, true},
	} {
		if is, hides := Invisible(r), Hides(r); is != want.is || hides != want.hides {
			t.Errorf("%U: %v, %v, want %v", r, is, hides, want)
		}
	}
}
