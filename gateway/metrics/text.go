package metrics

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// namespace begins the name of every metric.
const namespace = "nix_sandbox_"

// Kinds of metrics.
const (
	counter = "counter"
	gauge   = "gauge"
)

// writer writes Prometheus's text format
// (https://prometheus.io/docs/instrumenting/exposition_formats/).
type writer struct{ out *bytes.Buffer }

// family begins the samples of a metric.
func (w writer) family(name, kind, help string) {
	fmt.Fprintf(w.out, "# HELP %s%s %s\n# TYPE %s%s %s\n", namespace, name, help, namespace, name, kind)
}

// single writes a metric of one sample without labels.
func (w writer) single(name, kind, help string, value float64) {
	w.family(name, kind, help)
	w.sample(name, value)
}

var escaped = strings.NewReplacer("\\", `\\`, "\"", `\"`, "\n", `\n`)

// sample writes a sample; labels are names, each with its value after it.
func (w writer) sample(name string, value float64, labels ...string) {
	w.out.WriteString(namespace + name)
	for i := 0; i < len(labels); i += 2 {
		w.out.WriteString([]string{"{", ","}[min(i, 1)])
		fmt.Fprintf(w.out, `%s="%s"`, labels[i], escaped.Replace(strings.ToValidUTF8(labels[i+1], "\uFFFD")))
	}
	if len(labels) > 0 {
		w.out.WriteString("}")
	}
	w.out.WriteString(" " + strconv.FormatFloat(value, 'g', -1, 64) + "\n")
}

// histogram writes the samples of one environment.
func (w writer) histogram(name string, h *histogram, env string) {
	var below uint64
	for i, bound := range buckets {
		below += h.counts[i]
		w.sample(name+"_bucket", float64(below), "env", env, "le", strconv.FormatFloat(bound, 'g', -1, 64))
	}
	w.sample(name+"_bucket", float64(h.count), "env", env, "le", "+Inf")
	w.sample(name+"_sum", h.sum, "env", env)
	w.sample(name+"_count", float64(h.count), "env", env)
}

// samples writes a counter with a sample for each key, in the order of its labels.
func samples[K comparable, V uint64 | float64](w writer, name, help string, values map[K]V, labels func(K) []string) {
	w.family(name, counter, help)
	for _, key := range slices.SortedFunc(maps.Keys(values), func(a, b K) int { return slices.Compare(labels(a), labels(b)) }) {
		w.sample(name, float64(values[key]), labels(key)...)
	}
}
