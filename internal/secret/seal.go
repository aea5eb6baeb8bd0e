package secret

import "fmt"

// What the room seals for others beside values. A purpose is part of what a sealed text is bound to.
const (
	// ComputerAuthority is the private key of a Computer's certificate authority.
	ComputerAuthority = "computer-authority"
)

func sealContext(purpose, owner string) []byte {
	return fmt.Appendf(nil, "helmr sealed v1\x00%s\x00%s", purpose, owner)
}

// Seal encrypts text for one purpose and owner; moved to another it does not open. It touches no table.
func (s *Service) Seal(purpose, owner string, text []byte) ([]byte, error) {
	sealed, err := s.keys.values.Encrypt(text, sealContext(purpose, owner))
	if err != nil {
		return nil, fmt.Errorf("seal %s: %w", purpose, err)
	}
	return sealed, nil
}

// Unseal is the reverse of Seal.
func (s *Service) Unseal(purpose, owner string, sealed []byte) ([]byte, error) {
	text, err := s.keys.values.Decrypt(sealed, sealContext(purpose, owner))
	if err != nil {
		return nil, fmt.Errorf("unseal %s: %w", purpose, err)
	}
	return text, nil
}
