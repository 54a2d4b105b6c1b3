package modeldb

import (
	"maps"
	"slices"
)

// Modelled are the names of the commands and operators that the model has.
func Modelled() []string {
	return slices.Concat(slices.Collect(maps.Keys(commandsOf)), slices.Collect(maps.Keys(conditionsOf)),
		slices.Collect(maps.Keys(operatorsOf)), slices.Collect(maps.Keys(expressionsOf)))
}
