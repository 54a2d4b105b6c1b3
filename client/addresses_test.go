package client_test

import (
	"context"
	"net"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"

	"github.com/jobonce/jobonce/client"
)

// A target can be a list of addresses. One of them that is away is passed by.
func TestAddressList(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		one, two := &script{}, &script{}
		_, first := start(t, &fake{record: one.record})
		_, second := start(t, &fake{record: two.record})
		dial := func(ctx context.Context, address string) (net.Conn, error) {
			return map[string]*network{"127.0.0.1:1": first, "127.0.0.1:2": second}[address].dial(ctx, address)
		}
		c, err := client.New("127.0.0.1:1, 127.0.0.1:2", client.WithDialOptions(grpc.WithContextDialer(dial)))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = c.Close() }()
		call := func() {
			t.Helper()
			for range 11 {
				if _, err := c.RecordDelivery(t.Context(), &request{JobId: "j"}); err != nil {
					t.Fatal(err)
				}
				synctest.Wait() // After the first call: until both are connected.
			}
		}
		call()
		if len(one.ids) < 5 || len(two.ids) < 5 {
			t.Errorf("%d and %d calls", len(one.ids), len(two.ids))
		}
		first.shut()
		call()
		if len(one.ids)+len(two.ids) < 22 {
			t.Errorf("%d and %d calls, with one address away", len(one.ids), len(two.ids))
		}
	})
}

func TestAddressListOptions(t *testing.T) {
	if _, err := client.New("127.0.0.1:1,"); err == nil {
		t.Error("a list with an empty address was taken")
	}
	// In plaintext only when all of it is of this machine.
	for target, fine := range map[string]bool{"127.0.0.1:1,[::1]:2": true, "127.0.0.1:1,example.com:2": false} {
		c, err := client.New(target, client.WithInsecure(), client.WithToken("t"))
		if (err == nil) != fine {
			t.Errorf("a token in plaintext to %s: %v", target, err)
		}
		if err == nil {
			_ = c.Close()
		}
	}
}
