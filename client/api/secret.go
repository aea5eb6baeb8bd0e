package api

// Secret is a named value of an Environment. The value itself is never answered.
type Secret struct {
	ID        string `json:"id"`
	Name      string `json:"name"`
	Status    string `json:"status" enum:"active,revoked"`
	CreatedAt Time   `json:"created_at"`
	RotatedAt *Time  `json:"rotated_at,omitempty"`
	RevokedAt *Time  `json:"revoked_at,omitempty"`
}

// SecretPage is one page of Secrets, by name.
type SecretPage struct {
	Secrets    []Secret `json:"secrets"`
	NextCursor string   `json:"next_cursor,omitempty"`
}

// SecretCreateRequest makes a Secret.
type SecretCreateRequest struct {
	Name           string `json:"name"`
	Value          string `json:"value"`
	IdempotencyKey string `json:"idempotency_key,omitempty" minLength:"1"`
}

// SecretRotateRequest gives a Secret another value.
type SecretRotateRequest struct {
	Value          string `json:"value"`
	IdempotencyKey string `json:"idempotency_key,omitempty" minLength:"1"`
}

// SecretRevokeRequest ends a Secret for good.
type SecretRevokeRequest struct {
	IdempotencyKey string `json:"idempotency_key,omitempty" minLength:"1"`
}

// SecretBinding places a Secret on a Computer: exactly one of Env and File. Its names are the same in Template
// definitions and in requests.
type SecretBinding struct {
	Secret string      `json:"secret"`
	Env    *SecretEnv  `json:"env,omitempty"`
	File   *SecretFile `json:"file,omitempty"`
}

// SecretEnv is a variable of the environment: with mode "raw" its value is the Secret's, with "protected" a placeholder
// that is replaced on the way to AllowedOrigins.
type SecretEnv struct {
	Name           string   `json:"name"`
	Mode           string   `json:"mode" enum:"protected,raw"`
	AllowedOrigins []string `json:"allowedOrigins,omitempty"`
}

// SecretFile is a file that holds the value.
type SecretFile struct {
	Path string `json:"path"`
}
