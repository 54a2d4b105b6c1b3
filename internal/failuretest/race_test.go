//go:build race

package failuretest

// memoryFactor is what the race detector makes of a process's memory.
const memoryFactor = 3
