// Package load puts a target under load and measures what it answers: many callers, each of which sends its next delivery
// when the one before is answered. `jobonce bench` and the module bench share it.
//
// Such a closed loop goes at the target's own pace. While the target stalls nothing is sent, so a stall counts as one long
// answer for each caller and not for every delivery that an outside world would have sent meanwhile: the percentiles say
// how long these callers waited, and not how long deliveries would wait that arrive at a fixed rate (coordinated
// omission).
package load
