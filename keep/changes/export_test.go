package changes

import "time"

// SetMaxTime changes the time that one comparison of a record may take. With the time of
// the product, what a test finds would depend on how fast the machine is.
func (r *Record) SetMaxTime(limit time.Duration) { r.overlay.maxTime = limit }
