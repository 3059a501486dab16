// Command loadgen drives one RocketMQ name server over raw epoll from one thread, so that it costs less than what it measures.
//
//	loadgen route    -addr 127.0.0.1:9876 -connections 16 -in-flight 1 -seconds 5 -topics 1000 [-rate N] [-access-key K -secret S] [-certificate PEM -key PEM]
//	loadgen register -addr 127.0.0.1:9876 -seconds 5 -topics 1000 -change none|one|all [-broker NAME] [-connections N]
//	loadgen seed     -addr 127.0.0.1:9876 -brokers 8 -topics 1000      (registers and stays until stdin closes)
//	loadgen hostile  -addr 127.0.0.1:9876 -connections 40 -seconds 5    (registrations of 16 MB that are costly to read)
//	loadgen idle     -addr 127.0.0.1:9876 -connections 10000           (connects, says nothing, stays until stdin closes)
//
// It prints one JSON document: requests, errors, seconds, latencies in microseconds. The CPU time of the server is read by the caller.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"sort"
	"time"
)

type result struct {
	Requests  int     `json:"requests"`
	Errors    int     `json:"errors"`
	Seconds   float64 `json:"seconds"`
	P50Micros float64 `json:"p50_us"`
	P90Micros float64 `json:"p90_us"`
	P99Micros float64 `json:"p99_us"`
	MaxMicros float64 `json:"max_us"`
}

func summarize(latencies []int64, errors int, elapsed time.Duration) result {
	sort.Slice(latencies, func(i, j int) bool { return latencies[i] < latencies[j] })
	at := func(q float64) float64 {
		if len(latencies) == 0 {
			return 0
		}
		return float64(latencies[int(q*float64(len(latencies)-1))]) / 1000
	}
	return result{len(latencies), errors, elapsed.Seconds(), at(0.5), at(0.9), at(0.99), at(1)}
}

// fail prints the time and the reason, and ends the program with code 1. Code 2 is a crash, for which Go prints the stack.
func fail(format string, arguments ...any) {
	fmt.Fprintf(os.Stderr, "loadgen %s, after %.1f s: "+format+"\n", append([]any{mode, time.Since(origin).Seconds()}, arguments...)...)
	os.Exit(1)
}

// mode is the first argument.
var mode string

func main() {
	if len(os.Args) < 2 {
		fail("give one of: route, register, hostile, seed, idle")
	}
	mode = os.Args[1]
	flags := flag.NewFlagSet(os.Args[1], flag.ExitOnError)
	var o options
	flags.StringVar(&o.address, "addr", "127.0.0.1:9876", "HOST:PORT of the name server")
	flags.IntVar(&o.connections, "connections", 1, "connections held at once")
	flags.IntVar(&o.inFlight, "in-flight", 1, "requests in flight on each connection")
	flags.Float64Var(&o.seconds, "seconds", 5, "length of the measurement")
	flags.IntVar(&o.topics, "topics", 1000, "topics asked for or registered")
	flags.IntVar(&o.brokers, "brokers", 8, "brokers registered by seed")
	flags.IntVar(&o.rate, "rate", 0, "requests a second in all, evenly spaced; 0: as fast as answers come")
	flags.StringVar(&o.change, "change", "none", "topics that differ from one registration to the next: none, one or all")
	flags.StringVar(&o.broker, "broker", "bench-0", "brokerName of register")
	flags.StringVar(&o.accessKey, "access-key", "", "route: sign with this access key")
	flags.StringVar(&o.secret, "secret", "", "route: secret of the access key")
	flags.StringVar(&o.certificate, "certificate", "", "route: speak TLS with this client certificate, one request in flight")
	flags.StringVar(&o.key, "key", "", "route: key of the certificate")
	flags.Parse(os.Args[2:])
	switch os.Args[1] {
	case "route":
		print(runRoute(o))
	case "register":
		print(runRegister(o))
	case "hostile":
		print(runHostile(o))
	case "seed":
		runSeed(o)
		fmt.Println("ready")
		io.Copy(io.Discard, os.Stdin)
	case "idle":
		runIdle(o)
		fmt.Println("ready")
		io.Copy(io.Discard, os.Stdin)
	default:
		fail("%s: unknown; give one of: route, register, hostile, seed, idle", os.Args[1])
	}
}

func print(r result) {
	json.NewEncoder(os.Stdout).Encode(r)
}
