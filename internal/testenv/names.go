package testenv

import (
	"net"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// StartNames starts a name server until the test ends, and returns its address. answer is asked for each question what there is
// of the name; nil means that the name does not exist.
func StartNames(t *testing.T, answer func(q dnsmessage.Question) []dnsmessage.ResourceBody) string {
	t.Helper()
	conn, err := net.ListenPacket("udp", "127.0.0.1:0")
	Must(t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for buf := make([]byte, 512); ; {
			size, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			if reply, err := namesReply(buf[:size], answer); err == nil {
				_, _ = conn.WriteTo(reply, from)
			}
		}
	}()
	t.Cleanup(func() {
		_ = conn.Close()
		<-done
	})
	return conn.LocalAddr().String()
}

func namesReply(query []byte, answer func(q dnsmessage.Question) []dnsmessage.ResourceBody) ([]byte, error) {
	var m dnsmessage.Message
	if err := m.Unpack(query); err != nil {
		return nil, err
	}
	m.Response, m.Additionals = true, nil
	q := m.Questions[0]
	bodies := answer(q)
	if bodies == nil {
		m.RCode = dnsmessage.RCodeNameError
	}
	for _, body := range bodies {
		m.Answers = append(m.Answers, dnsmessage.Resource{
			Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class, TTL: 1}, Body: body,
		})
	}
	return m.Pack()
}
