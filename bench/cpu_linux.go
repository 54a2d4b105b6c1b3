package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// tick is the unit of the times in /proc, which Linux fixes for programs at a hundredth of a second.
const tick = time.Second / 100

// procTimes is what /proc/PID/stat says about one process.
type procTimes struct {
	parent int
	// own is its user and system time, reaped that of its children that have ended and were waited for.
	own, reaped time.Duration
}

// cpuTime is what the processes and all below them have used since they started. The children that ended meanwhile are
// in it too, through the parents that waited for them.
func cpuTime(pids []int) (time.Duration, error) {
	all, err := readTimes()
	if err != nil {
		return 0, err
	}
	children := make(map[int][]int)
	for pid, t := range all {
		children[t.parent] = append(children[t.parent], pid)
	}
	var sum time.Duration
	var visit func(int)
	visit = func(pid int) {
		sum += all[pid].own + all[pid].reaped
		for _, child := range children[pid] {
			visit(child)
		}
	}
	for _, pid := range pids {
		if _, ok := all[pid]; !ok {
			return 0, fmt.Errorf("there is no process %d to count the CPU time of", pid)
		}
		visit(pid)
	}
	return sum, nil
}

func readTimes() (map[int]procTimes, error) {
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	all := make(map[int]procTimes, len(files))
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended since
		}
		pid, t, err := parseStat(string(text))
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		all[pid] = t
	}
	return all, nil
}

// parseStat reads /proc/PID/stat; see proc_pid_stat(5).
func parseStat(text string) (int, procTimes, error) {
	// The second field is the program's name in parentheses, which may hold spaces and parentheses.
	open, end := strings.IndexByte(text, '('), strings.LastIndexByte(text, ')')
	if open < 0 || end < open {
		return 0, procTimes{}, fmt.Errorf("no program name in %q", text)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(text[:open]))
	if err != nil {
		return 0, procTimes{}, err
	}
	const state, ppid, utime, cstime = 3, 4, 14, 17 // as the manual counts
	fields := strings.Fields(text[end+1:])
	if len(fields) <= cstime-state {
		return 0, procTimes{}, fmt.Errorf("%d fields after the name", len(fields))
	}
	var t procTimes
	if t.parent, err = strconv.Atoi(fields[ppid-state]); err != nil {
		return 0, procTimes{}, err
	}
	var ticks [4]time.Duration // utime, stime, cutime, cstime
	for i := range ticks {
		n, err := strconv.ParseInt(fields[utime-state+i], 10, 64)
		if err != nil {
			return 0, procTimes{}, err
		}
		ticks[i] = time.Duration(n) * tick
	}
	t.own, t.reaped = ticks[0]+ticks[1], ticks[2]+ticks[3]
	return pid, t, nil
}
