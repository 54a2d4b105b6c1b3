package auth

import (
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"time"
)

// lookEvery is how often files are looked at. Contents are taken when two looks in a row find the same: whoever writes is done
// then.
const lookEvery = time.Second

// watcher tells when files have new contents. It reads them each time, so that it does not matter how they change: in
// place, by a rename, or by a symbolic link that points elsewhere.
type watcher struct {
	paths []string
	// seen is what was found last, used what was told last.
	seen, used [sha256.Size]byte
	// each is called with every look, if it is set.
	each func()
}

// start reads the files for the first time.
func (w *watcher) start() ([][]byte, error) {
	contents, err := readAll(w.paths)
	w.seen = digest(contents, err)
	w.used = w.seen
	return contents, err
}

// look reads the files. changed is true when they have stood still since the last look, and are not what was told last: the
// contents, or the error of reading them.
func (w *watcher) look() (contents [][]byte, changed bool, err error) {
	contents, err = readAll(w.paths)
	sum := digest(contents, err)
	still := sum == w.seen
	w.seen = sum
	if !still || sum == w.used {
		return nil, false, nil
	}
	w.used = sum
	return contents, true, err
}

// run looks until ctx ends.
func (w *watcher) run(ctx context.Context, take func([][]byte, error)) {
	ticker := time.NewTicker(lookEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if contents, changed, err := w.look(); changed {
			take(contents, err)
		}
		if w.each != nil {
			w.each()
		}
	}
}

func readAll(paths []string) ([][]byte, error) {
	contents := make([][]byte, len(paths))
	for i, path := range paths {
		var err error
		if contents[i], err = os.ReadFile(path); err != nil {
			return nil, err
		}
	}
	return contents, nil
}

func digest(contents [][]byte, err error) [sha256.Size]byte {
	h := sha256.New()
	if err != nil {
		fmt.Fprint(h, "error: ", err)
	}
	for _, c := range contents {
		fmt.Fprintf(h, "%d:", len(c))
		h.Write(c)
	}
	return [sha256.Size]byte(h.Sum(nil))
}
