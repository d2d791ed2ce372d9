// An HTTP service that asks Tidegate before each request, with the standard library alone.
//
//	go run . -tidegate http://127.0.0.1:8080 -listen 127.0.0.1:8000
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"net/http"
	"strconv"
	"time"
)

// Decision is what a daemon answers. Rule, Limit and Remaining are those of the tightest rule, absent where none applied.
type Decision struct {
	Allowed      bool   `json:"allowed"`
	Status       int    `json:"status"`
	Message      string `json:"message"`
	Rule         string `json:"rule"`
	Limit        *int64 `json:"limit"`
	Remaining    *int64 `json:"remaining"`
	RetryAfterMs *int64 `json:"retry_after_ms"` // nil where waiting does not help
	Degraded     bool   `json:"degraded"`
}

// Client asks one daemon. The deadline of a call is its context's, or Timeout.
type Client struct {
	Address string
	Timeout time.Duration
	HTTP    *http.Client
}

// Check decides one request, and charges cost where it may pass.
func (c *Client) Check(ctx context.Context, attributes map[string]string, cost int64) (*Decision, error) {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	body, err := json.Marshal(map[string]any{"attributes": attributes, "cost": cost})
	if err != nil {
		return nil, err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.Address+"/v1/check", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	reply, err := c.HTTP.Do(request)
	if err != nil {
		return nil, err
	}
	defer reply.Body.Close()
	if reply.StatusCode != http.StatusOK {
		var refused struct {
			Error struct{ Code, Message, Field string } `json:"error"`
		}
		if json.NewDecoder(reply.Body).Decode(&refused) == nil && refused.Error.Message != "" {
			return nil, errors.New(refused.Error.Message)
		}
		return nil, fmt.Errorf("tidegate answered %s", reply.Status)
	}
	decision := new(Decision)
	return decision, json.NewDecoder(reply.Body).Decode(decision)
}

// Limit asks before each request. While no daemon answers, requests pass where failOpen says so.
func (c *Client) Limit(attributes func(*http.Request) map[string]string, failOpen bool, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		decision, err := c.Check(r.Context(), attributes(r), 1)
		switch {
		case err != nil && failOpen:
			log.Printf("no decision, the request passes: %v", err)
		case err != nil:
			http.Error(w, "no rate limiter answers", http.StatusServiceUnavailable)
			return
		default:
			if decision.Limit != nil {
				w.Header().Set("X-RateLimit-Limit", strconv.FormatInt(*decision.Limit, 10))
				w.Header().Set("X-RateLimit-Remaining", strconv.FormatInt(*decision.Remaining, 10))
			}
			if !decision.Allowed {
				if wait := decision.RetryAfterMs; wait != nil {
					// Whole seconds, rounded up: who comes back then is admitted.
					w.Header().Set("Retry-After", strconv.FormatInt(max(1, (*wait+999)/1000), 10))
				}
				http.Error(w, decision.Message, decision.Status)
				return
			}
		}
		next.ServeHTTP(w, r)
	})
}

func max(a, b int64) int64 {
	if a > b {
		return a
	}
	return b
}

func main() {
	address := flag.String("tidegate", "http://127.0.0.1:8080", "the daemon")
	listen := flag.String("listen", "127.0.0.1:8000", "where this service listens")
	flag.Parse()
	client := &Client{Address: *address, Timeout: 250 * time.Millisecond, HTTP: http.DefaultClient}
	hello := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, "hello") })
	// Authenticate first, and name the user: a header that a client may write names nobody.
	who := func(r *http.Request) map[string]string {
		return map[string]string{"user": r.Header.Get("X-User"), "method": r.Method, "path": r.URL.Path}
	}
	log.Fatal(http.ListenAndServe(*listen, client.Limit(who, true, hello)))
}
