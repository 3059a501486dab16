// Command histories judges exported histories (history.jsonl) with Porcupine. For each file it prints one JSON object: the verdict
// of each key, "valid", "violated" or "unknown".
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"sort"
	"strings"
	"time"

	"github.com/anishathalye/porcupine"
)

// Time limit of the check of one key.
const timeout = 20 * time.Second

// A line of a history, as in replicated_namesrv/verify/operation_history.py.
type operation struct {
	Op      string          `json:"op"`
	Key     string          `json:"key"`
	Value   json.RawMessage `json:"value"`
	StartNs int64           `json:"start_ns"`
	EndNs   *int64          `json:"end_ns"`
	Outcome string          `json:"outcome"`
}

// What an operation does to an object, which is a map from components to values. A KV entry has the component "".
type action struct {
	isRead    bool
	component string
	value     string
	isDelete  bool
}

// A state or the answer to a read: the present components with their values, sorted.
type state string

func stateOf(values map[string]string) state {
	lines := make([]string, 0, len(values))
	for component, value := range values {
		lines = append(lines, component+"\x00"+value)
	}
	sort.Strings(lines)
	return state(strings.Join(lines, "\x01"))
}

func (s state) values() map[string]string {
	found := map[string]string{}
	for _, line := range strings.Split(string(s), "\x01") {
		if component, value, ok := strings.Cut(line, "\x00"); ok {
			found[component] = value
		}
	}
	return found
}

var model = porcupine.Model{
	Init: func() interface{} { return state("") },
	Step: func(before, input, output interface{}) (bool, interface{}) {
		now, act := before.(state), input.(action)
		if act.isRead {
			return now == output.(state), now
		}
		values := now.values()
		if act.isDelete {
			delete(values, act.component)
		} else {
			values[act.component] = act.value
		}
		return true, stateOf(values)
	},
}

// A member of a route: a name, or a name with a version.
func member(raw json.RawMessage) (string, string) {
	var name string
	if json.Unmarshal(raw, &name) == nil {
		return name, ""
	}
	var pair []json.RawMessage
	if err := json.Unmarshal(raw, &pair); err != nil || len(pair) != 2 || json.Unmarshal(pair[0], &name) != nil {
		panic(fmt.Sprintf("%s is not a member", raw))
	}
	return name, string(pair[1])
}

func isNull(raw json.RawMessage) bool { return len(raw) == 0 || string(raw) == "null" }

func converted(op operation) porcupine.Operation {
	act, answer := action{}, map[string]string{}
	switch op.Op {
	case "get", "read":
		act.isRead = true
		if !isNull(op.Value) {
			answer[""] = string(op.Value)
		}
	case "put", "write":
		act.value, act.isDelete = string(op.Value), isNull(op.Value)
	case "delete":
		act.isDelete = true
	case "route":
		act.isRead = true
		var members []json.RawMessage
		if err := json.Unmarshal(op.Value, &members); err != nil {
			panic(err)
		}
		for _, raw := range members {
			name, version := member(raw)
			answer[name] = version
		}
	case "register":
		act.component, act.value = member(op.Value)
	case "unregister":
		act.component, _ = member(op.Value)
		act.isDelete = true
	default:
		panic("unknown operation " + op.Op)
	}
	end := int64(math.MaxInt64)
	if op.Outcome == "ok" {
		end = *op.EndNs
	}
	return porcupine.Operation{Input: act, Output: stateOf(answer), Call: op.StartNs, Return: end}
}

// A failed operation had no effect, and a read of unknown outcome has no answer.
func counts(op operation) bool {
	isRead := op.Op == "get" || op.Op == "read" || op.Op == "route"
	return op.Outcome == "ok" || (op.Outcome == "indeterminate" && !isRead)
}

func judged(path string) map[string]string {
	file, err := os.Open(path)
	if err != nil {
		panic(err)
	}
	defer file.Close()
	keys := map[string][]porcupine.Operation{}
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var op operation
		if err := json.Unmarshal(lines.Bytes(), &op); err != nil {
			panic(err)
		}
		if counts(op) {
			keys[op.Key] = append(keys[op.Key], converted(op))
		}
	}
	if err := lines.Err(); err != nil {
		panic(err)
	}
	verdicts := map[porcupine.CheckResult]string{porcupine.Ok: "valid", porcupine.Illegal: "violated", porcupine.Unknown: "unknown"}
	found := map[string]string{}
	for key, operations := range keys {
		found[key] = verdicts[porcupine.CheckOperationsTimeout(model, operations, timeout)]
	}
	return found
}

func main() {
	output := json.NewEncoder(os.Stdout)
	for _, path := range os.Args[1:] {
		if err := output.Encode(map[string]interface{}{"file": path, "keys": judged(path)}); err != nil {
			panic(err)
		}
	}
}
