package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"helmr.dev/helmr/client"
	"helmr.dev/helmr/internal/access"
)

// defaultURL is where helmr dev listens.
const defaultURL = "http://127.0.0.1:8080"

// credential is what a command talks to the server with, and where each part of it came from.
type credential struct {
	url, urlFrom string
	key, keyFrom string
}

// credential finds the server and the key: -a, HELMR_API_URL, the last login, the default; HELMR_API_KEY, the saved
// login of that URL. A missing key is an error that says how to get one.
func (a *app) credential() (credential, error) {
	c, err := a.server()
	if err != nil {
		return c, err
	}
	if key := a.getenv("HELMR_API_KEY"); key != "" {
		c.key, c.keyFrom = strings.TrimSpace(key), "HELMR_API_KEY"
	} else {
		saved, err := a.logins()
		if err != nil {
			return c, err
		}
		if l, ok := saved.Logins[c.url]; ok {
			c.key, c.keyFrom = l.APIKey, "login"
		}
	}
	if c.key == "" {
		return c, hinted{fmt.Errorf("there is no key for %s", c.url),
			"start a helmr with `helmr dev` (it saves its key), save a key with `helmr login " + c.url + "`, or set HELMR_API_KEY"}
	}
	if a.flags.project != "" || a.flags.environment != "" {
		return c, usageErrorf("--project and --env go with the login of a person; the API key (from %s) already names both", c.keyFrom)
	}
	return c, nil
}

// server finds the URL alone.
func (a *app) server() (credential, error) {
	var c credential
	saved, err := a.logins()
	if err != nil {
		return c, err
	}
	switch {
	case a.flags.apiURL != "":
		c.url, c.urlFrom = a.flags.apiURL, "--api-url"
	case a.getenv("HELMR_API_URL") != "":
		c.url, c.urlFrom = a.getenv("HELMR_API_URL"), "HELMR_API_URL"
	case saved.Last != "":
		c.url, c.urlFrom = saved.Last, "last login"
	default:
		c.url, c.urlFrom = defaultURL, "default"
	}
	c.url, err = cleanURL(c.url)
	if err != nil {
		return c, usageErrorf("%s: %v", c.urlFrom, err)
	}
	return c, nil
}

// client gives a client of the server with the credential of this run.
func (a *app) client() (*client.Client, error) {
	c, err := a.credential()
	if err != nil {
		return nil, err
	}
	return client.New(c.url, c.key), nil
}

// cleanURL gives the one form under which a server's login is kept.
func cleanURL(s string) (string, error) {
	u, err := url.Parse(strings.TrimSpace(s))
	if err != nil || (u.Scheme != "http" && u.Scheme != "https") || u.Host == "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		return "", fmt.Errorf("%q is not the URL of a server; it looks like http://HOST:PORT", s)
	}
	u.Host = strings.ToLower(u.Host)
	return strings.TrimRight(u.String(), "/"), nil
}

// saved is the file of logins.
type saved struct {
	Last   string           `json:"last,omitempty"`
	Logins map[string]login `json:"logins"`
}

// login is one saved login: an API key, a login of the owner, or both.
type login struct {
	APIKey     string    `json:"api_key,omitempty"`
	OwnerToken string    `json:"owner_token,omitempty"`
	SavedAt    time.Time `json:"saved_at"`
}

// loginsFile is where logins are kept: HELMR_CONFIG_DIR, otherwise the user's configuration folder.
func (a *app) loginsFile() (string, error) {
	dir := a.getenv("HELMR_CONFIG_DIR")
	if dir == "" {
		base := a.getenv("XDG_CONFIG_HOME")
		if base == "" {
			home := a.getenv("HOME")
			if home == "" {
				return "", errors.New("neither HELMR_CONFIG_DIR nor HOME is set; set HELMR_CONFIG_DIR to the folder for helmr's logins")
			}
			base = filepath.Join(home, ".config")
		}
		dir = filepath.Join(base, "helmr")
	}
	return filepath.Join(dir, "logins.json"), nil
}

func (a *app) logins() (saved, error) {
	s := saved{Logins: map[string]login{}}
	path, err := a.loginsFile()
	if err != nil {
		return s, nil // nothing can be saved there, so nothing is
	}
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return s, nil
	}
	if err != nil {
		return s, fmt.Errorf("read saved logins: %w", err)
	}
	if err := json.Unmarshal(raw, &s); err != nil {
		return s, hinted{fmt.Errorf("the saved logins in %s are broken: %w", path, err), "remove the file and log in again"}
	}
	if s.Logins == nil {
		s.Logins = map[string]login{}
	}
	return s, nil
}

// saveLogins writes the file at once or not at all, readable by its owner only.
func (a *app) saveLogins(s saved) error {
	path, err := a.loginsFile()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("make the folder for logins: %w", err)
	}
	raw, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("encode logins: %w", err)
	}
	return writeFile(path, append(raw, '\n'))
}

// writeFile replaces path with content in one step, mode 0600.
func writeFile(path string, content []byte) error {
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*") // created with mode 0600
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	defer func() { _ = os.Remove(f.Name()) }() // gone already after the rename
	if _, err = f.Write(content); err == nil {
		err = f.Sync()
	}
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// saveLogin keeps a credential for url and makes url the one that commands talk to. An API key and a login of the owner
// are kept beside each other.
func (a *app) saveLogin(url, credential string) error {
	s, err := a.logins()
	if err != nil {
		return err
	}
	s.Last = url
	l := s.Logins[url]
	if access.IsOwnerToken(credential) {
		l.OwnerToken = credential
	} else {
		l.APIKey = credential
	}
	l.SavedAt = time.Now().UTC().Truncate(time.Second)
	s.Logins[url] = l
	return a.saveLogins(s)
}
