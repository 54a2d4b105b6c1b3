package auth

import "context"

// Files are files that are taken again when they change, however they do: in place, by a rename, or by a symbolic link that
// points elsewhere.
type Files struct{ watch watcher }

// ReadFiles reads the files for the first time.
func ReadFiles(paths []string) (*Files, [][]byte, error) {
	f := &Files{watcher{paths: paths}}
	contents, err := f.watch.start()
	return f, contents, err
}

// Run calls take with the contents of all when some of them have changed and have stood still for a second, or with the error
// of reading them, until ctx ends.
func (f *Files) Run(ctx context.Context, take func([][]byte, error)) { f.watch.run(ctx, take) }
