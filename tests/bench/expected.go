package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
)

//go:embed expected.json
var expectedText []byte

// An expectation is how many times as long as another a call may take.
type expectation struct {
	Group   string  `json:"group"`
	Row     string  `json:"row"`
	Against string  `json:"against"`
	Ratio   float64 `json:"ratio"`
	Why     string  `json:"why"`
}

// slack is how far a ratio may be off before it counts as broken.
const slack = 2

// broken reports whether a section breaks the expectation.
func (e expectation) broken(s section) error {
	var a, b *series
	for _, r := range s.Rows {
		if r.Name == e.Row {
			a = r.series
		}
		if r.Name == e.Against {
			b = r.series
		}
	}
	if a == nil || b == nil {
		return fmt.Errorf("expected.json names %q and %q, but %s has no such rows", e.Row, e.Against, s.Name)
	}
	switch got := ratio(a, b); {
	case got == 0:
		return errors.New("the two were not measured")
	case got > slack*e.Ratio:
		return fmt.Errorf("takes %.3g times as long as %s; expected %.3g, at most %.3g", got, e.Against, e.Ratio, slack*e.Ratio)
	}
	return nil
}

// verdict compares the ratios of the report with the expected ones, and prints a
// line for each. It measures a group with a broken ratio once more before it
// reports the failure.
func (b *bench) verdict(ctx context.Context, r report, say func(string, ...any)) error {
	var expected []expectation
	if err := json.Unmarshal(expectedText, &expected); err != nil {
		return fmt.Errorf("expected.json: %w", err)
	}
	var failed error
	for _, s := range r.Sections {
		again := false
		for _, e := range expected {
			again = again || e.Group == s.Name && e.broken(s) != nil
		}
		if again {
			say("once more")
			for _, g := range b.groups([]string{s.Name}) {
				var err error
				if s, err = g.run(ctx, say); err != nil {
					failed = errors.Join(failed, err)
				}
			}
		}
		for _, e := range expected {
			if e.Group != s.Name {
				continue
			}
			if err := e.broken(s); err != nil {
				fmt.Printf("FAIL bench/%s: %s: %v\n", e.Group, e.Row, err)
				failed = errors.Join(failed, fmt.Errorf("%s, %s: %w", e.Group, e.Row, err))
				continue
			}
			fmt.Printf("ok bench/%s: %s\n", e.Group, e.Row)
		}
	}
	return failed
}
