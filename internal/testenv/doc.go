// Package testenv finds or starts what tests need: a test database, clocks that are moved by hand, loggers.
//
// It is for tests and for the bench module only; nothing that is released imports it.
package testenv
