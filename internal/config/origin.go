package config

import (
	"strconv"

	"github.com/spf13/pflag"
)

// Layer is where the value of a flag comes from. A greater one beats a smaller one.
type Layer int

// The layers.
const (
	FromDefault Layer = iota
	FromFile
	FromEnvironment
	FromCommandLine
)

// Origin is where the value of a flag comes from.
type Origin struct {
	Layer Layer
	// Name is what whoever set it wrote: --listen, JOBONCE_LISTEN, or serve.listen of jobonce.yaml. Empty for a default.
	Name string
}

// originKey is the annotation of a flag that [Apply] has set.
const originKey = "jobonce_origin"

// OriginOf tells where the value of f comes from, once [Apply] has run.
func OriginOf(f *pflag.Flag) Origin {
	if !f.Changed {
		return Origin{}
	}
	if note := f.Annotations[originKey]; len(note) == 2 {
		// [Origin.note] wrote it.
		layer, _ := strconv.Atoi(note[0])
		return Origin{Layer(layer), note[1]}
	}
	return Origin{FromCommandLine, "--" + f.Name}
}

// note keeps the origin with the flag: pflag knows only that it was set.
func (o Origin) note(f *pflag.Flag) {
	if f.Annotations == nil {
		f.Annotations = make(map[string][]string)
	}
	f.Annotations[originKey] = []string{strconv.Itoa(int(o.Layer)), o.Name}
}
