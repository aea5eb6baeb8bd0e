package build

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"helmr.dev/helmr/internal/build/bundle"
)

// Bounds of build.secrets.
const (
	maxSecrets      = 64
	maxSecretBytes  = 1 << 20
	minMaskedSecret = 4 // bytes: a shorter value is found everywhere
)

// buildSecrets are the variables of build.secrets with their values. Only the installation of dependencies gets them.
type buildSecrets map[string][]byte

// readSecrets takes variables, by name, from the environment of the build.
func readSecrets(names []string) (buildSecrets, error) {
	if len(names) > maxSecrets {
		return nil, problem(configName, fmt.Sprintf("Name at most %d", maxSecrets), "build.secrets names %d variables", len(names))
	}
	secrets := buildSecrets{}
	for i, name := range names {
		value := os.Getenv(name)
		field := fmt.Sprintf("build.secrets[%d]", i)
		switch {
		case value == "":
			return nil, problem(configName, "Set "+name+" in the environment of the build, or leave it out of build.secrets", "%s names %s, which is not set", field, name)
		case len(value) > maxSecretBytes:
			return nil, problem(configName, fmt.Sprintf("At most %d bytes are allowed", maxSecretBytes), "%s names %s, whose value has %d bytes", field, name, len(value))
		}
		secrets[name] = []byte(value)
	}
	return secrets, nil
}

// parts gives the pieces by which values would be found in text, longest first: whole, and line by line.
func (s buildSecrets) parts() []string {
	var parts []string
	for _, value := range s {
		for _, part := range append(strings.Split(string(value), "\n"), string(value)) {
			if part = strings.TrimSpace(part); len(part) >= minMaskedSecret {
				parts = append(parts, part)
			}
		}
	}
	slices.SortFunc(parts, func(a, b string) int { return len(b) - len(a) })
	return parts
}

// mask takes values out of what the installation printed.
func (s buildSecrets) mask(text string) string {
	for _, part := range s.parts() {
		text = strings.ReplaceAll(text, part, "***")
	}
	return text
}

// absent refuses a program that would carry a value: an installation wrote it into what is bundled.
func (s buildSecrets) absent(files []bundle.ProgramFile) error {
	for name, value := range s {
		if len(value) < minMaskedSecret {
			continue
		}
		for _, f := range files {
			found, err := holds(f, value)
			if err != nil {
				return err
			}
			if found {
				return problem("build.secrets", "Keep the installation from writing it into the project", "the value of %s is in %s of the program", name, f.Path)
			}
		}
	}
	return nil
}

// holds tells whether a file contains a value. It keeps little of a large one in memory.
func holds(f bundle.ProgramFile, value []byte) (bool, error) {
	if f.Source == "" {
		return bytes.Contains(f.Data, value), nil
	}
	file, err := os.Open(f.Source)
	if err != nil {
		return false, fmt.Errorf("look for secrets in %s: %w", f.Path, err)
	}
	defer func() { _ = file.Close() }() // only read
	var window []byte
	for block := make([]byte, 1<<20); ; {
		n, err := file.Read(block)
		window = append(window, block[:n]...)
		if bytes.Contains(window, value) {
			return true, nil
		}
		window = append(window[:0], window[max(0, len(window)-len(value)+1):]...)
		if errors.Is(err, io.EOF) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("look for secrets in %s: %w", f.Path, err)
		}
	}
}
