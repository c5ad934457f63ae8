// Package contract serves a handler. The environment decides how: as a client of the Lambda Runtime API, as an HTTP server on
// $PORT, or once, with the event on standard input.
package contract

import (
	"bytes"
	"encoding/json"
	"io"
	"log"
	"net/http"
	"os"
)

// Handler makes an answer of an event, both JSON.
type Handler func(event []byte) []byte

// Serve returns after a single event from standard input. As a client or a server it runs until it fails.
func Serve(handler Handler) {
	if api := os.Getenv("AWS_LAMBDA_RUNTIME_API"); api != "" {
		log.Fatal(poll("http://"+api+"/2018-06-01/runtime/invocation/", handler))
	}
	if port := os.Getenv("PORT"); port != "" {
		log.Fatal(http.ListenAndServe(":"+port, web(handler)))
	}
	event, err := io.ReadAll(os.Stdin)
	if err != nil {
		log.Fatal(err)
	}
	os.Stdout.Write(handler(event))
}

func poll(invocation string, handler Handler) error {
	for {
		next, err := http.Get(invocation + "next")
		if err != nil {
			return err
		}
		event, err := io.ReadAll(next.Body)
		next.Body.Close()
		if err != nil {
			return err
		}
		id := next.Header.Get("Lambda-Runtime-Aws-Request-Id")
		answer, err := http.Post(invocation+id+"/response", "application/json", bytes.NewReader(handler(event)))
		if err != nil {
			return err
		}
		// Read to its end; otherwise the connection is not reused.
		io.Copy(io.Discard, answer.Body)
		answer.Body.Close()
	}
}

// The query's parameters are the event.
func web(handler Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		event := map[string]string{}
		for name := range r.URL.Query() {
			event[name] = r.URL.Query().Get(name)
		}
		text, err := json.Marshal(event)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		w.Header().Set("content-type", "application/json")
		w.Write(handler(text))
	})
}
