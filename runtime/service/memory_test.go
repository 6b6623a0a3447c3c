package service

import "testing"

func TestMemory_IsShort(t *testing.T) {
	for text, want := range map[string]bool{
		"MemTotal:        1000000 kB\nMemFree:  10 kB\nMemAvailable:     50000 kB\n": false,
		"MemTotal:        1000000 kB\nMemFree:  10 kB\nMemAvailable:     49999 kB\n": true,
		"MemTotal:        1000000 kB\nMemFree:  10 kB\n":                             false, // Linux before 3.14
		"": false,
	} {
		if got := isShort([]byte(text)); got != want {
			t.Errorf("%q: %v", text, got)
		}
	}
	if isShortOfMemory() {
		t.Log("this machine is short of memory")
	}
}
