package main

import (
	"bytes"
	"io"
	"net"
	"sync"
	"time"
)

const hostileBytes = 16_700_000

// hostileBodies are registrations near the frame limit with the highest cost that a peer can cause.
func hostileBodies() [][]byte {
	fill := func(start, unit, end string) []byte {
		times := (hostileBytes - len(start) - len(end)) / len(unit)
		return append(append([]byte(start), bytes.Repeat([]byte(unit), times)...), end...)
	}
	escapes := `"` + string(bytes.Repeat([]byte(`\n`), 2000)) + `",`
	return [][]byte{
		fill(`{"a":["`, `x`, `"]}`),
		fill(`{"a":[`, escapes, `1]}`),
		fill(`{"a":["`, `\n`, `"]}`),
		fill(`{"a":[`+string(bytes.Repeat([]byte(`[],`), 700_000))+`"`, `x`, `"]}`),
		fill(`{"a":1,`, "//\n", `}`),
	}
}

// runHostile sends such frames over many connections at once. One connection of three closes midway, one when all is sent, one
// waits for the answer.
func runHostile(o options) result {
	requests := [][]byte{}
	for i, body := range hostileBodies() {
		requests = append(requests, registerRequest("hostile", 0, 12000, i, body))
	}
	end := time.Now().Add(time.Duration(o.seconds * float64(time.Second)))
	start := time.Now()
	var group sync.WaitGroup
	var lock sync.Mutex
	latencies := []int64{}
	for i := 0; i < o.connections; i++ {
		group.Add(1)
		go func(first int) {
			defer group.Done()
			for turn := first; time.Now().Before(end); turn++ {
				at := now()
				sendHostile(o.address, requests[turn%len(requests)], turn%3, end)
				lock.Lock()
				latencies = append(latencies, now()-at)
				lock.Unlock()
			}
		}(i)
	}
	group.Wait()
	return summarize(latencies, 0, time.Since(start))
}

func sendHostile(address string, request []byte, kind int, end time.Time) {
	connection, err := net.Dial("tcp4", address)
	if err != nil {
		time.Sleep(10 * time.Millisecond)
		return
	}
	defer connection.Close()
	connection.SetDeadline(end.Add(2 * time.Second))
	if kind == 0 {
		request = request[:12_000_000]
	}
	if _, err = connection.Write(request); err == nil && kind == 2 {
		io.CopyN(io.Discard, connection, 8)
	}
}
