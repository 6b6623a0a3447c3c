package server

import "testing"

// Each transition of each state: what a call, the end of the interpreter and a
// result make of it.
func TestState_Transitions(t *testing.T) {
	for s, want := range map[state]struct {
		begun, dropped, reported state
		held, unreported         bool
	}{
		stateNone:    {stateHeld, stateNone, stateNone, false, false},
		stateHeld:    {stateHeld, stateLost, stateHeld, true, false},
		stateLost:    {stateRenewed, stateLost, stateNone, false, true},
		stateRenewed: {stateRenewed, stateLost, stateHeld, true, true},
	} {
		if got := s.begun(); got != want.begun {
			t.Errorf("%d begun: %d, want %d", s, got, want.begun)
		}
		if got := s.dropped(); got != want.dropped {
			t.Errorf("%d dropped: %d, want %d", s, got, want.dropped)
		}
		if got := s.reported(); got != want.reported {
			t.Errorf("%d reported: %d, want %d", s, got, want.reported)
		}
		if s.isHeld() != want.held || s.isUnreported() != want.unreported {
			t.Errorf("%d is held: %v, unreported: %v", s, s.isHeld(), s.isUnreported())
		}
	}
}
