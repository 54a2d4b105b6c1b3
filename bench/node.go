package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
)

// haveNode fails when Node is not on this machine.
func haveNode() error {
	for _, program := range []string{"node", "npm"} {
		if _, err := exec.LookPath(program); err != nil {
			return absent("%s is not installed, so the frontend in Node is left out", program)
		}
	}
	return nil
}

// startNode starts the frontend in Node, which is a load child like those in Go. The first time it installs what the
// frontend needs.
func (l *lab) startNode(ctx context.Context, s spec) (*caller, error) {
	if l.node == "" {
		if err := l.installNode(ctx); err != nil {
			return nil, err
		}
	}
	protos, err := filepath.Abs("../proto")
	if err != nil {
		return nil, err
	}
	cmd := exec.Command("node", filepath.Join(l.node, "frontend.mjs"), protos)
	cmd.Env = environment()
	p, err := startHeld(l.dir, "node-"+s.Kind, cmd)
	if err != nil {
		return nil, err
	}
	return connect(ctx, p, s)
}

// installNode installs the packages of the lock file, outside of the tree.
func (l *lab) installNode(ctx context.Context) error {
	dir := filepath.Join(l.dir, "node")
	if err := os.CopyFS(dir, os.DirFS("node")); err != nil {
		return err
	}
	if err := command(ctx, dir, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"); err != nil {
		return err
	}
	l.node = dir
	return nil
}
