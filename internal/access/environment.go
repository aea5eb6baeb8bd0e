package access

import (
	"fmt"
	"strconv"

	"helmr.dev/helmr/internal/db"
	"helmr.dev/helmr/internal/fault"
)

// Limits bound one Environment. They are copied from the server's settings when the Environment is created.
type Limits struct {
	MaxResidentComputers     int64
	MaxCPUMillis             int64
	MaxMemoryBytes           int64
	MaxReservedStorageBytes  int64
	MaxOutstandingAdmissions int64
	MaxCausalDepth           int64
	AdmissionRatePerSecond   int64
	AdmissionBurst           int64
	PreparationTimeoutMs     int64
}

// DefaultLimits are the limits of an installation that sets none.
func DefaultLimits() Limits {
	return Limits{
		MaxResidentComputers: 16, MaxCPUMillis: 32_000, MaxMemoryBytes: 64 << 30, MaxReservedStorageBytes: 2 << 40,
		MaxOutstandingAdmissions: 1000, MaxCausalDepth: 16, AdmissionRatePerSecond: 50, AdmissionBurst: 100, PreparationTimeoutMs: 1_800_000,
	}
}

// settings pairs each limit with its setting.
func (l *Limits) settings() []setting {
	return []setting{
		{"HELMR_ENVIRONMENT_MAX_RESIDENT_COMPUTERS", &l.MaxResidentComputers},
		{"HELMR_ENVIRONMENT_MAX_CPU_MILLIS", &l.MaxCPUMillis},
		{"HELMR_ENVIRONMENT_MAX_MEMORY_BYTES", &l.MaxMemoryBytes},
		{"HELMR_ENVIRONMENT_MAX_RESERVED_STORAGE_BYTES", &l.MaxReservedStorageBytes},
		{"HELMR_ENVIRONMENT_MAX_OUTSTANDING_ADMISSIONS", &l.MaxOutstandingAdmissions},
		{"HELMR_ENVIRONMENT_MAX_CAUSAL_DEPTH", &l.MaxCausalDepth},
		{"HELMR_ENVIRONMENT_ADMISSION_RATE_PER_SECOND", &l.AdmissionRatePerSecond},
		{"HELMR_ENVIRONMENT_ADMISSION_BURST", &l.AdmissionBurst},
		{"HELMR_ENVIRONMENT_PREPARATION_TIMEOUT_MS", &l.PreparationTimeoutMs},
	}
}

type setting struct {
	name  string
	value *int64
}

// LimitsFrom gives the defaults with the HELMR_ENVIRONMENT_ settings of lookup (os.LookupEnv) over them. An error names
// the setting and not its value.
func LimitsFrom(lookup func(name string) (string, bool)) (Limits, error) {
	l := DefaultLimits()
	for _, s := range l.settings() {
		text, ok := lookup(s.name)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 1 {
			return Limits{}, fmt.Errorf("%s must be a positive whole number", s.name)
		}
		*s.value = n
	}
	return l, nil
}

// Check refuses a limit that is not positive, by the name of its setting.
func (l Limits) Check() error {
	for _, s := range l.settings() {
		if *s.value < 1 {
			return fmt.Errorf("%s must be a positive whole number", s.name)
		}
	}
	return nil
}

// Environment is what other rooms need to know of an Environment.
type Environment struct {
	ID        string
	ProjectID string
	Slug      string
	// HistoryRetentionMode is "keep" or "duration"; HistoryRetentionSeconds stands with "duration" only.
	HistoryRetentionMode    string
	HistoryRetentionSeconds *int64
	Limits                  Limits
}

// ReadEnvironment reads an Environment in a transaction.
func ReadEnvironment(tx *db.Tx, environmentID string) (Environment, error) {
	e := Environment{ID: environmentID}
	l := &e.Limits
	found, err := tx.Get([]any{&e.ProjectID, &e.Slug, &e.HistoryRetentionMode, &e.HistoryRetentionSeconds, &l.MaxResidentComputers, &l.MaxCPUMillis,
		&l.MaxMemoryBytes, &l.MaxReservedStorageBytes, &l.MaxOutstandingAdmissions, &l.MaxCausalDepth, &l.AdmissionRatePerSecond,
		&l.AdmissionBurst, &l.PreparationTimeoutMs}, sqlEnvironmentGet, environmentID)
	if err != nil {
		return Environment{}, fmt.Errorf("read environment: %w", err)
	}
	if !found {
		return Environment{}, fault.New(fault.NotFound, "The Environment does not exist.")
	}
	return e, nil
}
