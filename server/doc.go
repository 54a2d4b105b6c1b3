// Package server is the gRPC server of JobOnce: handlers, error mapping, interceptors, health and shutdown. It is made
// for the jobonce binary and not meant to be embedded by other programs.
package server
