package main

import (
	"bytes"
	"fmt"
	"testing"
)

// The mark ends a stream wherever reads cut it, and what only begins as it does is passed on.
func TestCopier_EndsAtTheMark(t *testing.T) {
	mark := []byte("0123")
	stream := []byte("text 01 0120123")
	for first := 0; first <= len(stream); first++ {
		for second := first; second <= len(stream); second++ {
			t.Run(fmt.Sprint(first, " ", second), func(t *testing.T) {
				c := &copier{}
				c.finish(mark)
				var got []byte
				over := false
				for _, part := range [][]byte{stream[:first], stream[first:second], stream[second:]} {
					if len(part) == 0 {
						continue
					}
					if over {
						t.Fatal("it is over before the mark has come")
					}
					var text []byte
					text, over = c.split(part)
					got = append(got, text...)
				}
				if want := "text 01 012"; string(got) != want || !over {
					t.Errorf("%q, over %v, want %q", got, over, want)
				}
			})
		}
	}
	// Before the end is near, nothing is held back.
	if got, over := (&copier{}).split(stream); !bytes.Equal(got, stream) || over {
		t.Errorf("%q, over %v", got, over)
	}
}
