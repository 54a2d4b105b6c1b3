//go:build !race

package failuretest

const memoryFactor = 1
