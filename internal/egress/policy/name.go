package policy

import (
	"errors"
	"fmt"
	"strings"
)

const nameAdvice = `give a DNS name of at least two labels such as "api.example.com", international names as A-labels (xn--...), without scheme, port or path`

// NormalizePattern gives the normal form of a name or a "*." pattern. Its errors begin with the value.
func NormalizePattern(value string) (string, error) {
	if !ascii(value) { // before lower case is made: it turns some other letters into ASCII ones
		return "", fmt.Errorf("%.80q, which is not ASCII; %s", value, nameAdvice)
	}
	pattern := strings.TrimSuffix(strings.ToLower(value), ".")
	name := strings.TrimPrefix(pattern, "*.")
	if strings.Contains(name, "*") {
		return "", fmt.Errorf(`%.80q; one wildcard is allowed, in front of at least two labels: "*.example.com"`, value)
	}
	if len(pattern) > MaxNameLength {
		return "", fmt.Errorf(`%.80q..., which has %d characters; at most %d are allowed, a leading "*." included`, value, len(pattern), MaxNameLength)
	}
	if err := checkName(name); err != nil {
		return "", fmt.Errorf("%.80q, which %w; %s", value, err, nameAdvice)
	}
	return pattern, nil
}

// NormalizeName gives the normal form of a name that a connection or a question carries, and whether it is a name that
// any policy could permit: no address, no localhost name, at least two labels.
func NormalizeName(value string) (string, bool) {
	if !ascii(value) || len(value) > MaxNameLength+1 {
		return "", false
	}
	name := strings.TrimSuffix(strings.ToLower(value), ".")
	return name, len(name) <= MaxNameLength && checkName(name) == nil
}

func ascii(s string) bool {
	for i := range len(s) {
		if s[i] >= 0x80 {
			return false
		}
	}
	return true
}

// checkName says what keeps a lower-case ASCII name from being a DNS host name with at least two labels.
func checkName(name string) error {
	labels := strings.Split(name, ".")
	digits := true
	for _, l := range labels {
		digits = digits && l != "" && strings.Trim(l, "0123456789") == ""
	}
	switch {
	case digits:
		return errors.New("is an IP literal or a name of digits only")
	case labels[len(labels)-1] == "localhost" || name == "localhost.localdomain":
		return errors.New("is a localhost name")
	case len(labels) < 2:
		return errors.New("has a single label")
	}
	for _, l := range labels {
		if !validLabel(l) {
			return fmt.Errorf("has the invalid label %.80q (1 to 63 letters, digits or hyphens, no hyphen at either end)", l)
		}
	}
	return nil
}

func validLabel(l string) bool {
	if len(l) < 1 || len(l) > 63 || l[0] == '-' || l[len(l)-1] == '-' {
		return false
	}
	for i := range len(l) {
		if c := l[i]; (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' {
			return false
		}
	}
	return true
}
