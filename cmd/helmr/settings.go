package main

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"
)

// setting is one environment variable of a process.
type setting struct {
	name     string
	server   bool // read by helmr server
	migrate  bool // read by helmr migrate
	worker   bool // read by helmr worker
	required bool
	fallback string // the value when it is not set
	want     string // what a good value looks like, for the message about a bad one
	check    func(string) error
	later    bool // known and checked, but nothing uses it yet
}

// settingsTable is every setting of the processes. Root keys are base64 of exactly 32 bytes.
var settingsTable = []setting{
	{name: "HELMR_DATABASE_URL", server: true, migrate: true, required: true, want: "sqlite:PATH or postgres://USER:PASSWORD@HOST/NAME", check: databaseURL},
	{name: "HELMR_BLOB_URL", server: true, worker: true, required: true, want: "file:/FOLDER or s3://BUCKET/PREFIX", check: blobURL},
	{name: "HELMR_S3_ENDPOINT", server: true, worker: true, want: "the URL of the object store", check: webURL},
	{name: "HELMR_S3_ACCESS_KEY_ID", server: true, worker: true, want: "a text"},
	{name: "HELMR_S3_SECRET_ACCESS_KEY", server: true, worker: true, want: "a text"},

	{name: "HELMR_AUTH_KEY", server: true, required: true, want: rootKeyWant, check: rootKey},
	{name: "HELMR_ENCRYPTION_KEY", server: true, required: true, want: rootKeyWant, check: rootKey},
	{name: "HELMR_ENCRYPTION_KEY_PREVIOUS", server: true, want: rootKeyWant, check: rootKey},
	{name: "HELMR_WORKER_HOST_CREDENTIAL_SIGNING_KEY", server: true, required: true, want: rootKeyWant, check: rootKey},
	{name: "HELMR_COMPUTER_FENCING_KEY", server: true, required: true, want: rootKeyWant, check: rootKey},
	{name: "HELMR_CHECKPOINT_ENCRYPTION_KEY", worker: true, required: true, want: rootKeyWant, check: rootKey},
	{name: "HELMR_CHECKPOINT_ENCRYPTION_KEY_PREVIOUS", worker: true, want: rootKeyWant, check: rootKey},

	{name: "HELMR_ADDR", server: true, fallback: "127.0.0.1:8080", want: "HOST:PORT", check: hostPort},
	{name: "HELMR_PUBLIC_URL", server: true, want: "the URL that people reach the server under", check: webURL},
	{name: tlsCert, server: true, want: "a file that holds a certificate with its chain, in PEM", check: readable},
	{name: tlsKey, server: true, want: "a file that holds the certificate's key, in PEM", check: readable},
	{name: "HELMR_SETUP_TOKEN", server: true, want: "a text that you choose", later: true},

	{name: "HELMR_GITHUB_OAUTH_CLIENT_ID", server: true, want: "a text", later: true},
	{name: "HELMR_GITHUB_OAUTH_CLIENT_SECRET", server: true, want: "a text", later: true},
	{name: "HELMR_OIDC_ISSUER", server: true, want: "a URL", check: webURL, later: true},
	{name: "HELMR_OIDC_CLIENT_ID", server: true, want: "a text", later: true},
	{name: "HELMR_OIDC_CLIENT_SECRET", server: true, want: "a text", later: true},
	{name: "HELMR_EMAIL_PROVIDER", server: true, fallback: "none", want: "none, log, smtp or resend", check: oneOf("none", "log", "smtp", "resend"), later: true},
	{name: "HELMR_EMAIL_FROM", server: true, want: "an address", later: true},
	{name: "HELMR_SMTP_ADDR", server: true, want: "HOST:PORT", check: hostPort, later: true},
	{name: "HELMR_SMTP_USERNAME", server: true, want: "a text", later: true},
	{name: "HELMR_SMTP_PASSWORD", server: true, want: "a text", later: true},
	{name: "HELMR_RESEND_API_KEY", server: true, want: "a text", later: true},
	{name: "HELMR_MAGIC_LINK_DEBUG_URLS", server: true, want: "true or false", check: boolean, later: true},
	{name: "HELMR_BUSINESS_IPV4_CIDRS", server: true, worker: true, fallback: "[]", want: `a JSON array like ["10.0.0.0/8"]`, check: cidrs},

	{name: "HELMR_ENVIRONMENT_MAX_RESIDENT_COMPUTERS", server: true, fallback: "16", want: wantNumber, check: positive},
	{name: "HELMR_ENVIRONMENT_MAX_CPU_MILLIS", server: true, fallback: "32000", want: wantNumber, check: positive},
	{name: "HELMR_ENVIRONMENT_MAX_MEMORY_BYTES", server: true, fallback: "68719476736", want: wantNumber, check: positive},
	{name: "HELMR_ENVIRONMENT_MAX_RESERVED_STORAGE_BYTES", server: true, fallback: "2199023255552", want: wantNumber, check: positive},
	{name: "HELMR_ENVIRONMENT_MAX_OUTSTANDING_ADMISSIONS", server: true, fallback: "1000", want: wantNumber, check: positive},
	{name: "HELMR_ENVIRONMENT_MAX_CAUSAL_DEPTH", server: true, fallback: "16", want: wantNumber, check: positive},
	{name: "HELMR_ENVIRONMENT_ADMISSION_RATE_PER_SECOND", server: true, fallback: "50", want: wantNumber, check: positive},
	{name: "HELMR_ENVIRONMENT_ADMISSION_BURST", server: true, fallback: "100", want: wantNumber, check: positive},
	{name: "HELMR_ENVIRONMENT_PREPARATION_TIMEOUT_MS", server: true, fallback: "1800000", want: wantNumber, check: positive},

	{name: "HELMR_SERVER_URL", worker: true, required: true, want: "the URL of the server", check: webURL},
	{name: "HELMR_WORKER_NAME", worker: true, required: true, want: "1 to 63 letters, digits, dots and hyphens", check: workerName},
	{name: "HELMR_WORKER_ENROLLMENT_TOKEN_FILE", worker: true, required: true, want: "a file that holds the token", check: readable},
	{name: "HELMR_WORKER_WORK_DIR", worker: true, fallback: "/var/lib/helmr/worker", want: "an absolute path", check: absolute},
	{name: "HELMR_WORKER_CAPACITY_VCPUS", worker: true, want: wantNumber, check: positive},
	{name: "HELMR_WORKER_CAPACITY_MEMORY_MIB", worker: true, want: wantNumber, check: positive},
	{name: "HELMR_WORKER_DISK_MIB", worker: true, want: wantNumber, check: positive},
	{name: "HELMR_WORKER_DISK_RESERVE_MIB", worker: true, fallback: "1024", want: wantNumber, check: positive},
	{name: "HELMR_WORKER_COMPUTER_DISK_MIB_PER_SECOND", worker: true, want: wantNumber, check: positive},
	{name: "HELMR_WORKER_COMPUTER_DISK_OPERATIONS_PER_SECOND", worker: true, want: wantNumber, check: positive},
	{name: "HELMR_WORKER_NETWORK_RESOLVER_IPV4", worker: true, want: "an IPv4 address", check: ipv4},
	{name: "HELMR_WORKER_NETWORK_BLOCKED_IPV4_CIDRS", worker: true, fallback: "[]", want: `a JSON array like ["10.0.0.0/8"]`, check: cidrs},
}

const (
	wantNumber  = "a whole number of 1 or more"
	rootKeyWant = "base64 of exactly 32 bytes (make one: head -c 32 /dev/urandom | base64)"
)

// settings are the checked values of one process by name; a setting that is not set and has no default is "".
type settings map[string]string

// number gives a setting that was checked to be one, 0 if it is not set.
func (s settings) number(name string) int64 {
	n, _ := strconv.ParseInt(s[name], 10, 64) // checked by positive
	return n
}

// key gives a root key that was checked to be one.
func (s settings) key(name string) []byte {
	k, _ := base64.StdEncoding.DecodeString(s[name]) // checked by rootKey
	return k
}

// process selects the settings of one process.
type process func(setting) bool

func serverSettings(s setting) bool  { return s.server }
func migrateSettings(s setting) bool { return s.migrate }
func workerSettings(s setting) bool  { return s.worker }

// ownWorkerSettings are what a command needs to speak for the Worker of this machine.
func ownWorkerSettings(s setting) bool {
	return s.name == "HELMR_SERVER_URL" || s.name == "HELMR_WORKER_NAME" || s.name == "HELMR_WORKER_WORK_DIR"
}

// lostAfter reads the time after which silent Workers are lost, for tests that lose some: 0 is the default. It can only
// be shortened; Workers hear from the server what follows from it.
func lostAfter(getenv func(string) string) (time.Duration, error) {
	text := getenv(testLostAfter)
	if text == "" {
		return 0, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < time.Second || d > time.Minute {
		return 0, fmt.Errorf("%s is malformed: it wants a duration from 1s to 60s, and is for tests", testLostAfter)
	}
	return d, nil
}

const testLostAfter = "HELMR_TEST_WORKERS_LOST_AFTER"

// readSettings reads and checks all settings of a process. The error names every setting that is missing or malformed,
// never a value. unused names settings that are there but do nothing yet.
func readSettings(getenv func(string) string, of process) (s settings, unused []string, err error) {
	s = settings{}
	var problems []string
	for _, d := range settingsTable {
		if !of(d) {
			continue
		}
		value := strings.TrimSpace(getenv(d.name))
		switch {
		case value == "" && d.required:
			problems = append(problems, d.name+" is missing: set it to "+d.want)
			continue
		case value == "":
			s[d.name] = d.fallback
			continue
		}
		if d.check != nil {
			if reason := d.check(value); reason != nil {
				problems = append(problems, d.name+" is malformed: "+reason.Error()+"; it wants "+d.want)
				continue
			}
		}
		if d.later && value != d.fallback {
			unused = append(unused, d.name)
		}
		s[d.name] = value
	}
	if s["HELMR_PUBLIC_URL"] == "" && s["HELMR_ADDR"] != "" {
		s["HELMR_PUBLIC_URL"] = "http://" + s["HELMR_ADDR"]
		if s[tlsCert] != "" {
			s["HELMR_PUBLIC_URL"] = "https://" + s["HELMR_ADDR"]
		}
	}
	if err := s.checkCertificate(); err != nil && len(problems) == 0 {
		problems = append(problems, err.Error())
	}
	if strings.HasPrefix(s["HELMR_BLOB_URL"], "s3:") {
		for _, name := range []string{"HELMR_S3_ACCESS_KEY_ID", "HELMR_S3_SECRET_ACCESS_KEY"} {
			if s[name] == "" {
				problems = append(problems, name+" is missing: an s3: HELMR_BLOB_URL needs it")
			}
		}
	}
	if len(problems) > 0 {
		return nil, nil, errors.New(strings.Join(problems, "\n  "))
	}
	return s, unused, nil
}

// The checks never repeat the value: it may be a secret.

func databaseURL(v string) error {
	if (strings.HasPrefix(v, "sqlite:") && len(v) > len("sqlite:")) || strings.HasPrefix(v, "postgres://") || strings.HasPrefix(v, "postgresql://") {
		return nil
	}
	return errors.New("it is neither a sqlite: nor a postgres: URL")
}

func blobURL(v string) error {
	if (strings.HasPrefix(v, "file:/") && len(v) > len("file:/")) || (strings.HasPrefix(v, "s3:") && len(v) > len("s3:")) {
		return nil
	}
	return errors.New("it is neither a file: nor an s3: URL")
}

func webURL(v string) error {
	if u, err := url.Parse(v); err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" {
		return errors.New("it is not an http: or https: URL")
	}
	return nil
}

func rootKey(v string) error {
	b, err := base64.StdEncoding.DecodeString(v)
	if err != nil {
		return errors.New("it is not base64")
	}
	if len(b) != 32 {
		return fmt.Errorf("it has %d bytes", len(b))
	}
	return nil
}

func hostPort(v string) error {
	_, port, err := net.SplitHostPort(v)
	if err != nil {
		return errors.New("it has no host and port")
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		return errors.New("its port is not 0 to 65535")
	}
	return nil
}

func positive(v string) error {
	if n, err := strconv.ParseInt(v, 10, 64); err != nil || n < 1 {
		return errors.New("it is not such a number")
	}
	return nil
}

func boolean(v string) error { return oneOf("true", "false")(v) }

func oneOf(values ...string) func(string) error {
	return func(v string) error {
		for _, allowed := range values {
			if v == allowed {
				return nil
			}
		}
		return errors.New("it is none of them")
	}
}

func cidrs(v string) error {
	var list []string
	if err := json.Unmarshal([]byte(v), &list); err != nil {
		return errors.New("it is not a JSON array of strings")
	}
	for i, s := range list {
		if p, err := netip.ParsePrefix(s); err != nil || !p.Addr().Is4() || p.Masked() != p {
			return fmt.Errorf("item %d is not an IPv4 network", i+1)
		}
	}
	return nil
}

func ipv4(v string) error {
	if a, err := netip.ParseAddr(v); err != nil || !a.Is4() {
		return errors.New("it is not an IPv4 address")
	}
	return nil
}

func workerName(v string) error {
	if len(v) > 63 || strings.Trim(v, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-") != "" {
		return errors.New("it is not such a name")
	}
	return nil
}

func absolute(v string) error {
	if !strings.HasPrefix(v, "/") {
		return errors.New("it does not begin with /")
	}
	return nil
}

func readable(v string) error {
	f, err := os.Open(v)
	if err != nil {
		return errors.New("the file cannot be read")
	}
	return f.Close()
}
