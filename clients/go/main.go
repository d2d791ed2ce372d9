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
	"io"
	"log"
	"net/http"
	"net/url"
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
	DelayMs      int64  `json:"delay_ms"`       // how long to hold an admitted request back, by a rule that throttles
	Use          string `json:"use"`            // what to use instead, by a rule with on_deny; empty where nothing is named
	Degraded     bool   `json:"degraded"`
}

// Away says that no daemon decided. Every other error is a mistake: it lets no request pass.
type Away struct{ Cause error }

func (a *Away) Error() string { return fmt.Sprintf("no daemon answered: %v", a.Cause) }
func (a *Away) Unwrap() error { return a.Cause }

// The longest body that a daemon reads. It may close the connection while a longer one is still being sent, which
// would look as if no daemon answered: then whoever fills a value could pass every limit.
const bodyBytesMax = 1 << 20

// Client asks one daemon. The deadline of a call is its context's, or Timeout.
type Client struct {
	Address string
	Timeout time.Duration
	HTTP    *http.Client
}

// New refuses an address that can never be asked: later it would look as if no daemon answered.
func New(address string, timeout time.Duration) (*Client, error) {
	at, err := url.Parse(address)
	if err != nil || (at.Scheme != "http" && at.Scheme != "https") || at.Hostname() == "" {
		return nil, fmt.Errorf("the daemon's address is %q; expected http://HOST:PORT", address)
	}
	if timeout <= 0 {
		return nil, fmt.Errorf("the timeout is %v; expected more than 0", timeout)
	}
	return &Client{Address: address, Timeout: timeout, HTTP: http.DefaultClient}, nil
}

// Check decides one request, and charges cost where it may pass. It fails with *Away where no daemon answers.
func (c *Client) Check(ctx context.Context, attributes map[string]string, cost int64) (*Decision, error) {
	ctx, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	var body bytes.Buffer
	write := json.NewEncoder(&body)
	write.SetEscapeHTML(false) // "&" as one byte, not as six
	if err := write.Encode(map[string]any{"attributes": attributes, "cost": cost}); err != nil {
		return nil, err
	}
	if body.Len() > bodyBytesMax {
		return nil, fmt.Errorf("a body has at most %d bytes, and this one has %d", bodyBytesMax, body.Len())
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.Address+"/v1/check", &body)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	reply, err := c.HTTP.Do(request)
	if err != nil {
		return nil, &Away{err}
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(io.LimitReader(reply.Body, bodyBytesMax))
	if err != nil {
		return nil, &Away{err}
	}
	switch reply.StatusCode {
	case http.StatusOK:
		return read(c.Address, text)
	// A daemon that starts, drains or is crowded decides nothing: it is as good as away.
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return nil, &Away{errors.New(reply.Status)}
	}
	var refused struct {
		Error struct{ Code, Message, Field string } `json:"error"`
	}
	if json.Unmarshal(text, &refused) == nil && refused.Error.Message != "" {
		return nil, fmt.Errorf("tidegate refused: %s %s", refused.Error.Message, refused.Error.Field)
	}
	return nil, fmt.Errorf("%s answered %s", c.Address, reply.Status)
}

func read(address string, text []byte) (*Decision, error) {
	decision := new(Decision)
	if err := json.Unmarshal(text, decision); err != nil || decision.Status == 0 {
		return nil, fmt.Errorf("%s answered 200 with something else than a decision; is it a Tidegate?", address)
	}
	return decision, nil
}

// Limit asks before each request. While no daemon answers, requests pass where failOpen says so. What could not be
// asked for another reason is answered with 500: a client that can bring that about must not pass by it.
func (c *Client) Limit(attributes func(*http.Request) map[string]string, failOpen bool, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		decision, err := c.Check(r.Context(), attributes(r), 1)
		var away *Away
		switch {
		case r.Context().Err() != nil:
			return // The client has gone: nobody waits for an answer, and nothing was decided.
		case errors.As(err, &away) && failOpen:
			log.Printf("no decision, the request passes: %v", err)
		case errors.As(err, &away):
			log.Printf("no decision, the request is refused: %v", err)
			http.Error(w, "no rate limiter answers", http.StatusServiceUnavailable)
			return
		case err != nil:
			log.Printf("the request was not decided: %v", err)
			http.Error(w, "the request was not decided", http.StatusInternalServerError)
			return
		case !obey(w, r, decision):
			return
		}
		next.ServeHTTP(w, r)
	})
}

// obey writes what a client learns of its limit, and says whether its request may pass now.
func obey(w http.ResponseWriter, r *http.Request, decision *Decision) bool {
	if decision.Limit != nil && decision.Remaining != nil {
		w.Header().Set("X-RateLimit-Limit", strconv.FormatInt(*decision.Limit, 10))
		w.Header().Set("X-RateLimit-Remaining", strconv.FormatInt(*decision.Remaining, 10))
	}
	if !decision.Allowed {
		if wait := decision.RetryAfterMs; wait != nil {
			// Whole seconds, rounded up: who comes back then is admitted.
			w.Header().Set("Retry-After", strconv.FormatInt(max(1, (*wait+999)/1000), 10))
		}
		message := decision.Message
		if message == "" {
			message = "Too many requests"
		}
		http.Error(w, message, decision.Status)
		return false
	}
	if decision.DelayMs <= 0 {
		return true
	}
	w.Header().Set("X-RateLimit-Delay-Ms", strconv.FormatInt(decision.DelayMs, 10))
	turn := time.NewTimer(time.Duration(decision.DelayMs) * time.Millisecond)
	defer turn.Stop()
	select {
	case <-turn.C:
		return true
	case <-r.Context().Done():
		return false
	}
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
	client, err := New(*address, 250*time.Millisecond)
	if err != nil {
		log.Fatal(err)
	}
	hello := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, "hello") })
	// Authenticate first, and name the user: a header that a client may write names nobody.
	who := func(r *http.Request) map[string]string {
		return map[string]string{"user": r.Header.Get("X-User"), "method": r.Method, "path": r.URL.Path}
	}
	log.Fatal(http.ListenAndServe(*listen, client.Limit(who, true, hello)))
}
