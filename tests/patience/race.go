//go:build race

package patience

// raceDetector says that the race detector is on, which makes Go code several times slower.
const raceDetector = true
