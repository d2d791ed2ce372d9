package main

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// asked plays one request of a service whose daemon gives one answer to everything. It says whether it passed.
func asked(t *testing.T, status int, answer, path string, ctx context.Context) (*httptest.ResponseRecorder, bool) {
	t.Helper()
	daemon := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(status)
		w.Write([]byte(answer))
	}))
	defer daemon.Close()
	client, err := New(daemon.URL, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	passed := false
	next := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { passed = true })
	who := func(r *http.Request) map[string]string { return map[string]string{"path": path} }
	said := httptest.NewRecorder()
	client.Limit(who, true, next).ServeHTTP(said, httptest.NewRequest("GET", "/", nil).WithContext(ctx))
	return said, passed
}

func TestOnlyAnAbsentDaemonLetsPass(t *testing.T) {
	here := context.Background()
	for _, one := range []struct {
		status int
		answer string
		path   string
		passes bool
		said   int
	}{
		{200, `{"allowed":true,"status":200}`, "/", true, 200},
		{503, "draining", "/", true, 200},
		{413, `{"error":{"code":"body_too_large","message":"too large"}}`, "/", false, 500},
		{404, "no such page", "/", false, 500},
		{200, "<html>", "/", false, 500},
		{200, "{}", "/", false, 500},
		{200, `{"allowed":true,"status":200}`, strings.Repeat("&", 200_000), true, 200},
		{200, `{"allowed":true,"status":200}`, strings.Repeat("&", 1_100_000), false, 500},
	} {
		said, passed := asked(t, one.status, one.answer, one.path, here)
		if passed != one.passes || said.Code != one.said {
			t.Errorf("%d %s: passed %v with %d", one.status, one.answer, passed, said.Code)
		}
	}
	gone, cancel := context.WithCancel(here)
	cancel()
	if _, passed := asked(t, 200, `{"allowed":true,"status":200}`, "/", gone); passed {
		t.Error("a client that hangs up passes")
	}
}

func TestADenialWithoutAMessageHasABody(t *testing.T) {
	said, passed := asked(t, 200, `{"allowed":false,"status":429,"retry_after_ms":1001}`, "/", context.Background())
	if passed || said.Code != 429 || said.Body.String() != "Too many requests\n" || said.Header().Get("Retry-After") != "2" {
		t.Errorf("passed %v with %d %q %v", passed, said.Code, said.Body, said.Header())
	}
}

func TestARequestThatIsThrottledIsHeldBack(t *testing.T) {
	begun := time.Now()
	said, passed := asked(t, 200, `{"allowed":true,"status":200,"delay_ms":120}`, "/", context.Background())
	if !passed || time.Since(begun) < 120*time.Millisecond || said.Header().Get("X-RateLimit-Delay-Ms") != "120" {
		t.Errorf("passed %v after %v with %v", passed, time.Since(begun), said.Header())
	}
}

func TestAnAddressThatCanNeverBeAskedIsRefused(t *testing.T) {
	for _, address := range []string{"127.0.0.1:8080", "localhost:8080", "nonsense", "", "http://", "unix:/run/x"} {
		if _, err := New(address, time.Second); err == nil || !strings.Contains(err.Error(), "expected http://") {
			t.Errorf("%q: %v", address, err)
		}
	}
	client, err := New("http://127.0.0.1:9", time.Second)
	if err != nil {
		t.Fatal(err)
	}
	var away *Away
	if _, err = client.Check(context.Background(), nil, 1); !errors.As(err, &away) {
		t.Errorf("nobody listens: %v", err)
	}
}

// A real daemon, which counts by clients/rules.toml.
func TestADaemonDecides(t *testing.T) {
	address := os.Getenv("TIDEGATE")
	if address == "" {
		t.Skip("TIDEGATE names no daemon")
	}
	client, err := New(address, 10*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	who := map[string]string{"path": "/search", "user": "go-" + strconv.FormatInt(time.Now().UnixNano(), 36)}
	for left := int64(2); left >= 0; left-- {
		decision, err := client.Check(context.Background(), who, 1)
		if err != nil {
			t.Fatal(err)
		}
		if !decision.Allowed || decision.Rule != "search" || *decision.Limit != 3 || *decision.Remaining != left {
			t.Errorf("%d left: %+v", left, decision)
		}
	}
	passed := false
	next := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { passed = true })
	said := httptest.NewRecorder()
	attributes := func(*http.Request) map[string]string { return who }
	client.Limit(attributes, true, next).ServeHTTP(said, httptest.NewRequest("GET", "/", nil))
	wait, err := strconv.Atoi(said.Header().Get("Retry-After"))
	if passed || said.Code != 429 || err != nil || wait < 1 || said.Header().Get("X-RateLimit-Remaining") != "0" {
		t.Errorf("the fourth: passed %v with %d %v", passed, said.Code, said.Header())
	}
	// A mistake is no absence: nobody passes by it.
	var away *Away
	if _, err := client.Check(context.Background(), map[string]string{"": "x"}, 1); err == nil || errors.As(err, &away) {
		t.Errorf("an attribute without a name: %v", err)
	}
	said = httptest.NewRecorder()
	nameless := func(*http.Request) map[string]string { return map[string]string{"": "x"} }
	client.Limit(nameless, true, next).ServeHTTP(said, httptest.NewRequest("GET", "/", nil))
	if passed || said.Code != 500 {
		t.Errorf("an attribute without a name: passed %v with %d", passed, said.Code)
	}
}
