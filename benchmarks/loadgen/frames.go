package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"strconv"
)

const version = 479

func frame(header string, body []byte) []byte {
	out := make([]byte, 8, 8+len(header)+len(body))
	binary.BigEndian.PutUint32(out, uint32(4+len(header)+len(body)))
	binary.BigEndian.PutUint32(out[4:], uint32(len(header)))
	out = append(out, header...)
	return append(out, body...)
}

func topicName(i int) string { return fmt.Sprintf("bench_topic_%05d", i) }

// routeRequest is code 105 as a Java client writes it; the opaque is spliced in by the caller for speed.
func routeRequest(topic int, opaque int) []byte {
	header := `{"code":105,"extFields":{"topic":"` + topicName(topic) + `"},"flag":0,"language":"JAVA","opaque":` +
		strconv.Itoa(opaque) + `,"serializeTypeCurrentRPC":"JSON","version":479}`
	return frame(header, nil)
}

// registerBody is the registration of a 5.3 master: `changed` topics get another queue count and the data version moves with `counter`.
// The stamp of the mappings is another one each time, as real brokers write it.
func registerBody(topics, counter, changed int, stamp int64) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, `{"filterServerList":[],"topicConfigSerializeWrapper":{"dataVersion":{"counter":%d,"stateVersion":0,"timestamp":1700000000000},`, counter)
	fmt.Fprintf(&b, `"mappingDataVersion":{"counter":0,"stateVersion":0,"timestamp":%d},"topicConfigTable":{`, stamp)
	for i := 0; i < topics; i++ {
		if i > 0 {
			b.WriteByte(',')
		}
		queues := 8
		if i < changed {
			queues = 8 + counter%7
		}
		name := topicName(i)
		fmt.Fprintf(&b, `"%s":{"attributes":{},"order":false,"perm":6,"readQueueNums":%d,"topicFilterType":"SINGLE_TAG","topicName":"%s","topicSysFlag":0,"writeQueueNums":%d}`, name, queues, name, queues)
	}
	b.WriteString(`},"topicQueueMappingDetailMap":{},"topicQueueMappingInfoMap":{}}}`)
	return b.Bytes()
}

func registerRequest(broker string, id, port, opaque int, body []byte) []byte {
	crc := crc32.ChecksumIEEE(body) & 0x7FFFFFFF
	header := fmt.Sprintf(`{"code":103,"extFields":{"brokerId":"%d","bodyCrc32":"%d","clusterName":"bench","brokerAddr":"127.0.0.1:%d",`+
		`"enableActingMaster":"false","haServerAddr":"127.0.0.1:%d","compressed":"false","brokerName":"%s"},"flag":0,"language":"JAVA",`+
		`"opaque":%d,"serializeTypeCurrentRPC":"JSON","version":%d}`, id, crc, port, port+1, broker, opaque, version)
	request := frame(header, body)
	if len(request) > frameBytesMax {
		fail("a registration of %d bytes is longer than a frame may be (%d bytes); give fewer -topics", len(request), frameBytesMax)
	}
	return request
}

// frameBytesMax is the longest frame that a name server accepts, also Java's. It closes the connection of a longer one.
const frameBytesMax = 16 << 20
