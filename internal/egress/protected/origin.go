package protected

import (
	"net"
	"net/http"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// Origin is an HTTPS origin: a name in normal form and a port.
type Origin struct {
	Name string
	Port uint16
}

// ParseOrigin reads an origin as bindings have it: https://name, with a port unless it is 443.
func ParseOrigin(s string) (Origin, bool) {
	name, port, hasPort := strings.Cut(strings.TrimPrefix(s, "https://"), ":")
	o := Origin{Name: name, Port: 443}
	if hasPort {
		n, err := strconv.ParseUint(port, 10, 16)
		if err != nil || n == 0 {
			return o, false
		}
		o.Port = uint16(n)
	}
	return o, strings.HasPrefix(s, "https://") && name != "" && o.String() == s
}

// String gives the form of bindings.
func (o Origin) String() string {
	if o.Port == 443 {
		return "https://" + o.Name
	}
	return "https://" + o.address()
}

func (o Origin) address() string { return net.JoinHostPort(o.Name, strconv.Itoa(int(o.Port))) }

// is tells whether an authority, as a request names it, is this origin's.
func (o Origin) is(authority string) bool {
	name, port, hasPort := strings.Cut(authority, ":")
	if hasPort && port != strconv.Itoa(int(o.Port)) || !hasPort && o.Port != 443 {
		return false
	}
	return strings.EqualFold(name, o.Name)
}

// Reason says why a request or a connection was refused. The values are shown to people and stay as they are.
type Reason string

// Reasons for refusals.
const (
	ReasonAuthority   Reason = "authority_mismatch"      // the request is for another origin than its connection
	ReasonForm        Reason = "request_not_supported"   // CONNECT, an upgrade, trailers, an unusual target
	ReasonPlaceholder Reason = "placeholder_invalid"     // no binding of this Computer has it
	ReasonRevoked     Reason = "secret_revoked"          // the Secret behind it is revoked
	ReasonValue       Reason = "value_not_a_header"      // the value cannot be in a header
	ReasonTooLarge    Reason = "headers_too_large"       // with the values in them
	ReasonUnresolved  Reason = "secret_not_available"    // the server could not be asked
	ReasonLimit       Reason = "limit_reached"           // too many at once
	ReasonUpstream    Reason = "destination_unreachable" // no verified connection to the origin
)

// refusal is the answer to a request that is not forwarded.
type refusal struct {
	status int
	reason Reason
	text   string
}

func (r *refusal) Error() string { return string(r.reason) }

func unsupported(what string) *refusal {
	return &refusal{http.StatusBadRequest, ReasonForm, what + " is not supported on connections to protected origins"}
}

// judge refuses a request that is not plainly one for the origin of its connection.
func judge(o Origin, r *http.Request) *refusal {
	switch {
	case r.Method == http.MethodConnect || r.Header.Get(":protocol") != "":
		return unsupported("CONNECT")
	case r.URL.Scheme != "" || r.URL.Host != "" || r.URL.Opaque != "":
		return unsupported("a request target with a scheme or host")
	case !strings.HasPrefix(r.RequestURI, "/") && (r.RequestURI != "*" || r.Method != http.MethodOptions):
		return unsupported("a request target that is no path")
	case strings.ContainsAny(r.RequestURI, " \t#"):
		return unsupported("a request target with spaces or a fragment")
	case !o.is(r.Host):
		return &refusal{http.StatusMisdirectedRequest, ReasonAuthority, "this connection is for " + o.String() + " alone; make another one for another host"}
	case len(r.Header["Host"]) > 0 && (len(r.Header["Host"]) > 1 || !o.is(r.Header.Get("Host"))):
		return &refusal{http.StatusMisdirectedRequest, ReasonAuthority, "the request names two hosts"}
	case len(r.Header["Upgrade"]) > 0 || httpguts.HeaderValuesContainsToken(r.Header["Connection"], "upgrade") || len(r.Header["Http2-Settings"]) > 0:
		return unsupported("an upgrade, as to WebSocket,")
	case r.Trailer != nil || len(r.Header["Trailer"]) > 0:
		return unsupported("a request with trailers")
	case len(r.TransferEncoding) > 1 || len(r.TransferEncoding) == 1 && r.TransferEncoding[0] != "chunked":
		return unsupported("this transfer encoding")
	}
	return nil
}
