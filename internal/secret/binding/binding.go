// Package binding is the rules of Secret bindings, as pure functions: what a binding may say, alone and together with the
// others of its Computer. Bundles, requests and rooms share it; the SDK has the same rules, and both are held to the vectors
// in testdata. It knows no Secret and no value.
package binding

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"helmr.dev/helmr/client/api"
	"helmr.dev/helmr/internal/egress/policy"
	"helmr.dev/helmr/internal/id"
)

// Upper limits: bindings and origins of one Computer, different origins of one binding, and the bytes of a path.
const (
	MaxBindings         = 64
	MaxOrigins          = 256
	MaxOriginsOfBinding = 16
	MaxPathBytes        = 4096
)

// Modes of an env binding.
const (
	Raw       = "raw"
	Protected = "protected"
)

// MaxVariableBytes is the longest NAME=value, with its final NUL, that Linux gives to a program.
const MaxVariableBytes = 128 << 10

// Error names the field of a binding that breaks a rule, and the rule.
type Error struct{ Field, Problem string }

func (e *Error) Error() string { return e.Field + " " + e.Problem }

func refuse(field, format string, args ...any) error {
	return &Error{Field: field, Problem: fmt.Sprintf(format, args...)}
}

// Normalize checks the bindings of one Computer and gives them with sorted origins, each once. field is what they are
// called in errors, which are of type *Error.
func Normalize(field string, in []api.SecretBinding) ([]api.SecretBinding, error) {
	if len(in) > MaxBindings {
		return nil, refuse(field, "has %d bindings; at most %d are allowed on one Computer", len(in), MaxBindings)
	}
	out := make([]api.SecretBinding, len(in))
	for i, b := range in {
		var err error
		if out[i], err = one(fmt.Sprintf("%s[%d]", field, i), b); err != nil {
			return nil, err
		}
	}
	return out, together(field, out)
}

func one(field string, b api.SecretBinding) (api.SecretBinding, error) {
	out := api.SecretBinding{Secret: b.Secret}
	switch {
	case !id.Declared(b.Secret):
		return out, refuse(field+".secret", "must be the name of a Secret: a letter or digit, then up to 127 of letters, digits, '.', '_' and '-'")
	case b.Env != nil && b.File != nil:
		return out, refuse(field, "has both env and file; give exactly one of them")
	case b.File != nil:
		out.File = &api.SecretFile{Path: b.File.Path}
		return out, path(field+".file.path", b.File.Path)
	case b.Env == nil:
		return out, refuse(field, "has neither env nor file; give exactly one of them")
	}
	env := &api.SecretEnv{Name: b.Env.Name, Mode: b.Env.Mode}
	out.Env = env
	if err := name(field+".env.name", env.Name); err != nil {
		return out, err
	}
	switch env.Mode {
	case Raw:
		if b.Env.AllowedOrigins != nil {
			return out, refuse(field+".env.allowedOrigins", `is given with mode "raw"; leave it out, or use mode "protected"`)
		}
		return out, nil
	case Protected:
		var err error
		env.AllowedOrigins, err = origins(field+".env.allowedOrigins", b.Env.AllowedOrigins)
		return out, err
	}
	return out, refuse(field+".env.mode", `must be "protected" or "raw"`)
}

var (
	variable       = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	reserved       = []string{"NODE_OPTIONS", "NODE_PATH", "NODE_ICU_DATA", "OPENSSL_CONF", "OPENSSL_MODULES", "OPENSSL_ENGINES", "GCONV_PATH", "LOCPATH"}
	reservedAnyway = []string{"SSL_CERT_FILE", "SSL_CERT_DIR", "NODE_EXTRA_CA_CERTS", "NODE_USE_SYSTEM_CA"} // in any letter case
	reservedPaths  = []string{"/dev", "/proc", "/sys", "/opt/helmr", "/run/helmr", "/var/lib/helmr"}
)

func name(field, s string) error {
	if !variable.MatchString(s) {
		return refuse(field, "must be letters, digits and underscores, not beginning with a digit")
	}
	if strings.HasPrefix(s, "HELMR_") || strings.HasPrefix(s, "LD_") || slices.Contains(reserved, s) || slices.Contains(reservedAnyway, strings.ToUpper(s)) {
		return refuse(field, "is %q, which the platform or the loader reserves; choose another name", s)
	}
	return nil
}

func path(field, s string) error {
	switch {
	case !strings.HasPrefix(s, "/"):
		return refuse(field, `must be an absolute path such as "/etc/app/token"`)
	case strings.ContainsRune(s, 0) || !utf8.ValidString(s):
		return refuse(field, "must be valid UTF-8 without NUL")
	case len(s) > MaxPathBytes:
		return refuse(field, "has %d bytes; at most %d are allowed", len(s), MaxPathBytes)
	}
	for _, segment := range strings.Split(s[1:], "/") {
		if segment == "" || segment == "." || segment == ".." {
			return refuse(field, `must name a file below / without empty, "." or ".." segments`)
		}
	}
	for _, r := range reservedPaths {
		if under(s, r) {
			return refuse(field, "is at or under %s; not allowed are %s", r, strings.Join(reservedPaths, ", "))
		}
	}
	return nil
}

// under tells whether a path is dir or lies below it.
func under(path, dir string) bool { return path == dir || strings.HasPrefix(path, dir+"/") }

func origins(field string, in []string) ([]string, error) {
	out := make([]string, 0, min(len(in), MaxOriginsOfBinding))
	for i, s := range in {
		o, ok := origin(s)
		if !ok {
			return nil, refuse(fmt.Sprintf("%s[%d]", field, i),
				`must be an HTTPS origin such as "https://api.example.com": lower-case DNS name, no wildcard, IP address, user, path, query or fragment`)
		}
		out = append(out, o)
	}
	slices.Sort(out)
	out = slices.Compact(out)
	switch {
	case len(out) == 0:
		return nil, refuse(field, `must name at least one origin such as "https://api.example.com"`)
	case len(out) > MaxOriginsOfBinding:
		return nil, refuse(field, "has %d different origins; at most %d are allowed", len(out), MaxOriginsOfBinding)
	}
	return out, nil
}

var originForm = regexp.MustCompile(`^https://([^/:?#@]+)(?::([1-9][0-9]{0,4}))?/?$`)

// origin gives the plain form of an origin: without :443 and without a final slash.
func origin(s string) (string, bool) {
	m := originForm.FindStringSubmatch(s)
	if m == nil || !host(m[1]) {
		return "", false
	}
	port := 443
	if m[2] != "" {
		port, _ = strconv.Atoi(m[2]) // the form has checked it
	}
	switch {
	case port > 65535:
		return "", false
	case port == 443:
		return "https://" + m[1], true
	}
	return "https://" + m[1] + ":" + m[2], true
}

// host tells whether s is a DNS name in normal form.
func host(s string) bool {
	name, ok := policy.NormalizeName(s)
	return ok && name == s
}

// together checks what bindings of one Computer must not do to each other.
func together(field string, bindings []api.SecretBinding) error {
	names := map[string]bool{}
	var paths []string
	total := 0
	for i, b := range bindings {
		if b.File != nil {
			for _, other := range paths {
				if under(b.File.Path, other) || under(other, b.File.Path) {
					return refuse(fmt.Sprintf("%s[%d].file.path", field, i), "is %q, which is equal to or nested with %q; give paths that lie apart", b.File.Path, other)
				}
			}
			paths = append(paths, b.File.Path)
			continue
		}
		if names[b.Env.Name] {
			return refuse(fmt.Sprintf("%s[%d].env.name", field, i), "is %q, which an earlier binding sets; bind each name once", b.Env.Name)
		}
		names[b.Env.Name] = true
		total += len(b.Env.AllowedOrigins)
	}
	if total > MaxOrigins {
		return refuse(field, "has %d allowed origins; at most %d are allowed on one Computer", total, MaxOrigins)
	}
	return nil
}

// CheckImage refuses bindings of names that the image sets. env holds NAME=VALUE.
func CheckImage(field string, bindings []api.SecretBinding, env []string) error {
	for i, b := range bindings {
		if b.Env == nil {
			continue
		}
		for _, v := range env {
			if set, _, _ := strings.Cut(v, "="); set == b.Env.Name {
				return refuse(fmt.Sprintf("%s[%d].env.name", field, i), "is %q, which the image sets; choose another name, or take it out of the image", b.Env.Name)
			}
		}
	}
	return nil
}

// CheckPolicy refuses protected bindings that cannot work under the network policy of their phase. Raw and file bindings
// neither need nor widen it.
func CheckPolicy(field string, bindings []api.SecretBinding, p policy.Policy) error {
	for i, b := range bindings {
		if b.Env == nil || b.Env.Mode != Protected {
			continue
		}
		if p.BlockAll {
			return refuse(fmt.Sprintf("%s[%d]", field, i), `is protected, but the network policy blocks all connections; allow its origins, or use mode "raw"`)
		}
		for _, o := range b.Env.AllowedOrigins {
			name, port, _ := strings.Cut(strings.TrimPrefix(o, "https://"), ":")
			switch at := fmt.Sprintf("%s[%d].env.allowedOrigins", field, i); {
			case p.Allowlist() && port != "":
				return refuse(at, "has %q, but with allowDomains only port 443 can be reached; drop the port", o)
			case !p.PermitsName(name):
				return refuse(at, "has %q, which no entry of allowDomains matches; add %q there", o, name)
			}
		}
	}
	return nil
}

// Names gives the Secrets that bindings name, each once, sorted.
func Names(bindings []api.SecretBinding) []string {
	names := make([]string, 0, len(bindings))
	for _, b := range bindings {
		names = append(names, b.Secret)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Fits tells whether a value of that many bytes can be delivered through the binding.
func Fits(b api.SecretBinding, size int64) bool {
	return b.Env == nil || b.Env.Mode != Raw || int64(len(b.Env.Name))+size+2 <= MaxVariableBytes
}
