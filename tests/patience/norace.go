//go:build !race

package patience

const raceDetector = false
