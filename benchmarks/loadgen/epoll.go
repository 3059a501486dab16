package main

import (
	"bytes"
	"encoding/binary"
	"io"
	"math/rand"
	"net"

	"runtime"
	"strconv"
	"syscall"
	"time"
)

type options struct {
	address                                      string
	connections, inFlight, topics, brokers, rate int
	seconds                                      float64
	change, broker                               string
	accessKey, secret, certificate, key          string
}

// connection is one socket with the requests that wait for an answer, by opaque.
type connection struct {
	fd     int
	buffer []byte
	filled int
	sentAt []int64 // by opaque modulo length
	next   int     // next opaque
	out    []byte
}

func dial(address string) int {
	tcp, err := net.ResolveTCPAddr("tcp4", address)
	if err != nil {
		fail("%s: %v", address, err)
	}
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err != nil {
		fail("socket: %v", err)
	}
	to := &syscall.SockaddrInet4{Port: tcp.Port}
	copy(to.Addr[:], tcp.IP.To4())
	for began := now(); ; time.Sleep(20 * time.Millisecond) {
		if err = syscall.Connect(fd, to); err == nil || err == syscall.EISCONN {
			break
		}
		if now()-began > connectSeconds*1e9 {
			fail("%s did not accept a connection for %d s: %v", address, connectSeconds, err)
		}
	}
	syscall.SetsockoptInt(fd, syscall.IPPROTO_TCP, syscall.TCP_NODELAY, 1)
	return fd
}

func now() int64 {
	return int64(time.Since(origin))
}

var origin = time.Now()

// connectSeconds is the time that a server may take to accept a connection.
const connectSeconds = 10

// window is the most requests of one connection without an answer whose latency is known.
const window = 1 << 12

// runRoute asks for routes until the time is up: `inFlight` requests on each connection, or evenly spaced at `rate`.
func runRoute(o options) result {
	if o.certificate != "" {
		return runRouteTLS(o)
	}
	runtime.LockOSThread()
	prefixes := make([][]byte, o.topics)
	for i := range prefixes {
		prefixes[i] = routePrefix(o, topicName(i))
	}
	suffix := []byte(`,"serializeTypeCurrentRPC":"JSON","version":479}`)
	random := rand.New(rand.NewSource(1))
	epoll, _ := syscall.EpollCreate1(0)
	connections := make([]*connection, o.connections)
	for i := range connections {
		c := &connection{fd: dial(o.address), buffer: make([]byte, 1<<18), sentAt: make([]int64, window)}
		connections[i] = c
		syscall.SetNonblock(c.fd, true)
		syscall.EpollCtl(epoll, syscall.EPOLL_CTL_ADD, c.fd, &syscall.EpollEvent{Events: syscall.EPOLLIN, Fd: int32(i)})
	}
	enqueue := func(c *connection, at int64) {
		digits := strconv.AppendInt(make([]byte, 0, 12), int64(c.next), 10)
		prefix := prefixes[random.Intn(o.topics)]
		headerLength := len(prefix) + len(digits) + len(suffix)
		var head [8]byte
		binary.BigEndian.PutUint32(head[:], uint32(4+headerLength))
		binary.BigEndian.PutUint32(head[4:], uint32(headerLength))
		c.out = append(append(append(append(c.out, head[:]...), prefix...), digits...), suffix...)
		c.sentAt[c.next%window] = at
		c.next++
	}
	flush := func(c *connection) {
		for sent := 0; sent < len(c.out); {
			n, err := syscall.Write(c.fd, c.out[sent:])
			if err == syscall.EAGAIN { // the rest follows when answers were read: the server may wait for that
				c.out = append(c.out[:0], c.out[sent:]...)
				return
			}
			if err != nil {
				fail("write to %s: %v", o.address, err)
			}
			sent += n
		}
		c.out = c.out[:0]
	}
	latencies := make([]int64, 0, 1<<22)
	failures := 0
	start := now()
	end := start + int64(o.seconds*1e9)
	var interval, due int64
	if o.rate > 0 {
		interval, due = int64(1e9)/int64(o.rate), start
	} else {
		for _, c := range connections {
			for i := 0; i < o.inFlight; i++ {
				enqueue(c, now())
			}
			flush(c)
		}
	}
	events := make([]syscall.EpollEvent, 256)
	turn := 0
	for now() < end {
		wait := 100
		if interval > 0 {
			for due <= now() { // the latency counts from when the request was due, so a stall is not hidden
				c := connections[turn%len(connections)]
				turn++
				enqueue(c, due)
				flush(c)
				due += interval
			}
			wait = max(0, int((due-now())/1e6)) // a negative time-out would wait for ever
		}
		for _, c := range connections {
			if len(c.out) > 0 {
				flush(c)
				wait = min(wait, 1)
			}
		}
		n, _ := syscall.EpollWait(epoll, events, wait)
		for i := 0; i < n; i++ {
			c := connections[events[i].Fd]
			read, err := syscall.Read(c.fd, c.buffer[c.filled:])
			if err == syscall.EAGAIN {
				continue
			}
			if err != nil || read <= 0 {
				fail("%s closed a connection (read %d, %v) with %d answers received", o.address, read, err, len(latencies))
			}
			c.filled += read
			at := now()
			consumed := 0
			for c.filled-consumed >= 8 {
				total := int(binary.BigEndian.Uint32(c.buffer[consumed:])) + 4
				if total > len(c.buffer) {
					c.buffer = append(c.buffer, make([]byte, total)...)
				}
				if c.filled-consumed < total {
					break
				}
				header := c.buffer[consumed+8 : consumed+8+int(binary.BigEndian.Uint32(c.buffer[consumed+4:])&0xffffff)]
				opaque, code := parse(header)
				if code != 0 || total < 8+len(header)+1 {
					failures++
				}
				latencies = append(latencies, at-c.sentAt[opaque%window])
				consumed += total
				if interval == 0 {
					enqueue(c, at)
				}
			}
			copy(c.buffer, c.buffer[consumed:c.filled])
			c.filled -= consumed
			if len(c.out) > 0 {
				flush(c)
			}
		}
	}
	return summarize(latencies, failures, time.Duration(now()-start))
}

// parse finds opaque and code in the JSON header of an answer.
func parse(header []byte) (opaque, code int) {
	return number(header, []byte(`"opaque":`)), number(header, []byte(`"code":`))
}

func number(header, key []byte) int {
	at := bytes.Index(header, key)
	if at < 0 {
		fail("an answer has no %s: %q", key, header)
	}
	value := 0
	for i := at + len(key); i < len(header) && header[i] >= '0' && header[i] <= '9'; i++ {
		value = value*10 + int(header[i]-'0')
	}
	return value
}

// call sends one request over a blocking socket and reads the whole answer.
func call(fd int, request, scratch []byte) (code int) {
	for sent := 0; sent < len(request); {
		n, err := syscall.Write(fd, request[sent:])
		if err != nil {
			fail("write of a registration after %d of %d bytes: %v", sent, len(request), err)
		}
		sent += n
	}
	file := fdReader(fd)
	if _, err := io.ReadFull(file, scratch[:8]); err != nil {
		fail("no answer to a registration: %v", err)
	}
	total := int(binary.BigEndian.Uint32(scratch)) - 4
	headerLength := int(binary.BigEndian.Uint32(scratch[4:]) & 0xffffff)
	if _, err := io.ReadFull(file, scratch[:total]); err != nil {
		fail("no answer to a registration: %v", err)
	}
	return number(scratch[:headerLength], []byte(`"code":`))
}

type fdReader int

func (f fdReader) Read(p []byte) (int, error) {
	n, err := syscall.Read(int(f), p)
	if n == 0 && err == nil {
		return 0, io.EOF
	}
	return n, err
}

// runRegister registers one broker over and over, one request at a time.
func runRegister(o options) result {
	fd := dial(o.address)
	scratch := make([]byte, 1<<24)
	port := 11000
	requests := [][]byte{}
	changed := map[string]int{"none": 0, "one": 1, "all": o.topics}[o.change]
	const rounds = 7
	for i := 0; i < rounds; i++ {
		counter := i
		if o.change == "none" {
			counter = 0
		}
		body := registerBody(o.topics, counter, changed, 1700000000000+int64(i))
		requests = append(requests, registerRequest(o.broker, 0, port, i, body))
	}
	failures := 0
	latencies := []int64{}
	start := now()
	end := start + int64(o.seconds*1e9)
	for i := 0; now() < end; i++ {
		at := now()
		if call(fd, requests[i%rounds], scratch) != 0 {
			failures++
		}
		latencies = append(latencies, now()-at)
	}
	return summarize(latencies, failures, time.Duration(now()-start))
}

// runSeed registers `brokers` masters with `topics` topics each and keeps their connections and registrations.
func runSeed(o options) {
	scratch := make([]byte, 1<<24)
	body := registerBody(o.topics, 0, 0, 1700000000000)
	for i := 0; i < o.brokers; i++ {
		request := registerRequest("bench-"+strconv.Itoa(i), 0, 11000+10*i, i, body)
		fd := dial(o.address)
		if code := call(fd, request, scratch); code != 0 {
			fail("broker %d was answered with code %d", i, code)
		}
		go func() {
			own := make([]byte, 1<<16)
			for range time.Tick(30 * time.Second) {
				call(fd, request, own)
			}
		}()
	}
}

// runIdle opens connections that send nothing.
func runIdle(o options) {
	raise := syscall.Rlimit{Cur: 65536, Max: 65536}
	syscall.Setrlimit(syscall.RLIMIT_NOFILE, &raise)
	for i := 0; i < o.connections; i++ {
		dial(o.address)
	}
}
