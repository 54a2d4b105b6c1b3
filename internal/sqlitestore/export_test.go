package sqlitestore

// WithPragmas returns the options with pragmas for the writer, which come after its own and so replace them.
func (o Options) WithPragmas(pragmas ...string) Options {
	o.pragmas = append(o.pragmas[:len(o.pragmas):len(o.pragmas)], pragmas...)
	return o
}

// BreakDown takes the store out of service.
func (s *Store) BreakDown(err error) { s.breakDown(err) }
