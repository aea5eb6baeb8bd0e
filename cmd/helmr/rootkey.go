package main

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/secret"
)

// rootKeys are the keys under which an installation's encryption keys are sealed: the present one, and the one before while
// that is being replaced (nil: none).
type rootKeys struct{ present, previous []byte }

func (s settings) rootKeys() rootKeys {
	k := rootKeys{present: s.key("HELMR_ENCRYPTION_KEY")}
	if s["HELMR_ENCRYPTION_KEY_PREVIOUS"] != "" {
		k.previous = s.key("HELMR_ENCRYPTION_KEY_PREVIOUS")
	}
	return k
}

// open opens the installation's keys, sealing them under the present root key if they are still under the previous one.
func (k rootKeys) open(ctx context.Context, d *db.DB) (*secret.Keyring, error) {
	root, err := secret.LocalRoot(k.present)
	if err != nil {
		return nil, err
	}
	var previous []secret.RootKey
	if k.previous != nil {
		p, err := secret.LocalRoot(k.previous)
		if err != nil {
			return nil, err
		}
		previous = append(previous, p)
	}
	ring, err := secret.OpenKeyring(ctx, d, root, previous...)
	if errors.Is(err, secret.ErrOtherKey) {
		return nil, hinted{err, "use the key that this database was set up with (HELMR_ENCRYPTION_KEY, or encryption.key in the data folder of helmr dev); " +
			"to replace it, set HELMR_ENCRYPTION_KEY to the new key and HELMR_ENCRYPTION_KEY_PREVIOUS to the old one for one start"}
	}
	return ring, err
}

// What the keys in the data folder of helmr dev protect, for messages.
const (
	keyOfSecrets = "Secrets"
	keyOfSaves   = "Saves"
)

// keyFile gives the root key that a file holds, and makes the file with a new key if it is not there. Only its owner may
// read it. of says what the key protects.
func keyFile(path, of string) ([]byte, error) {
	raw, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		key := make([]byte, secret.RootKeyBytes) // checkpoint keys have as many
		_, _ = rand.Read(key)                    // never fails
		return key, makeKeyFile(path, base64.StdEncoding.EncodeToString(key)+"\n")
	}
	if err != nil {
		return nil, fmt.Errorf("read the encryption key: %w", err)
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("read the encryption key: %w", err)
	}
	if info.Mode().Perm()&0o077 != 0 {
		return nil, hinted{fmt.Errorf("others may read %s, which holds the key of all %s", path, of), "run: chmod 600 " + path}
	}
	key, err := base64.StdEncoding.DecodeString(strings.TrimSpace(string(raw)))
	if err != nil || len(key) != secret.RootKeyBytes {
		return nil, hinted{fmt.Errorf("%s does not hold a key of %d bytes in base64", path, secret.RootKeyBytes), "put back the file that was there: without it the " + of + " of this data folder cannot be read"}
	}
	return key, nil
}

// makeKeyFile writes the key so that it is there for good before anything is sealed under it.
func makeKeyFile(path, text string) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("keep the encryption key: %w", err)
		}
	}()
	f, err := os.CreateTemp(filepath.Dir(path), ".encryption-key-") // 0600
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }() // gone already after the rename
	_, err = f.WriteString(text)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	dir, err := os.Open(filepath.Dir(path))
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
