package changes

import "time"

// SetMaxTime changes the time that one comparison of a record may take. With the time of
// the product, what a test finds would depend on how fast the machine is.
func (r *Record) SetMaxTime(limit time.Duration) { r.overlay.maxTime = limit }

// SetBounds changes how many patches and bytes the store keeps.
func (s *Store) SetBounds(files int, bytes int64) { s.maxFiles, s.maxBytes = files, bytes }

// Lock holds the lock of an apply.
func (e *Entry) Lock() (unlock func(), err error) { return e.lock() }
