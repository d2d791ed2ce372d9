// A server in Go for each way in which one finds a handler: its readings of the path that came, as JSON.
package main

import (
	"encoding/json"
	"net/http"
	"os"
	"path"
	"strings"
)

func main() {
	// As a program reads it that has no ServeMux.
	readings := func(w http.ResponseWriter, r *http.Request) {
		shown := []string{r.URL.Path, path.Clean("/" + r.URL.Path)}
		json.NewEncoder(w).Encode(shown)
	}
	go func() {
		panic(http.ListenAndServe(os.Args[1], http.HandlerFunc(readings)))
	}()
	// A path that is not clean is redirected, which serves nothing.
	mux := http.NewServeMux()
	for _, prefix := range []string{"/login", "/public", "/"} {
		prefix := prefix
		served := func(w http.ResponseWriter, r *http.Request) {
			json.NewEncoder(w).Encode([]string{prefix})
		}
		mux.HandleFunc(prefix, served)
		if !strings.HasSuffix(prefix, "/") {
			mux.HandleFunc(prefix+"/", served)
		}
	}
	panic(http.ListenAndServe(os.Args[2], mux))
}
