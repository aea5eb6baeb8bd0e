package api

// Worker is a machine that hosts Computers. It belongs to the installation, not to an Environment.
type Worker struct {
	ID       string         `json:"id"`
	Name     string         `json:"name"`
	Status   string         `json:"status" enum:"registering,active,draining,termination_ready,lost"`
	Capacity WorkerCapacity `json:"capacity"`
	// Reserved is what its Computers take of the capacity, CPU in whole ones.
	Reserved WorkerCapacity `json:"reserved"`
	// Computers counts those that are on it, RunningTurns and RunningCommands what runs there now.
	Computers       int64 `json:"computers"`
	RunningTurns    int64 `json:"running_turns"`
	RunningCommands int64 `json:"running_commands"`
	// ShutdownAt is when a draining Worker's running work is stopped in order.
	ShutdownAt  *Time `json:"shutdown_at,omitempty"`
	HeartbeatAt Time  `json:"heartbeat_at"`
	CreatedAt   Time  `json:"created_at"`
}

// WorkerCapacity is an amount of what Computers need.
type WorkerCapacity struct {
	CPUMillis int64 `json:"cpu_millis"`
	MemoryMiB int64 `json:"memory_mib"`
	DiskMiB   int64 `json:"disk_mib"`
}

// WorkerPage is one page of Workers, by name.
type WorkerPage struct {
	Workers    []Worker `json:"workers"`
	NextCursor string   `json:"next_cursor,omitempty"`
}

// WorkerDrainRequest drains a Worker. Without a time its running work is waited for.
type WorkerDrainRequest struct {
	TimeoutMs int64 `json:"timeout_ms,omitempty" minimum:"0"`
}

// WorkerActivateRequest lets a Worker take Computers again.
type WorkerActivateRequest struct{}

// WorkerToken is what new Workers enroll with. Token is answered once, when it is made.
type WorkerToken struct {
	ID         string `json:"id"`
	Name       string `json:"name"`
	Token      string `json:"token,omitempty"`
	Prefix     string `json:"token_prefix"`
	Status     string `json:"status" enum:"active,revoked"`
	CreatedAt  Time   `json:"created_at"`
	LastUsedAt *Time  `json:"last_used_at,omitempty"`
	RevokedAt  *Time  `json:"revoked_at,omitempty"`
}

// WorkerTokenPage is one page of tokens, latest first.
type WorkerTokenPage struct {
	Tokens     []WorkerToken `json:"worker_tokens"`
	NextCursor string        `json:"next_cursor,omitempty"`
}

// WorkerTokenCreateRequest makes a token. Name is for people.
type WorkerTokenCreateRequest struct {
	Name string `json:"name"`
}
