package webhook

// handshake answers a sender that asks whether the endpoint is ours.
type handshake func()
