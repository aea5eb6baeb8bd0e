package main

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/url"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"helmr.dev/helmr/client"
)

// The exit statuses that scripts can use.
const (
	exitFailed   = 1
	exitUsage    = 2
	exitTimedOut = 124
)

// usageError is a command line that cannot be understood.
type usageError struct{ message string }

func (e usageError) Error() string { return e.message }

func usageErrorf(format string, args ...any) error { return usageError{fmt.Sprintf(format, args...)} }

// exitError ends the program with a status of its own; an empty message says that everything was said already.
type exitError struct {
	status  int
	message string
}

func (e exitError) Error() string { return e.message }

// hinted adds to an error what to do next.
type hinted struct {
	error
	hint string
}

func (e hinted) Unwrap() error { return e.error }

// report prints err on stderr and gives the exit status.
func (a *app) report(cmd *cobra.Command, err error) int {
	status, hint := exitFailed, a.hint(err)
	var usage usageError
	var exit exitError
	switch {
	case errors.As(err, &usage):
		status = exitUsage
		if hint == "" {
			hint = fmt.Sprintf("see %s --help", cmd.CommandPath())
		}
	case errors.As(err, &exit):
		if status = exit.status; exit.message == "" {
			return status
		}
	}
	message := strings.TrimSpace(publicMessage(err))
	if a.flags.json {
		_ = printLine(cmd.ErrOrStderr(), map[string]any{"error": problem(err, message, hint)}) // nobody is left to tell
		return status
	}
	cmd.PrintErrf("error: %s\n", message)
	if hint != "" {
		cmd.PrintErrf("  %s\n", hint)
	}
	return status
}

// publicMessage gives what is wrong without the machinery around it.
func publicMessage(err error) string {
	var request *url.Error
	var op *net.OpError
	if errors.As(err, &request) && errors.As(err, &op) && op.Op == "dial" {
		if u, perr := url.Parse(request.URL); perr == nil {
			return fmt.Sprintf("%s://%s does not answer: %v", u.Scheme, u.Host, op.Err)
		}
	}
	return err.Error()
}

// problem is the form of an error with --json.
func problem(err error, message, hint string) map[string]any {
	p := map[string]any{"message": message}
	if hint != "" {
		p["hint"] = hint
	}
	if e, ok := errors.AsType[*client.Error](err); ok {
		p["message"], p["code"], p["status"], p["request_id"] = e.Message, e.Code, e.Status, e.RequestID
		if len(e.Details) > 0 {
			p["details"] = e.Details
		}
	}
	return p
}

// hint says what to do about err, "" if nothing is known.
func (a *app) hint(err error) string {
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return "this machine does not trust who signed the server's certificate: set SSL_CERT_FILE to a file with that CA's certificate"
	}
	var h hinted
	if errors.As(err, &h) {
		return h.hint
	}
	if e, ok := errors.AsType[*client.Error](err); ok {
		return codeHints[e.Code]
	}
	var op *net.OpError
	var dns *net.DNSError
	var request *url.Error
	if errors.Is(err, syscall.ECONNREFUSED) || errors.As(err, &dns) || (errors.As(err, &op) && op.Op == "dial") {
		if !errors.As(err, &request) {
			return "nothing answers there: check that it runs, and the setting that names it"
		}
		return "no helmr answers there: start one with `helmr dev`, or name another with -a URL"
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return "the server took too long to answer; try again"
	}
	if errors.Is(err, fs.ErrPermission) {
		return "this needs other rights on the file; as root it works"
	}
	return ""
}

// codeHints says what to do about refusals that people meet first.
var codeHints = map[string]string{
	"authentication_required":         "the key is unknown, expired or revoked: save another with `helmr login URL`, or set HELMR_API_KEY",
	"permission_required":             "this key lacks the permission; use a key that has it",
	"no_current_deployment":           "deploy a project first: helmr deploy PATH",
	"agent_not_in_current_deployment": "`helmr agent list` shows what can be created; `helmr deploy PATH` adds more",
	"agent_deleted":                   "`helmr agent list --all` shows deleted agents; a deployment that declares it brings it back when promoted",
	"session_not_open":                "the session is closing; create a new one with `helmr session create`",
	"session_terminal":                "the session has ended; create a new one with `helmr session create`",
	"idempotency_conflict":            "use another --idempotency-key for another request",
	"cursor_expired":                  "start from the oldest event that is kept: --after with details.retained_after",
	"computer_mismatch":               "the key belongs to a session on another computer; leave out --computer or use another --key",
	"deployment_not_found":            "`helmr deployment list` shows the deployments of this environment",
	"not_found":                       "check the ID; `helmr whoami` shows the server and the environment that were asked",
	"computer_not_found":              "`helmr computer list` shows the computers of this environment",
}

// decodeJSON reads one JSON value and says where it is broken.
func decodeJSON(what string, raw []byte) (json.RawMessage, error) {
	var v json.RawMessage
	if err := json.Unmarshal(raw, &v); err != nil {
		var syntax *json.SyntaxError
		if errors.As(err, &syntax) {
			return nil, usageErrorf("%s is not JSON: %s at byte %d", what, syntax.Error(), syntax.Offset)
		}
		return nil, usageErrorf("%s is not JSON: %v", what, err)
	}
	return v, nil
}
