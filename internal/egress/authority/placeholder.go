package authority

import (
	"crypto/rand"
	"encoding/hex"
	"strings"
)

// Prefix begins every placeholder, and nothing else: whoever sees it knows that a value of helmr's was meant to be there.
const Prefix = "hlmr_protected_"

// PlaceholderLength is the length of a placeholder in bytes.
const PlaceholderLength = len(Prefix) + 40

// NewPlaceholder makes what stands for a value inside a Computer: 160 random bits behind Prefix.
func NewPlaceholder() string {
	b := make([]byte, 20)
	_, _ = rand.Read(b) // it does not fail
	return Prefix + hex.EncodeToString(b)
}

// Placeholders gives what begins like placeholders in a text, in order. One that is cut short is shorter than others.
func Placeholders(text string) []string {
	var found []string
	for {
		at := strings.Index(text, Prefix)
		if at < 0 {
			return found
		}
		text = text[at:]
		n := min(PlaceholderLength, len(text))
		found = append(found, text[:n])
		text = text[len(Prefix):]
	}
}
