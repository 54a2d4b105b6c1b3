package cli

import (
	"io"
	"os"
	"slices"
	"strings"
	"unicode/utf8"

	"golang.org/x/term"
)

// minColumn is as narrow as a column of a table gets.
const minColumn = 8

// table prints rows under a header in columns. On a terminal the widest columns are cut so that a row fits on a line;
// elsewhere nothing is cut.
func table(w io.Writer, rows [][]string) error {
	return (&pagedTable{w: w, header: rows[0]}).print(rows[1:])
}

// pagedTable prints a table page by page. Each column is as wide as the widest cell of it so far.
type pagedTable struct {
	w      io.Writer
	header []string
	widest []int // nil before the first page
}

// print prints a page, the first one that is not empty under the header.
func (t *pagedTable) print(rows [][]string) error {
	if len(rows) == 0 {
		return nil
	}
	if t.widest == nil {
		t.widest, rows = make([]int, len(t.header)), append([][]string{t.header}, rows...)
	}
	for _, row := range rows {
		for i, cell := range row {
			t.widest[i] = max(t.widest[i], utf8.RuneCountInString(cell))
		}
	}
	widths := slices.Clone(t.widest)
	if file, ok := t.w.(*os.File); ok && term.IsTerminal(int(file.Fd())) {
		if columns, _, err := term.GetSize(int(file.Fd())); err == nil {
			fit(widths, columns)
		}
	}
	var b strings.Builder
	for _, row := range rows {
		line := ""
		for i, cell := range row {
			cell = cut(cell, widths[i])
			line += cell + strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)+2)
		}
		b.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	_, err := io.WriteString(t.w, b.String())
	return err
}

// fit makes the widest columns narrower until all of them, with two spaces between, fit.
func fit(widths []int, columns int) {
	for {
		total, widest := -2, 0
		for i, n := range widths {
			if total += n + 2; n > widths[widest] {
				widest = i
			}
		}
		if total <= columns || widths[widest] <= minColumn {
			return
		}
		widths[widest]--
	}
}

// cut cuts a text to a width in characters, and shows that it did.
func cut(s string, width int) string {
	runes := []rune(s)
	if len(runes) <= width {
		return s
	}
	return string(runes[:width-1]) + "…"
}
