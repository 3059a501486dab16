// One binary for the comparison with etcd: `bench-etcd server FLAGS…` is etcd itself, `bench-etcd load …` asks a running one.
//
// etcd cannot be installed with `go install` (its module replaces others), so this module wraps etcdmain.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdmain"
)

type result struct {
	Operations int64   `json:"operations"`
	Failures   int64   `json:"failures"`
	Seconds    float64 `json:"seconds"`
	P50Ms      float64 `json:"p50_ms"`
	P99Ms      float64 `json:"p99_ms"`
	MaxMs      float64 `json:"max_ms"`
}

// load runs operations from a number of clients, each with one in flight, for a time, and prints a result as JSON.
func load(arguments []string) error {
	flags := flag.NewFlagSet("load", flag.ExitOnError)
	endpoint := flags.String("endpoint", "", "host:port of one member")
	kind := flags.String("kind", "put", "put, linearizable-get, serializable-get, first-put (time until the next put succeeds) or leader (is it the leader?)")
	clients := flags.Int("clients", 1, "operations in flight")
	seconds := flags.Float64("seconds", 5, "how long")
	valueBytes := flags.Int("value-bytes", 100, "size of a value")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	connections := min(*clients, 16)
	pool := make([]*clientv3.Client, connections)
	for i := range pool {
		client, err := clientv3.New(clientv3.Config{Endpoints: strings.Split(*endpoint, ","), DialTimeout: 5 * time.Second})
		if err != nil {
			return err
		}
		defer client.Close()
		pool[i] = client
	}
	if *kind == "first-put" {
		return firstPut(pool[0])
	}
	if *kind == "leader" {
		status, err := pool[0].Status(context.Background(), *endpoint)
		if err != nil {
			return err
		}
		fmt.Println(status.Leader == status.Header.MemberId)
		return nil
	}
	value := strings.Repeat("x", *valueBytes)
	if _, err := pool[0].Put(context.Background(), "key", value); err != nil {
		return err
	}
	var operations, failures atomic.Int64
	latencies := make([][]float64, *clients)
	started := time.Now()
	end := started.Add(time.Duration(*seconds * float64(time.Second)))
	var group sync.WaitGroup
	for i := 0; i < *clients; i++ {
		group.Add(1)
		go func() {
			defer group.Done()
			client := pool[i%connections]
			for n := 0; time.Now().Before(end); n++ {
				ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
				before := time.Now()
				var err error
				switch *kind {
				case "put":
					_, err = client.Put(ctx, fmt.Sprintf("key-%d-%d", i, n%1000), value)
				case "linearizable-get":
					_, err = client.Get(ctx, "key")
				case "serializable-get":
					_, err = client.Get(ctx, "key", clientv3.WithSerializable())
				default:
					log.Fatalf("unknown kind %q", *kind)
				}
				cancel()
				if err != nil {
					failures.Add(1)
					continue
				}
				operations.Add(1)
				latencies[i] = append(latencies[i], float64(time.Since(before).Microseconds())/1000)
			}
		}()
	}
	group.Wait()
	return report(latencies, operations.Load(), failures.Load(), time.Since(started).Seconds())
}

func firstPut(client *clientv3.Client) error {
	started := time.Now()
	for {
		ctx, cancel := context.WithTimeout(context.Background(), 200*time.Millisecond)
		_, err := client.Put(ctx, "key", "x")
		cancel()
		if err == nil {
			return report([][]float64{{float64(time.Since(started).Microseconds()) / 1000}}, 1, 0, time.Since(started).Seconds())
		}
		if time.Since(started) > 30*time.Second {
			return err
		}
	}
}

func report(latencies [][]float64, operations, failures int64, seconds float64) error {
	var all []float64
	for _, some := range latencies {
		all = append(all, some...)
	}
	sort.Float64s(all)
	r := result{Operations: operations, Failures: failures, Seconds: seconds}
	if len(all) > 0 {
		r.P50Ms, r.P99Ms, r.MaxMs = all[len(all)/2], all[len(all)*99/100], all[len(all)-1]
	}
	return json.NewEncoder(os.Stdout).Encode(r)
}

func main() {
	if len(os.Args) < 2 {
		log.Fatal("usage: bench-etcd server|load …")
	}
	switch os.Args[1] {
	case "server":
		etcdmain.Main(append([]string{"etcd"}, os.Args[2:]...))
	case "load":
		if err := load(os.Args[2:]); err != nil {
			log.Fatal(err)
		}
	default:
		log.Fatalf("unknown command %q", os.Args[1])
	}
}
