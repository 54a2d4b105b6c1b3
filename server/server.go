package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	protocodec "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"

	joboncev1 "github.com/jobonce/jobonce/gen/jobonce/v1"
	"github.com/jobonce/jobonce/internal/job"
)

const (
	// maxReceiveBytes bounds a request, also when it is inflated. It lies over the largest payload and the largest batch, so
	// that those over their limit get our error and not grpc-go's.
	maxReceiveBytes = 9 << 20
	// maxHeaderBytes is what grpc-go reads of a call's metadata; see [maxMetadataBytes]. Its own bound is 16 MiB.
	maxHeaderBytes = 256 << 10
	// streamWindow is what a peer may send of a message before it is received; connWindow, what may be on its way on
	// one connection. grpc-go lets both grow to 16 MiB where it is left to choose.
	streamWindow = 64 << 10
	connWindow   = 4 << 20
	// connectTimeout is how long a peer may take to say that it speaks HTTP/2, TLS included.
	connectTimeout = 20 * time.Second
	// ageGrace is how long calls may go on over a connection that has come of age: longer than the longest wait for work.
	ageGrace = maxWait + 10*time.Second
	// healthPlaces is how many calls of the health service may wait to be received.
	healthPlaces = 256
	// maxStreams bounds what one connection can have under way, and with it the memory that one client can take: more
	// calls wait in the client. It is far above what a client that batches needs.
	maxStreams = 1000
)

// keepaliveEnforcement: clients ping every 30 seconds or less often, idle ones too; the margin is for clocks and for proxies that
// ping on their own.
var keepaliveEnforcement = keepalive.EnforcementPolicy{MinTime: 10 * time.Second, PermitWithoutStream: true}

// Recorder is the part of the store that IdempotencyService uses.
type Recorder interface {
	job.Recorder
	// RecordOne is Record for one delivery.
	RecordOne(ctx context.Context, d job.Delivery) job.Outcome
}

// Jobs is the store as the server uses it: a part for each service.
type Jobs interface {
	Recorder
	job.Follower
	job.Worker
	job.Expectations
	job.Admin
	job.Checker
}

// Server serves the API, server reflection and the standard health service. Make one with [New].
type Server struct {
	cfg    Config
	log    *slog.Logger
	grpc   *grpc.Server
	health *healthService
	due    *dueWatch
	// door and answers bound what the calls hold.
	door    *door
	answers *answers
	// waits has the deliveries that wait.
	waits *waits
	// inside is where connections in memory come in.
	inside *insideListener
	ran    atomic.Bool
}

// Ready is closed once the server has said SERVING for the first time: the store is ready and calls are answered.
func (s *Server) Ready() <-chan struct{} { return s.health.ready }

// InLine is how many calls wait for their request to be received.
func (s *Server) InLine() int { return s.door.line.inLine() }

// New makes a server over the store. It starts nothing. The error names the field of the configuration at fault.
func New(cfg Config, jobs Jobs) (*Server, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	calls := callLog{log: cfg.Logger, all: cfg.LogCalls, slow: cfg.SlowCall, few: rate.NewLimiter(refusalsLogged, refusalsLogged)}
	answers := &answers{maxBytes: cfg.MaxAnswerBytes, peers: make(map[*peerConn]int64)}
	links := chain(cfg, calls, answers)
	door := &door{
		room: &room{maxCalls: int64(cfg.MaxCalls), maxBytes: cfg.MaxCallBytes}, line: newLine(cfg.ReceiveTimeout),
		health: newLine(cfg.ReceiveTimeout), chain: joinUnary(links), calls: calls, observer: cfg.Observer,
		callers: newCallers(cfg),
	}
	door.line.waited = cfg.Observer.Waited
	door.health.places = healthPlaces
	opts := []grpc.ServerOption{
		// The encoding is the same, whatever a call says that it is.
		grpc.ForceServerCodecV2(codec{encoding.GetCodecV2(protocodec.Name)}),
		grpc.MaxRecvMsgSize(maxReceiveBytes),
		grpc.MaxHeaderListSize(maxHeaderBytes),
		grpc.InTapHandle(markMetadata),
		grpc.StaticStreamWindowSize(streamWindow),
		grpc.StaticConnWindowSize(connWindow),
		grpc.ConnectionTimeout(connectTimeout),
		grpc.MaxConcurrentStreams(maxStreams),
		grpc.KeepaliveEnforcementPolicy(keepaliveEnforcement),
		grpc.KeepaliveParams(keepalive.ServerParameters{
			Time: 2 * time.Minute, Timeout: 20 * time.Second, // These pings find peers that vanished without a word.
			MaxConnectionAge: cfg.MaxConnectionAge, MaxConnectionAgeGrace: ageGrace,
		}),
		// Run returns only when no handler runs any more, so that the store can be closed then.
		grpc.WaitForHandlers(true),
		grpc.UnknownServiceHandler(door.unknown),
	}
	for _, l := range append(links, link{name: "door", stream: door.streams}) {
		if l.stream != nil {
			opts = append(opts, grpc.ChainStreamInterceptor(bypass(l.stream)))
		}
	}
	transport := insecure.NewCredentials()
	if cfg.Certificates != nil {
		transport = credentials.NewTLS(cfg.Certificates.Server())
	}
	opts = append(opts, grpc.Creds(insideCreds{transport}))
	if cfg.StatsHandler != nil {
		opts = append(opts, grpc.StatsHandler(cfg.StatsHandler))
	}

	s := &Server{cfg: cfg, log: cfg.Logger, grpc: grpc.NewServer(opts...), door: door, answers: answers, inside: newInsideListener()}
	s.health = newHealthService(jobs, cfg.HealthInterval, cfg.Logger)
	s.due = newDueWatch(jobs, cfg.DueAlert, cfg.Logger)
	bell := newBell()
	s.waits = newWaits(jobs, cfg.MaxCalls, cfg.Logger, s.health.stopping)
	ours := entrance{s.grpc, door, true}
	joboncev1.RegisterIdempotencyServiceServer(ours, &idempotencyService{
		jobs: jobs, maxBody: cfg.MaxBodyBytes, log: cfg.Logger, observer: cfg.Observer, bell: bell, waits: s.waits,
		traced: cfg.StatsHandler != nil,
	})
	joboncev1.RegisterWorkServiceServer(ours, &workService{
		jobs: jobs, log: cfg.Logger, bell: bell, waits: s.waits, stopping: s.health.stopping, due: s.due,
	})
	joboncev1.RegisterExpectationServiceServer(ours, &expectationService{jobs: jobs, log: cfg.Logger, observer: cfg.Observer})
	joboncev1.RegisterAdminServiceServer(ours, &adminService{jobs: jobs, bell: bell})
	grpc_health_v1.RegisterHealthServer(entrance{s.grpc, door, false}, s.health)
	reflection.Register(s.grpc)
	return s, nil
}

// Run serves on the listener and closes it. It asks the store once before, for 5 seconds at most, so that where the store
// is ready the first answer of the health service is SERVING. When ctx ends the server says NOT_SERVING, ends the calls that
// wait for work, takes no new calls, lets those under way finish within Config.ShutdownTimeout and cuts what is left. Run then
// returns nil. The error is the listener's failure, or the second use of a server, which serves only once.
//
// No handler runs any more when Run returns. The store stays open: closing it is the caller's to do, afterwards.
func (s *Server) Run(ctx context.Context, lis net.Listener) error {
	if !s.ran.CompareAndSwap(false, true) {
		return errors.Join(errors.New("server: Run was called before"), lis.Close())
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()

	s.health.ask(ctx)
	healthDone := make(chan struct{})
	go func() {
		defer close(healthDone)
		s.health.run(ctx, s.cfg.StoreReady)
	}()
	dueDone := make(chan struct{})
	go func() {
		defer close(dueDone)
		s.due.run(ctx)
	}()
	serve := func(lis net.Listener, most int64) <-chan error {
		served := make(chan error, 1)
		go func() {
			served <- s.grpc.Serve(&loudListener{Listener: lis, log: s.log, now: time.Now, most: most, stopping: s.health.stopping})
			cancel()
		}()
		return served
	}
	// Connections in memory have no bound here: each is that of a connection, or a listener, which has one where it comes in.
	served, servedInside := serve(lis, int64(s.cfg.MaxConnections)), serve(s.inside, math.MaxInt64)

	<-ctx.Done()
	s.health.stop()
	s.stop()
	<-healthDone
	<-dueDone
	<-servedInside // Its listener does not fail.
	// A server that is stopped before it serves says so with ErrServerStopped.
	if err := <-served; err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("server: serve on %v: %w", lis.Addr(), err)
	}
	return nil
}

// stop stops serving, gracefully as long as the time allows.
func (s *Server) stop() {
	hard := make(chan struct{})
	timer := time.AfterFunc(s.cfg.ShutdownTimeout, func() {
		defer close(hard)
		s.log.Warn("calls still run and are cut", "after", s.cfg.ShutdownTimeout)
		s.grpc.Stop()
	})
	s.grpc.GracefulStop()
	if !timer.Stop() {
		<-hard
	}
}
