package secret

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/tink-crypto/tink-go/v2/aead"
	"github.com/tink-crypto/tink-go/v2/aead/subtle"
	"github.com/tink-crypto/tink-go/v2/keyset"
	"github.com/tink-crypto/tink-go/v2/mac"
	tinkpb "github.com/tink-crypto/tink-go/v2/proto/tink_go_proto"
	"github.com/tink-crypto/tink-go/v2/tink"

	"helmr.dev/helmr/internal/db"
)

// RootKeyBytes is the length of a root key that is held locally.
const RootKeyBytes = 32

// RootKey seals the keys of a Keyring. LocalRoot is one from a setting or a file; a key management service is another: its
// Tink client is the AEAD, called once at start for each key, never for a value.
type RootKey interface {
	tink.AEADWithContext
	// ID names the key in the database, so that a wrong one is told from a damaged row. It says nothing of the key.
	ID() string
}

type localRoot struct {
	id   string
	aead tink.AEAD
}

// LocalRoot makes a root key of 32 random bytes.
func LocalRoot(key []byte) (RootKey, error) {
	if len(key) != RootKeyBytes {
		return nil, fmt.Errorf("a root key has %d bytes, not %d", len(key), RootKeyBytes)
	}
	a, err := subtle.NewAESGCM(key)
	if err != nil {
		return nil, fmt.Errorf("use root key: %w", err)
	}
	sum := sha256.Sum256(append([]byte("helmr root key id v1\x00"), key...))
	return &localRoot{id: "local:" + hex.EncodeToString(sum[:8]), aead: a}, nil
}

func (r *localRoot) ID() string { return r.id }

func (r *localRoot) EncryptWithContext(_ context.Context, plaintext, associated []byte) ([]byte, error) {
	return r.aead.Encrypt(plaintext, associated)
}

func (r *localRoot) DecryptWithContext(_ context.Context, sealed, associated []byte) ([]byte, error) {
	return r.aead.Decrypt(sealed, associated)
}

// Purposes of the keys of a Keyring.
const (
	purposeValues       = "secret-values"
	purposeFingerprints = "secret-fingerprints"
)

// Keyring holds the keys of an installation in memory: AES-256-GCM for values, HMAC for fingerprints. All servers of an
// installation have the same one. The zero Keyring is not usable; OpenKeyring makes one.
type Keyring struct {
	values tink.AEAD
	prints tink.MAC
}

// ErrOtherKey says that none of the given root keys is the one of this database.
var ErrOtherKey = errors.New("the database's Secrets are sealed under another encryption key")

// OpenKeyring reads the installation's keys, which root opens, and makes them on the first start. Keys still sealed under
// one of previous are sealed anew under root: this is how a root key is rotated. It must be called before anything is
// served.
func OpenKeyring(ctx context.Context, d *db.DB, root RootKey, previous ...RootKey) (*Keyring, error) {
	k := &Keyring{}
	for purpose, template := range map[string]*tinkpb.KeyTemplate{purposeValues: aead.AES256GCMKeyTemplate(), purposeFingerprints: mac.HMACSHA256Tag256KeyTemplate()} {
		h, err := openKey(ctx, d, purpose, template, root, previous)
		if err != nil {
			return nil, fmt.Errorf("open the encryption key %s: %w", purpose, err)
		}
		switch purpose {
		case purposeValues:
			k.values, err = aead.New(h)
		default:
			k.prints, err = mac.New(h)
		}
		if err != nil {
			return nil, fmt.Errorf("use the encryption key %s: %w", purpose, err)
		}
	}
	return k, nil
}

func keyContext(purpose string) []byte { return []byte("helmr encryption key v1\x00" + purpose) }

func seal(ctx context.Context, h *keyset.Handle, root RootKey, purpose string) ([]byte, error) {
	var sealed bytes.Buffer
	if err := h.WriteWithContext(ctx, keyset.NewBinaryWriter(&sealed), root, keyContext(purpose)); err != nil {
		return nil, fmt.Errorf("seal: %w", err)
	}
	return sealed.Bytes(), nil
}

func openKey(ctx context.Context, d *db.DB, purpose string, template *tinkpb.KeyTemplate, root RootKey, previous []RootKey) (*keyset.Handle, error) {
	rootID, sealed, err := readKey(ctx, d, purpose)
	if err != nil {
		return nil, err
	}
	if sealed == nil {
		if rootID, sealed, err = makeKey(ctx, d, purpose, template, root); err != nil {
			return nil, err
		}
	}
	for _, r := range append([]RootKey{root}, previous...) {
		if r.ID() != rootID {
			continue
		}
		h, err := keyset.ReadWithContext(ctx, keyset.NewBinaryReader(bytes.NewReader(sealed)), r, keyContext(purpose))
		if err != nil {
			return nil, fmt.Errorf("unseal: %w", err)
		}
		if r.ID() == root.ID() {
			return h, nil
		}
		return h, reseal(ctx, d, purpose, h, root, rootID)
	}
	return nil, ErrOtherKey
}

func readKey(ctx context.Context, d *db.DB, purpose string) (rootID string, sealed []byte, err error) {
	err = d.Read(ctx, func(tx *db.Tx) error {
		return tx.Query(func(scan func(...any) error) error {
			var p, r string
			var s []byte
			err := scan(&p, &r, &s)
			if p == purpose {
				rootID, sealed = r, s
			}
			return err
		}, sqlKeys)
	})
	return rootID, sealed, err
}

// makeKey makes the key of an installation that has none. When several servers begin at once, all take the first one's.
func makeKey(ctx context.Context, d *db.DB, purpose string, template *tinkpb.KeyTemplate, root RootKey) (rootID string, sealed []byte, err error) {
	h, err := keyset.NewHandle(template)
	if err != nil {
		return "", nil, fmt.Errorf("make: %w", err)
	}
	if sealed, err = seal(ctx, h, root, purpose); err != nil {
		return "", nil, err
	}
	now := db.Millis(time.Now())
	err = d.Write(ctx, func(tx *db.Tx) error {
		_, err := tx.Exec(sqlKeyInsert, purpose, root.ID(), sealed, now, now)
		return err
	})
	if err != nil {
		return "", nil, fmt.Errorf("keep: %w", err)
	}
	return readKey(ctx, d, purpose)
}

func reseal(ctx context.Context, d *db.DB, purpose string, h *keyset.Handle, root RootKey, before string) error {
	sealed, err := seal(ctx, h, root, purpose)
	if err != nil {
		return err
	}
	now := db.Millis(time.Now())
	return d.Write(ctx, func(tx *db.Tx) error {
		_, err := tx.Exec(sqlKeyReseal, root.ID(), sealed, now, purpose, before)
		return err
	})
}

// valueContext binds a sealed value to its place.
func valueContext(environmentID, name string, version int64) []byte {
	return fmt.Appendf(nil, "helmr secret value v1\x00%s\x00%s\x00%d", environmentID, name, version)
}

func (k *Keyring) sealValue(environmentID, name string, version int64, value string) ([]byte, error) {
	sealed, err := k.values.Encrypt([]byte(value), valueContext(environmentID, name, version))
	if err != nil {
		return nil, fmt.Errorf("seal secret: %w", err)
	}
	return sealed, nil
}

func (k *Keyring) openValue(environmentID, name string, version int64, sealed []byte) ([]byte, error) {
	value, err := k.values.Decrypt(sealed, valueContext(environmentID, name, version))
	if err != nil {
		return nil, fmt.Errorf("open version %d of secret %s: %w", version, name, err)
	}
	return value, nil
}

// fingerprint tells equal values apart from others without telling anything of a value to whoever lacks the key.
func (k *Keyring) fingerprint(environmentID, name, value string) (string, error) {
	sum, err := k.prints.ComputeMAC(fmt.Appendf(nil, "helmr secret fingerprint v1\x00%s\x00%s\x00%s", environmentID, name, value))
	if err != nil {
		return "", fmt.Errorf("fingerprint secret: %w", err)
	}
	return hex.EncodeToString(sum), nil
}
