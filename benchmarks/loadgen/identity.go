package main

import (
	"bufio"
	"crypto/hmac"
	"crypto/sha1"
	"crypto/tls"
	"encoding/base64"
	"encoding/binary"
	"io"
	"math/rand"
	"strconv"
	"sync"
	"time"
)

// routePrefix is a route query up to its opaque, signed as AclClientRPCHook does if there is an access key.
func routePrefix(o options, topic string) []byte {
	identity := ""
	if o.accessKey != "" {
		mac := hmac.New(sha1.New, []byte(o.secret))
		mac.Write([]byte(o.accessKey + topic)) // the values of all fields, in the order of their names
		identity = `"AccessKey":"` + o.accessKey + `","Signature":"` + base64.StdEncoding.EncodeToString(mac.Sum(nil)) + `",`
	}
	return []byte(`{"code":105,"extFields":{` + identity + `"topic":"` + topic + `"},"flag":0,"language":"JAVA","opaque":`)
}

// runRouteTLS asks for routes over TLS with a client certificate, one request in flight on each connection. The certificate of the
// server is not verified: this costs the server nothing.
func runRouteTLS(o options) result {
	certificate, err := tls.LoadX509KeyPair(o.certificate, o.key)
	if err != nil {
		fail("certificate: %v", err)
	}
	settings := &tls.Config{Certificates: []tls.Certificate{certificate}, InsecureSkipVerify: true}
	var all []int64
	var failures int
	var lock sync.Mutex
	var done sync.WaitGroup
	start := now()
	end := start + int64(o.seconds*1e9)
	for i := 0; i < o.connections; i++ {
		connection, err := tls.Dial("tcp", o.address, settings)
		if err != nil {
			fail("connect to %s: %v", o.address, err)
		}
		done.Add(1)
		go func(seed int64) {
			defer done.Done()
			random, reader := rand.New(rand.NewSource(seed)), bufio.NewReaderSize(connection, 1<<16)
			var latencies []int64
			wrong := 0
			for opaque := 0; now() < end; opaque++ {
				header := append(routePrefix(o, topicName(random.Intn(o.topics))), strconv.Itoa(opaque)...)
				at := now()
				if _, err := connection.Write(frame(string(header)+`,"serializeTypeCurrentRPC":"JSON","version":479}`, nil)); err != nil {
					fail("write to %s: %v", o.address, err)
				}
				var sizes [8]byte
				if _, err := io.ReadFull(reader, sizes[:]); err != nil {
					fail("read from %s: %v", o.address, err)
				}
				rest := make([]byte, binary.BigEndian.Uint32(sizes[:])-4)
				if _, err := io.ReadFull(reader, rest); err != nil {
					fail("read from %s: %v", o.address, err)
				}
				length := int(binary.BigEndian.Uint32(sizes[4:]) & 0xffffff)
				if _, code := parse(rest[:length]); code != 0 || len(rest) == length {
					wrong++
				}
				latencies = append(latencies, now()-at)
			}
			lock.Lock()
			defer lock.Unlock()
			all, failures = append(all, latencies...), failures+wrong
		}(int64(i))
	}
	done.Wait()
	return summarize(all, failures, time.Duration(now()-start))
}
