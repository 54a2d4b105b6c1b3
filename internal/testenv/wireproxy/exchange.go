package wireproxy

import (
	"net"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/wiremessage"

	"github.com/jobonce/jobonce/internal/testenv/wire"
)

// Command is a command as a client sent it.
type Command = wire.Command

// Exchange is one command and its answer, in the hands of a [Fault].
type Exchange struct {
	Command Command

	proxy          *Proxy
	client, server net.Conn
	request        wire.Message
	bytesPerSecond int // 0: as fast as can be
}

// Pass carries the command to the database and the answer back, byte for byte.
func (x *Exchange) Pass() error {
	if _, err := x.server.Write(x.request); err != nil {
		return err
	}
	if x.request.Flags()&wiremessage.MoreToCome != 0 {
		return nil // nobody waits for an answer
	}
	for more := true; more; {
		reply, err := wire.Read(x.server)
		if err != nil {
			return err
		}
		if err := x.write(reply); err != nil {
			return err
		}
		more = reply.Flags()&wiremessage.MoreToCome != 0 // a monitor's stream
	}
	return nil
}

// Forward carries the command to the database and returns the answer, which the client has not got yet. The command
// must be one with an answer, and a single one.
func (x *Exchange) Forward() (bson.Raw, error) { return x.forward(x.request) }

func (x *Exchange) forward(request wire.Message) (bson.Raw, error) {
	if _, err := x.server.Write(request); err != nil {
		return nil, err
	}
	reply, err := wire.Read(x.server)
	if err != nil {
		return nil, err
	}
	return reply.Document()
}

// Reply answers the client with a document.
func (x *Exchange) Reply(doc any) error {
	raw, err := bson.Marshal(doc)
	if err != nil {
		return err
	}
	return x.write(wire.New(0, x.request.ID(), raw))
}

// pieces is how often a second a throttled answer goes on.
const pieces = 20

func (x *Exchange) write(m wire.Message) error {
	if x.bytesPerSecond <= 0 {
		_, err := x.client.Write(m)
		return err
	}
	for size := max(1, x.bytesPerSecond/pieces); len(m) > 0; {
		n, err := x.client.Write(m[:min(size, len(m))])
		if err != nil {
			return err
		}
		if m = m[n:]; len(m) > 0 {
			if err := x.sleep(time.Second / pieces); err != nil {
				return err
			}
		}
	}
	return nil
}

// hold waits for release, and in vain once the proxy is closed.
func (x *Exchange) hold(release <-chan struct{}) error {
	select {
	case <-release:
		return nil
	case <-x.proxy.closed:
		return errCut
	}
}

func (x *Exchange) sleep(d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-x.proxy.closed:
		return errCut
	}
}
