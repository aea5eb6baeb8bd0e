package chunk

import (
	"crypto/hkdf"
	"crypto/sha256"
	"fmt"
	"sync"

	"helmr.dev/helmr/internal/blob"
)

// KeyBytes is the size of an installation's key.
const KeyBytes = 32

// Vault is what one installation keeps in a blob store. It is safe for concurrent use.
type Vault struct {
	store  *blob.Store
	roots  [][]byte // the present one first
	prints *prints

	mu sync.Mutex
	// spaces is guarded by mu.
	spaces map[string]*Space
}

// NewVault gives the vault of the installation whose key this is, HELMR_CHECKPOINT_ENCRYPTION_KEY, of KeyBytes. What was
// stored under one of the previous keys is still read; everything new is stored under key.
func NewVault(s *blob.Store, key []byte, previous ...[]byte) (*Vault, error) {
	v := &Vault{store: s, spaces: map[string]*Space{}}
	var err error
	if v.prints, err = newPrints(); err != nil {
		return nil, err
	}
	for _, k := range append([][]byte{key}, previous...) {
		if len(k) != KeyBytes {
			return nil, fmt.Errorf("a checkpoint encryption key has %d bytes instead of %d", len(k), KeyBytes)
		}
		v.roots = append(v.roots, k)
	}
	return v, nil
}

// Space is one Environment's part of a Vault. It is safe for concurrent use.
type Space struct {
	store       *blob.Store
	environment string
	keys        []keys // the present ones first
	prints      *prints

	mu sync.Mutex
	// retired is, by digest of a piece, the highest number of its references that may not be used any more; guarded by mu.
	retired map[string]int
}

// Space gives the part of an Environment. All calls for one Environment share what is remembered of it.
func (v *Vault) Space(environmentID string) (*Space, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if sp, ok := v.spaces[environmentID]; ok {
		return sp, nil
	}
	sp := &Space{store: v.store, environment: environmentID, prints: v.prints, retired: map[string]int{}}
	for _, root := range v.roots {
		k, err := deriveKeys(root, environmentID)
		if err != nil {
			return nil, err
		}
		sp.keys = append(sp.keys, k)
	}
	v.spaces[environmentID] = sp
	return sp, nil
}

// keys are one Environment's, derived from one root key.
type keys struct {
	id      [idBytes]byte // names the root key in what was stored under it
	names   []byte        // gives pieces their digests
	content []byte        // gives each object the key it is encrypted under
}

func deriveKeys(root []byte, environmentID string) (k keys, err error) {
	id, err := hkdf.Key(sha256.New, root, nil, "helmr chunk 1 root id", idBytes)
	if err != nil {
		return k, fmt.Errorf("derive keys: %w", err)
	}
	copy(k.id[:], id)
	if k.names, err = hkdf.Key(sha256.New, root, nil, "helmr chunk 1 names of "+environmentID, 32); err != nil {
		return k, fmt.Errorf("derive keys: %w", err)
	}
	if k.content, err = hkdf.Key(sha256.New, root, nil, "helmr chunk 1 content of "+environmentID, 32); err != nil {
		return k, fmt.Errorf("derive keys: %w", err)
	}
	return k, nil
}

// Retire says that these references must not be used any more, because their objects are being removed: whatever is
// stored from now on uses others. What it is given comes from the refusal of a publication.
func (sp *Space) Retire(references ...string) {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	for _, r := range references {
		digest, number, ok := splitReference(r)
		if !ok {
			continue
		}
		if had, known := sp.retired[digest]; !known || number > had {
			sp.retired[digest] = number
		}
	}
}

// reference gives the reference under which the piece with a digest may be stored or found.
func (sp *Space) reference(digest string) string {
	sp.mu.Lock()
	defer sp.mu.Unlock()
	if n, ok := sp.retired[digest]; ok {
		return fmt.Sprintf("%s-%d", digest, n+1)
	}
	return digest
}
