//go:build !unix

package runner

import "os/exec"

// Where there are no process groups, the command alone is ended, without being asked.

func ownGroup(*exec.Cmd) {}

func askGroup(cmd *exec.Cmd) { _ = cmd.Process.Kill() }

func killGroup(cmd *exec.Cmd) { _ = cmd.Process.Kill() }
