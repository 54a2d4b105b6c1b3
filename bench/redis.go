package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// startRedis starts Redis with a log that is synced before each answer, as the other stores do it.
func startRedis(ctx context.Context, dir string) (*process, string, error) {
	server, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, "", absent("redis-server is not installed; bench/setup installs it")
	}
	data := filepath.Join(dir, "redis")
	if err := os.Mkdir(data, 0o700); err != nil {
		return nil, "", err
	}
	port, err := freePort()
	if err != nil {
		return nil, "", err
	}
	cmd := exec.Command(server, "--bind", "127.0.0.1", "--port", strconv.Itoa(port), "--dir", data, "--save", "",
		"--appendonly", "yes", "--appendfsync", "always", "--logfile", filepath.Join(data, "log"))
	cmd.Env = environment()
	p, err := start(dir, "redis", cmd)
	if err != nil {
		return nil, "", err
	}
	address := fmt.Sprintf("127.0.0.1:%d", port)
	c := redis.NewClient(&redis.Options{Addr: address})
	defer c.Close()
	if err := answers(ctx, func(ctx context.Context) error { return c.Ping(ctx).Err() }); err != nil {
		p.stop()
		return nil, "", p.failed(err)
	}
	return p, address, nil
}

// redisTarget does SET NX, with the body as the value, since the others store it too.
type redisTarget struct{ client *redis.Client }

func newRedis(ctx context.Context, s spec) (runner, string, error) {
	c := redis.NewClient(&redis.Options{Addr: s.Address, PoolSize: s.Callers, MaxActiveConns: s.Callers})
	if err := c.Ping(ctx).Err(); err != nil {
		return nil, "", err
	}
	return target{Target: redisTarget{c}, end: func() { _ = c.Close() }}, "", nil
}

func (r redisTarget) Record(ctx context.Context, key, body string) (bool, error) {
	return r.client.SetNX(ctx, key, body, 0).Result()
}

// absentError says that something to compare with is not on this machine.
type absentError string

func (e absentError) Error() string { return string(e) }

func absent(format string, args ...any) error { return absentError(fmt.Sprintf(format, args...)) }

// freePort finds a port for a server that cannot let the system choose one.
func freePort() (int, error) {
	lis, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer lis.Close()
	return lis.Addr().(*net.TCPAddr).Port, nil
}

// answers waits until a server that was just started answers.
func answers(ctx context.Context, ask func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		err := ask(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("it does not answer: %w", err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}
