package testenv

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"strconv"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// holdMongod runs mongod ($1, on port $2) until its input ends, as it does when the test process does.
const holdMongod = `
trap : HUP INT TERM
dir=$(mktemp -d) || exit
"$1" --dbpath "$dir" --bind_ip 127.0.0.1 --port "$2" --replSet rs0 --logpath "$dir/log" </dev/null >/dev/null 2>&1 &
cat >/dev/null
kill $! 2>/dev/null
wait $!
rm -rf "$dir"
`

// startMongod starts mongod as a replica set of one, because a standalone has no retryable writes and no majority.
func startMongod(mongod string) (*server, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	stop, _, err := startHeld(exec.Command("sh", "-c", holdMongod, "mongod", mongod, strconv.Itoa(port)))
	if err != nil {
		return nil, err
	}
	if err := initiate(port); err != nil {
		stop()
		return nil, fmt.Errorf("starting %s: %w", mongod, err)
	}
	return &server{uri: fmt.Sprintf("mongodb://127.0.0.1:%d/?replicaSet=rs0", port), stop: stop}, nil
}

func freePort() (int, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port, nil
}

// initiate makes the mongod on port a replica set of one and waits until it is its primary.
func initiate(port int) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	address := fmt.Sprintf("127.0.0.1:%d", port)
	client, err := mongo.Connect(options.Client().ApplyURI("mongodb://" + address + "/?directConnection=true"))
	if err != nil {
		return err
	}
	defer client.Disconnect(context.WithoutCancel(ctx))
	admin := client.Database("admin")
	config := bson.D{{Key: "_id", Value: "rs0"}, {Key: "members", Value: bson.A{
		bson.D{{Key: "_id", Value: 0}, {Key: "host", Value: address}},
	}}}
	if err := admin.RunCommand(ctx, bson.D{{Key: "replSetInitiate", Value: config}}).Err(); err != nil {
		return err
	}
	for {
		var hello struct {
			Primary bool `bson:"isWritablePrimary"`
		}
		err := admin.RunCommand(ctx, bson.D{{Key: "hello", Value: 1}}).Decode(&hello)
		if err == nil && hello.Primary {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(errors.New("it did not become primary within a minute"), err)
		case <-time.After(50 * time.Millisecond):
		}
	}
}
