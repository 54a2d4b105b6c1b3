//go:build older

package main

// decodeRaw stands in for the decoder that needs this tree's packages. The callers of an older JobOnce decode nothing: with
// its packages, what they do need is its Go client and internal/load.
func decodeRaw(body string) (event, error) { return decodeTokens(body) }
