// The function under test on AWS's module aws-lambda-go: what it does is in tests/compat/README.md.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/aws/aws-lambda-go/events"
	"github.com/aws/aws-lambda-go/lambda"
	"github.com/aws/aws-lambda-go/lambdacontext"
)

type asked struct {
	Do    string          `json:"do"`
	Value json.RawMessage `json:"value"`
	// A function URL's event asks in its query.
	Query map[string]string `json:"queryStringParameters"`
}

// OutOfStock is an error whose type's name the caller sees.
type OutOfStock struct{}

func (*OutOfStock) Error() string { return "no pears left" }

// Whoever wants to hear of the function's end.
var watcher net.Conn

func main() {
	if os.Getenv("WATCHED") == "" {
		lambda.Start(handler)
	}
	// Registers an extension, as only those who do hear of the end.
	lambda.StartWithOptions(handler, lambda.WithEnableSIGTERM(func() {
		if watcher != nil {
			fmt.Fprint(watcher, "SIGTERM")
			watcher.Close()
		}
		os.Exit(0)
	}))
}

func handler(ctx context.Context, event asked) (any, error) {
	if event.Query != nil {
		event.Do = event.Query["do"]
	}
	about, _ := lambdacontext.FromContext(ctx)
	switch event.Do {
	case "echo":
		return event.Value, nil
	case "raise":
		return nil, &OutOfStock{}
	case "print":
		var line string
		if err := json.Unmarshal(event.Value, &line); err != nil {
			return nil, err
		}
		fmt.Println(line)
		return "printed", nil
	case "sleep":
		time.Sleep(time.Duration(number(event.Value) * float64(time.Second)))
		return "awake", nil
	case "exit":
		os.Exit(int(number(event.Value)))
	case "context":
		deadline, _ := ctx.Deadline()
		told := map[string]any{
			"request_id":  about.AwsRequestID,
			"arn":         about.InvokedFunctionArn,
			"deadline_ms": deadline.UnixMilli(),
			"name":        lambdacontext.FunctionName,
			"memory":      strconv.Itoa(lambdacontext.MemoryLimitInMB),
			"custom":      about.ClientContext.Custom,
		}
		return told, nil
	case "meet":
		return meet(about.AwsRequestID, int(number(event.Value)))
	case "stream":
		return stream(), nil
	case "release":
		return "released", os.WriteFile("/tmp/released", nil, 0o644)
	case "watch":
		var err error
		watcher, err = net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", int(number(event.Value))))
		return "watched", err
	}
	return nil, fmt.Errorf("there is no %s", event.Do)
}

func number(value json.RawMessage) float64 {
	var number float64
	_ = json.Unmarshal(value, &number)
	return number
}

// meet waits until as many invocations are here.
func meet(request string, many int) (int, error) {
	if err := os.MkdirAll("/tmp/meeting", 0o755); err != nil {
		return 0, err
	}
	if err := os.WriteFile(filepath.Join("/tmp/meeting", request), nil, 0o644); err != nil {
		return 0, err
	}
	for {
		here, err := os.ReadDir("/tmp/meeting")
		if err != nil || len(here) >= many {
			return len(here), err
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// stream answers "one" and, once it has been released, "two".
func stream() *events.LambdaFunctionURLStreamingResponse {
	reader, writer := io.Pipe()
	go func() {
		fmt.Fprintln(writer, "one")
		for {
			if _, err := os.Stat("/tmp/released"); err == nil {
				break
			}
			time.Sleep(5 * time.Millisecond)
		}
		fmt.Fprintln(writer, "two")
		writer.Close()
	}()
	return &events.LambdaFunctionURLStreamingResponse{
		StatusCode: 201,
		Headers:    map[string]string{"x-made": "here"},
		Body:       reader,
	}
}
